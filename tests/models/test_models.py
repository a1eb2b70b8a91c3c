"""What holds for every model, and building them by name."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from fafed import models
from fafed.errors import ConfigError

SHAPES = {
    "mnist-cnn": (1, 28, 28),
    "fashion-cnn": (1, 28, 28),
    "cifar-cnn": (3, 32, 32),
    "resnet-gn": (3, 32, 32),
    "mlp": (1, 28, 28),
    "softmax": (1, 28, 28),
}


class Own(nn.Linear):
    """A user's own model, found by its path."""

    def __init__(self, width: int = 2) -> None:
        super().__init__(width, 1)


not_a_model = 3


@pytest.mark.parametrize("name", SHAPES)
def test_one_gradient_per_client_at_once(name):
    clients = [models.build(name, seed=seed) for seed in range(2)]
    x, y = torch.randn(2, 3, *SHAPES[name]), torch.randint(10, (2, 3))
    state, _ = stack_module_state(clients)
    state = {k: v.detach() for k, v in state.items()}

    def loss(parameters, x, y):
        logits = functional_call(clients[0], parameters, x)
        assert logits.shape == (3, 10)
        return F.cross_entropy(logits, y)

    stacked = vmap(grad(loss))(state, x, y)
    for i, model in enumerate(clients):
        F.cross_entropy(model(x[i]), y[i]).backward()
        for k, parameter in model.named_parameters():
            assert torch.allclose(stacked[k][i], parameter.grad, atol=1e-5), k


@pytest.mark.parametrize("name", SHAPES)
def test_seed_decides_the_beginning(name):
    one, same, other = (
        torch.cat([p.detach().flatten() for p in models.build(name, seed=seed).parameters()])
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (name == "softmax")  # which always begins at zero


def test_global_state_is_left_alone():
    before = torch.get_rng_state()
    models.build("mlp", seed=1)
    assert torch.equal(before, torch.get_rng_state())
    models.build("mlp")
    assert not torch.equal(before, torch.get_rng_state())


def test_own_model():
    assert models.build(f"{__name__}:Own", width=3).in_features == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist_cnn", {}, "no model is called 'mnist_cnn'; did you mean 'mnist-cnn'"),
        ("mlp", {"hiden": [3]}, "model 'mlp' has no option 'hiden'; it takes inputs, hidden"),
        ("mnist-cnn", {"width": 3}, "it takes none"),
        ("mlp", {"hidden": [0]}, r"MLP.hidden must be a positive integer, got 0"),
        ("mlp", {"hidden": 200}, r"MLP.hidden must be a list of widths, got 200"),
        ("softmax", {"inputs": 2.5}, "SoftmaxRegression.inputs"),
        ("lstm", {"layers": 0}, "LSTMLanguageModel.layers"),
        ("char-lstm", {"hidden": 0}, "CharLSTM.hidden"),
        ("resnet-gn", {"blocks": 3}, "ResNetGN.blocks must be a list of numbers, got 3"),
        ("resnet-gn", {"blocks": [1, 0]}, "ResNetGN.blocks must be a positive integer, got 0"),
        ("resnet-gn", {"width": 15}, "ResNetGN.width must be a multiple of groups = 2, got 15"),
        ("lstm", {"dropout": 1.0}, "LSTMLanguageModel.dropout"),
        ("no_such_module:Net", {}, "cannot be imported"),
        (f"{__name__}:Ow", {}, "did you mean 'Own'"),
        (f"{__name__}:Own", {"depth": 1}, "has no option 'depth'; it takes width"),
        (f"{__name__}:not_a_model", {}, "is a int, not a class"),
        ("builtins:dict", {}, "made a dict"),
    ],
)
def test_wrong_requests(name, options, message):
    with pytest.raises(ConfigError, match=message):
        models.build(name, **options)
