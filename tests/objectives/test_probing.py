"""What is refused, and what is chosen, on the first batch."""

from __future__ import annotations

import pytest
import torch
from modules import batch
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.objectives.module import Model

CLIENTS = [tuple(batch(12, seed=s).data) for s in range(2)]


def train(module=None, loss=F.cross_entropy, clients=CLIENTS, **options):
    module = nn.Linear(6, 3).double() if module is None else module
    call = {"rounds": 1, "local_steps": 1, "batch_size": 4, **options}
    return fafed.train(module, clients, fafed.FedAvg(eta=0.1), loss=loss, **call)


LOSSES = {
    "detached": lambda outputs, targets: F.cross_entropy(outputs.detach(), targets),
    "argmax": lambda outputs, targets: (outputs.argmax(1) != targets).double().mean(),
    "integers": lambda outputs, targets: (outputs.argmax(1) != targets).sum(),
    "a number": lambda outputs, targets: torch.tensor(F.cross_entropy(outputs, targets).item()),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
def test_a_loss_without_a_gradient_is_refused(name, engine):
    with pytest.raises(fafed.ConfigError, match=r"cannot be differentiated.*F.cross_entropy"):
        train(loss=LOSSES[name], engine=engine)


def test_a_model_whose_backward_pass_fails_is_refused():
    class Overwrites(nn.Linear):
        def forward(self, x):
            y = super().forward(x).exp()
            return y * y.add_(1)

    with pytest.raises(fafed.ConfigError, match="Overwrites: the gradient cannot be computed"):
        train(Overwrites(6, 3).double())


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_one_hot_targets(loss):
    one_hot = [(x, F.one_hot(y, 3)) for x, y in CLIENTS]
    with pytest.raises(fafed.ConfigError, match=r"targets.argmax\(1\)"):
        train(loss=loss, clients=one_hot)
    torch.manual_seed(0)
    module = nn.Linear(6, 3).double()
    shares = [(x, y.double()) for x, y in one_hot]  # torch takes these for probabilities
    found = train(module, loss, shares, engine="loop")
    torch.testing.assert_close(found.x, train(module, loss, engine="loop").x)


def test_a_lazy_layer_is_refused_with_the_cure():
    with pytest.raises(fafed.ConfigError, match="lazy layer's: call the model on one batch first"):
        train(nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        (
            (12, 3, 8, 8),
            torch.uint8,
            r"hold torch.uint8: give floats, such as pixels.float\(\) / 255",
        ),
        ((12, 8, 8, 3), torch.float32, r"channels first: \.permute\(2, 0, 1\)"),
        ((12, 8, 8, 3), torch.uint8, r"/ 255; .*\.permute\(2, 0, 1\)"),
    ],
)
def test_pictures_as_they_come_from_files_are_refused_with_the_cure(shape, kind, words):
    data = (torch.zeros(shape, dtype=kind), torch.arange(12) % 3)
    with pytest.raises(fafed.ConfigError, match=words):
        train(images(), clients=[data])


def images(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


NORMS = [None, nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.InstanceNorm2d(4)]


@pytest.mark.parametrize("norm", NORMS)
def test_no_norm_is_trained_with_channels_last(norm):
    """BatchNorm's gradients lose three digits there, and the others take longer."""
    data = batch(8)._replace(data=(torch.randn(8, 3, 8, 8), torch.randint(0, 3, (8,))))
    goal = Model(images(*([] if norm is None else [norm])), F.cross_entropy)
    goal.probe(data)
    assert goal.channels_last == (norm is None)


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_a_softmax_before_a_cross_entropy_is_told(loss, caplog):
    torch.manual_seed(0)
    plain = nn.Linear(6, 3).double()
    train(plain, loss)
    train(nn.Sequential(plain, nn.LogSoftmax(1)), loss)
    train(nn.Sequential(plain, nn.Softmax(1)), lambda outputs, y: F.nll_loss(outputs.log(), y))
    assert "probabilities" not in caplog.text
    train(nn.Sequential(plain, nn.Softmax(1)), loss)
    assert "Sequential returns probabilities" in caplog.text
    assert "leave out the model's own" in caplog.text


def test_a_loss_that_is_a_sum_is_told(caplog):
    def weighted(outputs, targets):  # a mean that counts some labels twice
        return F.cross_entropy(outputs, targets, torch.tensor([1.0, 2.0, 1.0]).double())

    for loss in (F.cross_entropy, weighted, nn.CrossEntropyLoss(label_smoothing=0.1)):
        train(loss=loss)
    of_length = train(loss=lambda o, t: F.cross_entropy(o, t) if len(t) <= 4 else 1 / 0)
    assert of_length.finished
    assert "sum over the batch" not in caplog.text
    train(loss=nn.CrossEntropyLoss(reduction="sum"))
    assert "loss seems to be a sum over the batch" in caplog.text


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([(x, y[:, None]) for x, y in CLIENTS], r"no axis of their own: give targets\[:, 0\]$"),
        ([(x.long(), y) for x, y in CLIENTS], r"the inputs hold torch.int64: .* inputs.float\(\)$"),
    ],
)
def test_numbers_of_another_kind_are_refused_with_the_cure(clients, words):
    with pytest.raises(fafed.ConfigError, match=words):
        train(clients=clients)
