import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fafed.data.datasets import cache
from fafed.data.datasets.base import Dataset, Origin
from fafed.errors import DataError

FILES = {"a": b"first", "b": b"second" * 10_000}


def dataset(unpack=None):
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    return Dataset("d", "", "", lambda _: None, Origin(sha256, (), unpack or unpack_all))


def unpack_all(source):
    for name in FILES:
        yield name, (source / name).read_bytes()


def install(some, source, folder):
    return cache.install(some, source, folder)


@pytest.fixture
def source(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content)
    return source


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def test_root(monkeypatch, tmp_path):
    monkeypatch.setenv("FAFED_DATA", str(tmp_path))
    assert cache.root() == tmp_path
    assert cache.root("elsewhere") == Path("elsewhere")
    assert cache.root("~/data") == Path.home() / "data"
    monkeypatch.delenv("FAFED_DATA")
    assert cache.root().parts[-2:] == ("fafed", "data")


def test_install(source, folder, left):
    assert not cache.present(dataset(), folder)
    assert install(dataset(), source, folder) == folder / "d"
    assert left(folder) == ["d", "d/a", "d/b"]
    assert cache.present(dataset(), folder)
    assert cache.intact(dataset(), folder)


def test_install_replaces_what_is_damaged(source, folder, left):
    install(dataset(), source, folder)
    (folder / "d" / "a").write_bytes(b"rotten")
    assert cache.present(dataset(), folder)
    assert not cache.intact(dataset(), folder)
    install(dataset(), source, folder)
    assert cache.intact(dataset(), folder)
    assert left(folder) == ["d", "d/a", "d/b"]


def test_bad_checksum_keeps_what_was_there(source, folder, left):
    (source / "b").write_bytes(b"wrong")
    with pytest.raises(DataError) as caught:
        install(dataset(), source, folder)
    for part in ("b from", hashlib.sha256(FILES["b"]).hexdigest(), "nothing was installed"):
        assert part in str(caught.value)
    assert hashlib.sha256(b"wrong").hexdigest() in str(caught.value)
    assert left(folder) == []
    (source / "b").write_bytes(FILES["b"])
    install(dataset(), source, folder)
    (source / "b").write_bytes(b"wrong")
    with pytest.raises(DataError):
        install(dataset(), source, folder)
    assert cache.intact(dataset(), folder)


def test_missing_file(source, folder, left):
    first_only = dataset(lambda source: [("a", FILES["a"])])
    with pytest.raises(DataError, match="lacks b"):
        install(first_only, source, folder)
    assert left(folder) == []


def test_full_disk(source, folder, small_files, left):
    with small_files(1000), pytest.raises(DataError, match=r"cannot write .*b: File too large"):
        install(dataset(), source, folder)
    assert left(folder) == []
    install(dataset(), source, folder)
    assert cache.intact(dataset(), folder)


def test_folder_that_cannot_be(source, folder):
    folder.write_text("a file is in the way")
    with pytest.raises(DataError, match=r"cannot write .*FAFED_DATA"):
        install(dataset(), source, folder)


def test_interruption(source, folder, left):
    def interrupted(source):
        yield "a", FILES["a"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(dataset(interrupted), source, folder)
    assert left(folder) == []


def test_sudden_death(source, folder):
    """A killed process leaves no entry, and nothing that is in the way of the next one."""
    killed = """
import os, sys
from pathlib import Path
from test_cache import FILES, dataset, install
def unpack(source):
    yield "a", FILES["a"]
    os.kill(os.getpid(), 9)
install(dataset(unpack), *map(Path, sys.argv[1:]))
"""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", killed, source, folder]
    process = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert process.returncode == -9
    assert not cache.present(dataset(), folder)
    assert not (folder / "d").exists()
    install(dataset(), source, folder)
    assert cache.intact(dataset(), folder)


def test_many_at_once(source, folder, left):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: install(dataset(), source, folder), range(100)))
    assert cache.intact(dataset(), folder)
    assert left(folder) == ["d", "d/a", "d/b"]


def test_verified(source):
    sha256 = hashlib.sha256(b"first").hexdigest()
    assert cache.verified(source / "a", sha256) == b"first"
    with pytest.raises(DataError, match=r"expected sha256 0+, found .*fafed data get source"):
        cache.verified(source / "a", "0" * 64)
    with pytest.raises(DataError, match="cannot read"):
        cache.verified(source / "c", sha256)


def test_find(source):
    assert cache.find(source, "c", "b", "a") == source / "b"
    with pytest.raises(DataError, match="no c or e in"):
        cache.find(source, "c", "e")
