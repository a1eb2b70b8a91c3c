import torch

from fafed.models import MnistCNN


def test_parameters_and_initialisation():
    model = MnistCNN()
    assert sum(p.numel() for p in model.parameters()) == 431_080
    conv, linear = model[0], model[7]
    assert torch.allclose(conv.bias, torch.full((20,), 1 / 20))
    assert torch.allclose(linear.bias, torch.full((500,), 1 / 500))
    assert abs(linear.weight.std() / (2 / (800 + 500)) ** 0.5 - 1) < 0.02  # Xavier
    assert model(torch.randn(20, 1, 28, 28)).min() < 0  # no activation on the logits
