import shutil
from dataclasses import replace

import pytest
import torch

from fafed import data
from fafed.data.datasets import cache, fashion_mnist, idx, mnist
from fafed.data.datasets.fashion_mnist import FASHION_MNIST
from fafed.errors import DataError


@pytest.fixture(scope="module")
def package():
    return cache.installed(FASHION_MNIST)


def test_package_and_cache_hold_the_same(package, tmp_path, monkeypatch):
    fashion = data.load("fashion-mnist")
    for (inputs, targets), n in ((fashion.train, 60_000), (fashion.test, 10_000)):
        assert inputs.shape == (n, 1, 28, 28)
        assert inputs.dtype == torch.float32
        assert targets.bincount().tolist() == [n // 10] * 10
    inputs, targets = fashion.train
    assert fashion.classes[targets[0]] == "Ankle boot"  # rightly so, see the paper's first row
    assert abs(inputs.mean()) < 1e-3
    assert abs(inputs.std() - 1) < 1e-3
    assert torch.allclose(inputs[0, 0, 0, 0], torch.tensor(-0.2860 / 0.3529))

    elsewhere = replace(fashion_mnist.PACKAGE, module="no_such_package")
    monkeypatch.setitem(data.DATASETS, "fashion-mnist", replace(FASHION_MNIST, package=elsewhere))
    (tmp_path / "source").mkdir()
    for name, array in zip(mnist.SHAPES, fashion_mnist.decompressed(package), strict=True):
        (tmp_path / "source" / name).write_bytes(idx.dump(array))
    where = data.import_files("fashion-mnist", tmp_path / "source", tmp_path)
    cached = data.load("fashion-mnist", tmp_path)
    for one, other in ((fashion.train, cached.train), (fashion.test, cached.test)):
        assert all(map(torch.equal, one, other))
    labels = where / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match=r"train-labels.* expected sha256 bad35.*`fafed data get"):
        data.load("fashion-mnist", tmp_path)


def test_damage_is_noticed(package, tmp_path):
    folder = shutil.copytree(package, tmp_path / "copy")
    shutil.copy(folder / "images-2.xz", folder / "images-1.xz")
    with pytest.raises(DataError, match=r"train-images.* expected sha256 c59f.*force-reinstall"):
        fashion_mnist.read(folder)
    (folder / "labels.xz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"cannot read .*labels\.xz.*force-reinstall"):
        fashion_mnist._bytes(folder / "labels.xz", 70_000)
    (folder / "labels.xz").unlink()
    with pytest.raises(DataError, match=r"cannot read .*labels\.xz.*force-reinstall"):
        fashion_mnist.read(folder)


def test_licence_is_beside_it(package):
    assert "2017 Zalando SE" in (package / "LICENSE").read_text(encoding="utf-8")
