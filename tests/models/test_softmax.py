import torch

from fafed.models import SoftmaxRegression


def test_starts_at_zero():
    model = SoftmaxRegression(12, 5)
    assert sum(p.numel() for p in model.parameters()) == 12 * 5 + 5
    assert torch.equal(model(torch.randn(2, 3, 2, 2)), torch.zeros(2, 5))
