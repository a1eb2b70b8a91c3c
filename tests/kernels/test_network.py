"""The hand-written gradients are autograd's, and are used where they may be and nowhere else."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fafed.core.batch import Picked
from fafed.kernels import network as native
from fafed.kernels.build import available
from fafed.kernels.network import recognised
from fafed.models import MLP, CifarCNN, FashionCNN, MnistCNN, SoftmaxRegression

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="needs a C compiler")

SHAPES = {
    FashionCNN: (1, 28, 28),
    MnistCNN: (1, 28, 28),
    CifarCNN: (3, 32, 32),
    MLP: (1, 28, 28),
    SoftmaxRegression: (784,),
}


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def by_autograd(module: nn.Module, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple:
    parts = torch.split(x, [p.numel() for p in module.parameters()])
    with torch.no_grad():
        for p, part in zip(module.parameters(), parts, strict=True):
            p.copy_(part.view_as(p))
    outputs = module(inputs)
    loss = F.cross_entropy(outputs, targets)
    grads = torch.autograd.grad(loss, list(module.parameters()))
    return torch.cat([g.reshape(-1) for g in grads]), loss.detach(), outputs.detach()


def compare(module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """For several clients at once, each with its own vector and batch."""
    module = module.double()
    known = recognised(module, F.cross_entropy)
    assert known is not None
    assert known.takes(inputs[0], targets[0])
    torch.manual_seed(0)
    x0 = flat(module)
    x = x0 + 0.1 * torch.randn(len(inputs), len(x0), dtype=x0.dtype)
    g, loss = torch.func.vmap(known.gradient)(x, inputs, targets)

    rows = torch.randperm(targets.numel()).reshape(targets.shape)
    pool = torch.empty_like(inputs).flatten(0, 1)
    pool[rows.flatten()] = inputs.flatten(0, 1)
    of_rows = torch.func.vmap(lambda x, rows, t: known.gradient(x, Picked(rows, pool), t))
    assert torch.equal(of_rows(x, rows, targets)[0], g)

    for i in range(len(inputs)):
        want, value, outputs = by_autograd(module, x[i], inputs[i], targets[i])
        torch.testing.assert_close(g[i], want, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(loss[i], value, rtol=1e-12, atol=0)
        torch.testing.assert_close(known.outputs(x[i], inputs[i]), outputs, rtol=1e-11, atol=1e-13)
        one, _ = known.gradient(x[i], inputs[i], targets[i])
        torch.testing.assert_close(one, want, rtol=1e-11, atol=1e-13)


def batches(n: int, b: int, shape: tuple[int, ...], classes: int = 10) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    # few different values: pools meet ties, which must be broken as torch does
    return torch.randint(-1, 3, (n, b, *shape)).double(), torch.randint(classes, (n, b))


@pytest.mark.parametrize("kind", SHAPES)
def test_our_models(kind):
    compare(kind(), *batches(3, 5, SHAPES[kind]))


@settings(deadline=None, max_examples=40)
@given(
    kernel=st.integers(1, 4),
    padding=st.integers(0, 2),
    size=st.tuples(st.integers(9, 14), st.integers(9, 14)),
    channels=st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(1, 3)),
    bias=st.booleans(),
    activation=st.sampled_from([nn.Tanh, nn.ReLU, None]),
    pool_last=st.booleans(),
    convolutions=st.integers(1, 2),
)
def test_any_plain_network(
    kernel, padding, size, channels, bias, activation, pool_last, convolutions
):
    layers: list[nn.Module] = []
    for c, out in list(pairwise(channels))[:convolutions]:
        act = [activation()] if activation else []
        pool = [nn.MaxPool2d(2)]
        conv = nn.Conv2d(c, out, kernel, padding=padding, bias=bias)
        layers += [conv, *(act + pool if pool_last else pool + act)]
    shape = (channels[0], *size)
    with torch.no_grad():
        try:
            features = nn.Sequential(*layers)(torch.zeros(1, *shape)).numel()
        except RuntimeError:  # the image got smaller than the kernel
            return
    if not features:
        return
    layers += [nn.Flatten(), nn.Linear(features, 6, bias=bias), nn.ReLU(), nn.Linear(6, 4)]
    compare(nn.Sequential(*layers), *batches(2, 3, shape, 4))


def test_a_batch_in_pieces(monkeypatch):
    monkeypatch.setattr(native, "ROOM", 40_000)  # of two examples, or three
    compare(FashionCNN(), *batches(4, 5, (1, 28, 28)))


@pytest.mark.parametrize("channels", [17, 40, 90])
def test_rows_of_patches_of_several_vectors(channels):
    layers = [nn.Conv2d(2, channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(channels, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)]
    compare(nn.Sequential(*layers), *batches(2, 3, (2, 13, 12), 4))


@pytest.mark.parametrize("room", [40_000, native.ROOM])
@pytest.mark.parametrize("model", [FashionCNN, MLP, "wide"])
def test_clipped_sums_are_those_of_single_gradients(model, room, monkeypatch):
    """Also in pieces, with labels that do not count, and with an example that is not finite."""
    monkeypatch.setattr(native, "ROOM", room)
    wide = [nn.Conv2d(2, 20, 3, padding=1), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(20, 3, 3)]
    wide += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4, bias=False)]
    module = (nn.Sequential(*wide) if model == "wide" else model()).double()
    shape = (2, 13, 12) if model == "wide" else SHAPES[model]
    known = recognised(module, F.cross_entropy)
    (inputs, *_), (targets, *_) = batches(1, 7, shape, 4)
    targets[2], x = -100, flat(module)
    alone = torch.stack(
        [known.gradient(x, inputs[i : i + 1], targets[i : i + 1])[0] for i in range(7)]
    )
    alone[2] = 0  # autograd's mean of no labels is no number
    norms = alone.norm(dim=1)
    clip = float(norms.median())

    def check(which):
        found, lengths = known.clipped_sum(x[None], torch.ones(1), inputs, targets, clip)
        due = (alone * (clip / norms.clamp(min=clip))[:, None])[which].sum(0)
        assert torch.allclose(found, due, rtol=1e-11, atol=1e-13)
        assert torch.allclose(lengths[which], norms[which], rtol=1e-12)
        return lengths

    check(slice(None))
    inputs[4, ..., 0] = math.inf
    lengths = check([0, 1, 2, 3, 5, 6])
    assert not lengths[4].isfinite()


def test_a_single_matrix():
    compare(nn.Linear(20, 3), *batches(2, 4, (20,), classes=3))


def test_an_activation_at_the_end():
    compare(nn.Sequential(nn.Linear(12, 7), nn.Tanh()), *batches(3, 6, (12,), 7))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (17, 16), (40, 65), (5, 130), (33, 7)])
@pytest.mark.parametrize("b", [1, 7])
def test_rows_shorter_and_longer_than_a_vector(sizes, b):
    inputs, hidden = sizes
    module = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    compare(module, *batches(2, b, (inputs,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanh(dtype):
    """Through a network that is nothing else."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 2)).to(dtype)
    known = recognised(module, F.cross_entropy)
    x = torch.tensor([1, 1, 0, 0, 0], dtype=dtype)
    z = torch.cat([torch.linspace(-25, 25, 20_001), torch.logspace(-30, 1, 1_000)]).to(dtype)[
        :, None
    ]
    got, want = known.outputs(x, z)[:, 0], torch.tanh(z)[:, 0]
    torch.testing.assert_close(got, want, rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanh_of_what_is_no_number_or_infinite(dtype, value):
    module = nn.Sequential(nn.Linear(1, 19, bias=False), nn.Tanh()).to(dtype)
    known = recognised(module, F.cross_entropy)
    z = torch.full((3, 1), 0.5, dtype=dtype)
    z[1] = value
    got = known.outputs(torch.ones(19, dtype=dtype), z)
    torch.testing.assert_close(got, torch.tanh(z).expand(3, 19), equal_nan=True)


@pytest.mark.parametrize("tied", ["all four", "lower two"])
@pytest.mark.parametrize("channels", [1, 40])  # gradients spread in place, and gathered
@pytest.mark.parametrize("activation", [[], [nn.Tanh()], [nn.ReLU()]])
def test_of_tied_values_a_pool_takes_the_first(channels, activation, tied):
    """A convolution that sees nothing, or every second row, of patches that differ elsewhere."""
    layers = [nn.Conv2d(channels, 3, 3, padding=1), nn.MaxPool2d(2), *activation]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 4 * 5, 4)).double()
    torch.manual_seed(0)
    inputs, targets = -torch.rand(6, channels, 8, 10).double(), torch.randint(4, (6,))
    with torch.no_grad():
        module[0].weight.zero_()
        if tied == "lower two":
            inputs[:, 0, 1::2] = 1
            module[0].weight[:, 0, 1, 1] = 1
        module[0].bias.fill_(0.5)
    x = flat(module)
    want, _, _ = by_autograd(module, x, inputs, targets)
    g, _ = recognised(module, F.cross_entropy).gradient(x, inputs, targets)
    torch.testing.assert_close(g, want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("place", ["weights", "inputs"])
def test_what_is_not_a_number_stays_so(place):
    known = recognised(FashionCNN(), F.cross_entropy)
    inputs, targets = batches(1, 2, (1, 28, 28))
    x, images = flat(FashionCNN()), inputs[0].float()
    (x if place == "weights" else images.view(2, -1)[1])[3] = torch.nan
    g, loss = known.gradient(x, images, targets[0])
    assert loss.isnan()
    assert g.isnan().any()


def test_a_target_that_is_no_class_is_refused():
    known = recognised(nn.Sequential(nn.Linear(3, 2)), F.cross_entropy)
    with pytest.raises(IndexError, match="target 2 is out of bounds"):
        known.gradient(torch.zeros(8), torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]))


