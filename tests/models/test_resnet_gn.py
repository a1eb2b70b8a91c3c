import torch
from torch import nn

from fafed.models import ResNetGN


def numbers(model):
    return sum(p.numel() for p in model.parameters())


def test_resnet_18_has_eighteen_layers():
    model = ResNetGN([2, 2, 2, 2], 64, 100)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    around = [m for m in layers if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(layers) - len(around) == 18
    assert len(around) == 3
    assert numbers(model) == 11_220_132  # as with BatchNorm
    assert not list(model.buffers())


def test_the_small_one():
    model = ResNetGN()
    assert numbers(model) == 78_042
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_an_example_does_not_see_the_others():
    model, x = ResNetGN(), torch.randn(4, 3, 32, 32)
    assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


def test_a_stride_halves_the_image_at_once():
    x = torch.randn(2, 3, 32, 32)
    plain, halved = ResNetGN(width=4), ResNetGN(width=4, stride=2)
    halved.load_state_dict(plain.state_dict())
    seen = plain[0](x)
    assert torch.equal(halved[0](x), seen[:, :, ::2, ::2])
    assert halved(x).shape == (2, 10)
