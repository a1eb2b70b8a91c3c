import io
import tarfile

import numpy as np
import pytest

from fafed import data
from fafed.data.datasets import cache, cifar100
from fafed.errors import DataError


def archive(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def members(monkeypatch):
    """The official layout, with four and two images."""
    monkeypatch.setattr(cifar100, "COUNTS", {"train.bin": 4, "test.bin": 2})
    rows = np.random.default_rng(0).integers(0, 100, (6, 3074), np.uint8)
    found = {"train.bin": rows[:4].tobytes(), "test.bin": rows[4:].tobytes()}
    return found | {"fine_label_names.txt": b"apple\nbaby\n", "readme": b"hello"}


def test_the_second_byte_is_the_class(members, tmp_path):
    images = cifar100.images(archive(members), tmp_path)
    rows = np.frombuffer(members["train.bin"], np.uint8).reshape(4, 3074)
    assert images.train[1].tolist() == rows[:, 1].tolist()
    red = images.train[0][3, 0, 0, 1] * cifar100.STD[0] + cifar100.MEAN[0]
    assert float(red) * 255 == pytest.approx(rows[3, 2 + 1], abs=1e-3)
    assert images.test[0].shape == (2, 3, 32, 32)
    assert images.classes == ("apple", "baby")


def test_import_and_load(members, tmp_path, monkeypatch):
    content = archive(members)
    sha = cache.sha256_of(content)
    monkeypatch.setattr(cifar100, "SHA256", sha)
    monkeypatch.setitem(cifar100.CIFAR100.origin.files, cifar100.ARCHIVE, sha)
    (tmp_path / cifar100.ARCHIVE).write_bytes(content)
    data.import_files("cifar-100", tmp_path, tmp_path / "cache")
    assert len(data.load("cifar-100", tmp_path / "cache").train[1]) == 4


def test_damage_and_absence(members, tmp_path):
    with pytest.raises(DataError, match=r"no cifar-100-binary.tar.gz in .*name the folder"):
        list(cifar100.unpack(tmp_path))
    short = members | {"test.bin": members["test.bin"][1:]}
    with pytest.raises(DataError, match="expected 6148; get a fresh copy"):
        cifar100.images(archive(short), tmp_path)
    del members["train.bin"]
    with pytest.raises(DataError, match=r"lacks train.bin"):
        cifar100.images(archive(members), tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        cifar100.images(b"not an archive", tmp_path)
