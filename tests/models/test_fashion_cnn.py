import torch

from fafed.models import FashionCNN


def test_parameters_and_initialisation():
    torch.manual_seed(0)
    model = FashionCNN()
    assert sum(p.numel() for p in model.parameters()) == 26_620
    conv, linear = model[0], model[7]
    assert torch.allclose(conv.bias, torch.full((5,), 1 / 5))
    assert torch.allclose(linear.bias, torch.full((100,), 1 / 100))
    assert abs(linear.weight.std() / (2 / (250 + 100)) ** 0.5 - 1) < 0.05  # Xavier
    assert model(100 * torch.randn(50, 1, 28, 28)).abs().max() > 1  # no activation on the logits
