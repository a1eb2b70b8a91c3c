import gzip

import numpy as np
import pytest

from fafed.data.datasets import idx, mnist
from fafed.errors import DataError


@pytest.mark.parametrize("form", ["{}.gz", "{}", "dotted"])
def test_unpack(form, tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "SHAPES", {"train-images-idx3-ubyte": (2, 3, 3)})
    (name,) = mnist.SHAPES
    content = idx.dump(np.arange(18, dtype=np.uint8).reshape(2, 3, 3))
    path = tmp_path / (name.replace("-idx", ".idx") if form == "dotted" else form.format(name))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert list(mnist.unpack(tmp_path)) == [(name, content)]


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"no train-images-idx3-ubyte\.gz or"):
        list(mnist.unpack(tmp_path))


def test_real(real):
    digits = real("mnist")
    (inputs, targets), (test_inputs, test_targets) = digits.train, digits.test
    assert inputs.shape == (60_000, 1, 28, 28)
    assert test_inputs.shape == (10_000, 1, 28, 28)
    assert targets[:5].tolist() == [5, 0, 4, 1, 9]
    counts = targets.bincount()
    assert (counts.min(), counts.max()) == (5421, 6742)
    assert test_targets.bincount().sum() == 10_000
    assert abs(inputs.mean()) < 1e-3
    assert abs(inputs.std() - 1) < 1e-3
