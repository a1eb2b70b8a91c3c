import torch

from fafed.models import MLP


def test_shapes():
    model = MLP(6, [5, 4], 3)
    assert [tuple(p.shape) for p in model.parameters()] == [
        (5, 6),
        (5,),
        (4, 5),
        (4,),
        (3, 4),
        (3,),
    ]
    assert model(torch.zeros(2, 1, 2, 3)).shape == (2, 3)
    assert sum(p.numel() for p in MLP().parameters()) == 784 * 200 + 200 + 200 * 10 + 10


def test_no_hidden_layer_is_linear():
    model = MLP(4, (), 2)
    x = torch.randn(3, 4)
    assert torch.allclose(model(x) + model(-x), 2 * model(torch.zeros(3, 4)), atol=1e-6)
