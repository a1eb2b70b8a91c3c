import io
import tarfile

import numpy as np
import pytest

from fafed import data
from fafed.data.datasets import cifar10
from fafed.errors import DataError

N = 4


@pytest.fixture
def batches(monkeypatch):
    """Six files in the official layout, of four images each."""
    monkeypatch.setattr(cifar10, "PER_FILE", N)
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 256, (N, 3073), np.uint8).tobytes() for name in cifar10.SHA256}


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def compact(folder, batches):
    for file, names in {"train.npz": cifar10.TRAIN, "test.npz": [cifar10.TEST]}.items():
        rows = np.concatenate([np.frombuffer(batches[n], np.uint8).reshape(N, -1) for n in names])
        red, green, blue = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(1, 0, 2, 3)
        planes = np.stack([green, red - green, blue - green])
        residual = np.diff(
            np.diff(planes, axis=2, prepend=np.uint8(0)), axis=3, prepend=np.uint8(0)
        )
        np.savez_compressed(folder / file, labels=rows[:, 0], residual=residual)


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-bin"])
def test_files(batches, tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, content in batches.items():
        (tmp_path / folder / name).write_bytes(content)
    assert dict(cifar10.unpack(tmp_path)) == batches


@pytest.mark.parametrize("prefix", ["", "./", "cifar-10-batches-bin/", "./cifar-10-batches-bin/"])
def test_archive(batches, tmp_path, prefix):
    members = {"cifar-10-batches-bin/readme.html": b"hello"}
    members |= {prefix + name: content for name, content in batches.items()}
    path = archive(tmp_path / "cifar-10-binary.tar.gz", members)
    assert dict(cifar10.unpack(tmp_path)) == batches
    assert dict(cifar10.unpack(path)) == batches


def test_compact_form(batches, tmp_path):
    compact(tmp_path, batches)
    assert dict(cifar10.unpack(tmp_path)) == batches


def test_strange_members_are_passed_over(batches, tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    name, content = next(iter(batches.items()))
    with tarfile.open(path, "w:gz") as tar:
        for strange in (f"../{name}", f"/etc/{name}", f"elsewhere/{name}"):
            member = tarfile.TarInfo(strange)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert list(cifar10.unpack(path)) == []


def test_member_of_the_wrong_size_is_not_read(tmp_path):
    path = archive(tmp_path / "a.tar.gz", {"data_batch_1.bin": b"short"})
    with pytest.raises(DataError, match="5 bytes, expected 30730000"):
        list(cifar10.unpack(path))


def test_damaged_archive(batches, tmp_path):
    path = archive(tmp_path / "a.tar.gz", batches)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DataError, match="cannot read"):
        list(cifar10.unpack(path))


@pytest.mark.parametrize("name", cifar10.PICKLES)
def test_pickles_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n")
    with pytest.raises(DataError, match="use the binary version"):
        data.import_files("cifar-10", tmp_path, tmp_path / "cache")


def test_archive_of_pickles_is_refused(tmp_path):
    path = archive(tmp_path / "a.tar.gz", {"cifar-10-batches-py/data_batch_1": b"cos\nsystem\n"})
    with pytest.raises(DataError, match="use the binary version"):
        list(cifar10.unpack(path))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.zeros(3, np.uint8)}, "residual"),
        ({"labels": np.array([{}]), "residual": np.zeros(3)}, "allow_pickle=False"),
        ({"labels": np.zeros(3, np.uint8), "residual": np.zeros(3)}, r"labels is uint8 \(3,\)"),
    ],
)
def test_wrong_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(DataError, match=message):
        list(cifar10.unpack(tmp_path))


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="no CIFAR-10 in"):
        list(cifar10.unpack(tmp_path))


def test_real(real):
    photographs = real("cifar-10")
    for (inputs, targets), n in ((photographs.train, 50_000), (photographs.test, 10_000)):
        assert inputs.shape == (n, 3, 32, 32)
        assert targets.bincount().tolist() == [n // 10] * 10
    inputs, targets = photographs.train
    assert photographs.classes[targets[0]] == "frog"
    means = [float(inputs[:, c].double().mean()) for c in range(3)]
    expected = [
        (m - mean) / std
        for m, mean, std in zip((0.4914, 0.4822, 0.4465), cifar10.MEAN, cifar10.STD, strict=True)
    ]
    assert means == pytest.approx(expected, abs=1e-3)
