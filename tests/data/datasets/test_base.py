import numpy as np
import torch

from fafed.data.datasets.base import labelled


def test_labelled_normalises_each_channel():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), np.uint8)
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.7])
    inputs, targets = labelled(pixels, np.arange(5, dtype=np.uint8), mean.tolist(), std.tolist())
    expected = (pixels / 255 - mean[:, None, None]) / std[:, None, None]
    assert np.allclose(inputs, expected, atol=1e-6)
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    assert targets.tolist() == [0, 1, 2, 3, 4]
