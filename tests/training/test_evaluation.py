"""Losses and metrics of the server's model, whoever computes them."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from modules import batch, model
from torch import nn
from torch.nn import functional as F

from fafed.core.batch import Batch
from fafed.data.sources.streams import passage
from fafed.models import LSTMLanguageModel, token_cross_entropy
from fafed.objectives.metrics import accuracy
from fafed.objectives.module import Model
from fafed.training.evaluation import chunks, evaluator

WORKERS = [1, 2, 5]


def convolutions():
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    return norm.double(), (torch.randn(37, 1, 6, 6).double(), torch.randint(0, 3, (37,)))


@pytest.mark.parametrize("workers", WORKERS)
def test_means_over_the_examples_not_over_the_batches(workers):
    module, data = convolutions()
    objective = model(module, Batch(data, torch.tensor(0), torch.tensor(True)))
    buffers = objective.start().buffers
    parts = {"test": lambda: chunks(data, 10), "train": lambda: chunks(data, 37)}
    found = evaluator(objective, parts, {"accuracy": accuracy}, workers=workers)(
        objective.x0, buffers
    )
    with torch.no_grad():
        outputs = objective.predict(objective.x0, buffers)(data[0])
    expected = {"loss": F.cross_entropy(outputs, data[1]), "accuracy": accuracy(outputs, data[1])}
    for part in parts:
        assert found[part] == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-12)
    assert all(m.training for m in objective.module.modules())


def test_no_digit_depends_on_the_workers():
    module, data = convolutions()
    objective = model(module.float(), Batch((data[0].float(), data[1]), *batch()[1:]))
    parts = {"test": lambda: chunks(data, 4)}
    found = [
        evaluator(objective, parts, {}, workers=workers)(objective.x0, objective.start().buffers)
        for workers in WORKERS
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_text_is_read_from_its_beginning_to_its_end(workers, fused):
    torch.manual_seed(0)
    module = LSTMLanguageModel(vocabulary=19, embedding=5, hidden=4).double()
    own = (
        token_cross_entropy
        if fused
        else lambda logits, targets: token_cross_entropy(logits, targets)
    )
    objective = Model(module, own)
    assert objective.fused == fused
    text = torch.randint(0, 19, (203,))
    objective.probe(next(iter(passage(text, columns=3, bptt=7))))
    parts = {
        "test": lambda: passage(text, columns=3, bptt=7),
        "validation": lambda: passage(text[:90], columns=3, bptt=7),
    }
    found = evaluator(objective, parts, {}, workers=workers)(objective.x0, ())
    module.eval()
    for part, tokens in {"test": text, "validation": text[:90]}.items():
        grid = tokens[: len(tokens) // 3 * 3].reshape(3, -1)
        with torch.no_grad():
            logits, _ = module(grid[:, :-1], module.initial_state(3))
        assert found[part]["loss"] == pytest.approx(float(own(logits, grid[:, 1:])), rel=1e-12)


def test_nothing_to_measure_on():
    assert evaluator(model(nn.Linear(6, 3).double(), batch()), {}, {}) is None


def test_metrics_that_keep_a_state_are_called_one_at_a_time():
    """As those of well-known packages do, which forget their sums and put them back in a call."""
    inside = threading.Lock()

    def metric(outputs, targets):
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        inside.release()
        return 1.0

    objective = model(nn.Linear(6, 3).double(), batch())
    parts = {"test": lambda: chunks(batch(n=40).data, 2)}
    found = evaluator(objective, parts, {"own": metric}, workers=4)(objective.x0, ())
    assert found["test"]["own"] == 1.0


class Noisy(nn.Module):
    """Draws numbers when it is measured, too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x) + torch.randn(len(x), 3, dtype=x.dtype)


def test_a_model_that_draws_numbers_measures_the_same_each_time():
    objective = model(Noisy().double(), batch())
    before = torch.get_rng_state()
    parts = {"test": lambda: chunks(batch(n=40).data, 3)}
    found = [
        evaluator(objective, parts, {}, workers=workers)(objective.x0, ()) for workers in WORKERS
    ]
    assert found[0] == found[1] == found[2]
    assert torch.equal(torch.get_rng_state(), before)
