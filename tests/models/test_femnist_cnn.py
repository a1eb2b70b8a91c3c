import torch

from fafed.models import FemnistCNN


def test_shapes():
    model = FemnistCNN()
    assert sum(p.numel() for p in model.parameters()) == 6_603_710
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 62)
