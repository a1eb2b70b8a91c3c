import gzip
import hashlib
import importlib
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fafed import data
from fafed.data.datasets import idx
from fafed.data.datasets.base import Dataset, Download, Images, Origin, Package, labelled
from fafed.data.datasets.cache import find
from fafed.errors import ConfigError, DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 4, 4), np.uint8)
LABELS = np.arange(50, dtype=np.uint8) % 3
PLAIN = {"images": idx.dump(PIXELS), "labels": idx.dump(LABELS)}
ZIPPED = {f"{name}.gz": gzip.compress(content) for name, content in PLAIN.items()}


@pytest.fixture
def tiny(server, monkeypatch):
    """A dataset with all that a real one has, served from this machine."""
    server.files = dict(ZIPPED)

    def read(folder):
        images = idx.read(folder / "images", PIXELS.shape)
        pair = labelled(images[:, None], idx.read(folder / "labels", LABELS.shape), [0.5], [0.25])
        return Images(pair, pair, ("a", "b", "c"))

    def unpack(source):
        for name, array in {"images": PIXELS, "labels": LABELS}.items():
            path = find(source, f"{name}.gz", name)
            yield name, idx.dump(idx.read(path, array.shape))

    def sha256(content):
        return hashlib.sha256(content).hexdigest()

    origin = Origin(
        {name: sha256(content) for name, content in PLAIN.items()},
        tuple(
            Download(name, len(content), sha256(content), (f"{server.url}/{name}",))
            for name, content in ZIPPED.items()
        ),
        unpack,
    )
    monkeypatch.setitem(data.DATASETS, "tiny", Dataset("tiny", "tiny", "none", read, origin))


def test_names():
    images = ["fashion-mnist", "mnist", "cifar-10", "cifar-100"]
    assert list(data.DATASETS) == [*images, "wikitext-2", "heart-disease"]


def test_unknown_name():
    for call in (data.load, data.get, lambda name: data.import_files(name, ".")):
        with pytest.raises(ConfigError, match="did you mean 'fashion-mnist'"):
            call("fashion_mnist")


@pytest.mark.parametrize("name", ["mnist", "cifar-10", "cifar-100", "wikitext-2", "heart-disease"])
def test_absent(name, tmp_path):
    with pytest.raises(DataError) as caught:
        data.load(name, tmp_path)
    for part in (f"`fafed data get {name}`", f"`fafed data import {name} DIR`", str(tmp_path)):
        assert part in str(caught.value)


@pytest.mark.usefixtures("tiny")
def test_get_then_load(tmp_path, server, left):
    calls = []
    total = sum(map(len, ZIPPED.values()))
    assert data.get("tiny", tmp_path, progress=lambda *c: calls.append(c)) == tmp_path / "tiny"
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    assert left(tmp_path) == ["tiny", "tiny/images", "tiny/labels"]
    inputs, targets = data.load("tiny", tmp_path).train
    assert np.array_equal(targets, LABELS)
    assert np.allclose(inputs[:, 0], (PIXELS / 255 - 0.5) / 0.25, atol=1e-6)
    asked = len(server.asked)
    data.get("tiny", tmp_path)
    assert len(server.asked) == asked  # it is there


@pytest.mark.usefixtures("tiny")
def test_get_repairs(tmp_path):
    where = data.get("tiny", tmp_path)
    (where / "images").write_bytes(b"rotten")
    data.get("tiny", tmp_path)
    assert (where / "images").read_bytes() == PLAIN["images"]


@pytest.mark.usefixtures("tiny")
def test_get_goes_on_with_the_files_it_has(tmp_path, server, left):
    labels = server.files.pop("labels.gz")
    with pytest.raises(DataError, match=r"labels\.gz"):
        data.get("tiny", tmp_path)
    assert not (tmp_path / "tiny").exists()
    server.files = {"labels.gz": labels}
    data.get("tiny", tmp_path)
    data.load("tiny", tmp_path)
    assert left(tmp_path) == ["tiny", "tiny/images", "tiny/labels"]


@pytest.mark.usefixtures("tiny")
def test_get_from_a_mirror(tmp_path, server):
    server.files = {f"our/mirror/{name}": content for name, content in ZIPPED.items()}
    data.get("tiny", tmp_path, mirror=f"{server.url}/our/mirror/")
    data.load("tiny", tmp_path)
    with pytest.raises(ConfigError, match="mirror"):
        data.get("tiny", tmp_path, mirror="file:///etc")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("files", [PLAIN, ZIPPED])
def test_import(tmp_path, files):
    (tmp_path / "source").mkdir()
    for name, content in files.items():
        (tmp_path / "source" / name).write_bytes(content)
    data.import_files("tiny", str(tmp_path / "source"), tmp_path)
    assert np.array_equal(data.load("tiny", tmp_path).train[1], LABELS)


def test_import_of_what_needs_none(tmp_path):
    with pytest.raises(ConfigError, match="installed with fafed-fashion-mnist"):
        data.import_files("fashion-mnist", tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        data.import_files("mnist", tmp_path / "nowhere")


def test_get_of_what_is_installed(tmp_path, left):
    assert (data.get("fashion-mnist", tmp_path) / "LICENSE").is_file()
    assert left(tmp_path) == []


@pytest.mark.usefixtures("tiny")
def test_a_package_is_read_where_it_is_installed_and_named_where_not(tmp_path, monkeypatch):
    """The same dataset in a package of its own, before and after its installation."""
    where = data.get("tiny", tmp_path / "cache")
    packaged = replace(data.DATASETS["tiny"], package=Package("fafed-tiny", "fafed_tiny", "x/tiny"))
    monkeypatch.setitem(data.DATASETS, "tiny", packaged)
    with pytest.raises(DataError) as caught:
        data.load("tiny", tmp_path)
    for cure in ("`pip install fafed-tiny`", "`pip install x/tiny`", "`fafed data get tiny`"):
        assert cure in str(caught.value)
    shutil.copytree(where, tmp_path / "site" / "fafed_tiny")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(DataError, match="is not in"):  # a folder of this name is no package
        data.load("tiny", tmp_path)
    (tmp_path / "site" / "fafed_tiny" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert np.array_equal(data.load("tiny", tmp_path).train[1], LABELS)
    assert data.get("tiny", tmp_path) == tmp_path / "site" / "fafed_tiny"
    (status,) = (status for status in data.status(tmp_path) if status.name == "tiny")
    assert (status.present, status.source) == (True, "fafed-tiny")


@pytest.mark.usefixtures("tiny")
def test_status(tmp_path):
    before = {status.name: status for status in data.status(tmp_path)}
    assert before["fashion-mnist"].source == "fafed-fashion-mnist"
    assert before["fashion-mnist"].bytes > 20_000_000
    assert not before["tiny"].present
    assert before["tiny"].source is None
    assert before["tiny"].bytes == 0
    data.get("tiny", tmp_path)
    now = {status.name: status for status in data.status(tmp_path)}["tiny"]
    assert (now.present, now.source) == (True, "cache")
    assert now.where == tmp_path / "tiny"
    assert now.bytes == sum(map(len, PLAIN.values()))
