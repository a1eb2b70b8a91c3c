import torch

from fafed.models import CifarCNN


def test_parameters():
    model = CifarCNN()
    assert sum(p.numel() for p in model.parameters()) == 581_866
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