def test_ignored_targets_do_not_count():
    inputs, targets = batches(3, 6, (12,))
    targets[0, :4] = -100
    targets[2, 5] = -100
    compare(nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 10)), inputs, targets)


def test_memory_is_not_shared_between_calls():
    known = recognised(FashionCNN(), F.cross_entropy)
    x = flat(FashionCNN())
    inputs, targets = batches(2, 5, (1, 28, 28))
    first, loss = known.gradient(x, inputs[0].float(), targets[0])
    logits = known.outputs(x, inputs[0].float())
    kept = first.clone(), loss.clone(), logits.clone()
    known.gradient(x + 1, inputs[1].float(), targets[1])
    known.outputs(x + 1, inputs[1].float())
    assert all(map(torch.equal, (first, loss, logits), kept))


class Shouting(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    module[0].weight.requires_grad_(False)
    return module


def shared() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    return module


class Extra(nn.Sequential):
    """With a parameter that is no layer's."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.temperature = nn.Parameter(torch.ones(()))


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return module


@pytest.mark.parametrize(
    "module",
    [
        Shouting(nn.Linear(3, 2)),
        frozen(),
        hooked(),
        shared(),
        Extra(nn.Linear(3, 2)),
        nn.Sequential(*(nn.Linear(3, 3) for _ in range(65))),
        nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(
            nn.Conv2d(1, 1, 3), nn.Tanh(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)
        ),
        nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 3), nn.MaxPool2d(2), nn.Linear(3, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 3, stride=2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 2)).half(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_anything_else_is_left_to_torch(module):
    assert recognised(module, F.cross_entropy) is None


def test_another_loss_is_left_to_torch():
    assert recognised(nn.Sequential(nn.Linear(3, 2)), F.mse_loss) is None


@pytest.mark.parametrize("shape", [(1, 14, 14), (3, 2, 9), (2, 14, 14), (3, 15)])
def test_images_of_another_shape_are_refused(shape):
    layers = nn.Conv2d(3, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    known = recognised(nn.Sequential(*layers), F.cross_entropy)
    with pytest.raises(ValueError, match="cannot take"):
        known.outputs(torch.zeros(known.parameters), torch.zeros(2, *shape))


def test_strange_batches_are_left_to_torch():
    known = recognised(nn.Sequential(nn.Linear(3, 2)), F.cross_entropy)
    assert known.takes(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64))
    assert not known.takes(torch.zeros(5, 4, 3), torch.zeros(5, dtype=torch.int64))
    assert not known.takes(torch.zeros(5, 3), torch.zeros(5, 2))  # probabilities
