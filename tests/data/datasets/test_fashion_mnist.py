import shutil

import pytest
import torch

from fafed import data
from fafed.data.datasets import fashion_mnist
from fafed.data.datasets.cache import SHIPPED
from fafed.errors import DataError


def test_load():
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


def test_damage_is_noticed(tmp_path):
    folder = shutil.copytree(SHIPPED / "fashion-mnist", tmp_path / "copy")
    shutil.copy(folder / "images-2.xz", folder / "images-1.xz")
    with pytest.raises(DataError, match=r"train images .* expected sha256 c59f.*install fafed"):
        fashion_mnist.read(folder)
    (folder / "labels.xz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"cannot read .*labels\.xz"):
        fashion_mnist._bytes(folder / "labels.xz", 70_000)


def test_licence_is_beside_it():
    assert "2017 Zalando SE" in (SHIPPED / "fashion-mnist" / "LICENSE").read_text(encoding="utf-8")
