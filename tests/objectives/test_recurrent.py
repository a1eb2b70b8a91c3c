"""Recurrent models: the state that is carried, and losses that a module computes itself."""

from __future__ import annotations

import pytest
import torch
from modules import batch, model
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.core.batch import Batch
from fafed.engines.client import Oracle
from fafed.models import LSTMLanguageModel, token_cross_entropy
from fafed.objectives.base import Memory
from fafed.objectives.module import Model


class Cell(nn.Module):
    """h <- tanh(W x + U h); the output is read off h."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def initial_state(self, batch_size):
        return (self.w.weight.new_zeros(batch_size, 5),)

    def forward(self, x, state):
        (h,) = state
        h = torch.tanh(self.w(x) + self.u(h))
        return self.out(h), (h,)


def test_hidden_state_is_carried_from_the_current_point_and_shared_by_both_gradients():
    torch.manual_seed(0)
    first, second = batch(seed=1, fresh=True), batch(seed=2, fresh=False)
    objective = model(Cell().double(), first)
    oracle = Oracle(objective, Memory())
    x, y = objective.x0, objective.x0 + 0.1
    oracle(x, first)
    (h,) = oracle.after.hidden
    oracle(y, first)  # at the old point: leaves no trace
    assert oracle.after.hidden[0] is h
    current, old = oracle(x, second), oracle(y, second)
    for point, found in [(x, current), (y, old)]:
        module = objective.predict(point, ())
        out, _ = module(second.data[0], (h,))
        grads = torch.autograd.grad(F.cross_entropy(out, second.data[1]), module.parameters())
        torch.testing.assert_close(found, torch.cat([g.reshape(-1) for g in grads]))
    assert not h.requires_grad


def test_fresh_batches_start_from_the_initial_state():
    torch.manual_seed(0)
    first, second = batch(seed=1), batch(seed=2)
    objective = model(Cell().double(), first)
    carried = objective.evaluate(objective.x0, first, Memory()).memory
    a = objective.evaluate(objective.x0, second, carried).gradient
    b = objective.evaluate(objective.x0, second, Memory()).gradient
    assert torch.equal(a, b)


def test_recurrent_models_are_the_same_in_both_engines():
    torch.manual_seed(0)
    clients = [tuple(batch(12, seed=s).data) for s in range(3)]
    common = {"rounds": 2, "local_steps": 2, "batch_size": 4, "participation": [[0, 1], [0, 1, 2]]}
    module = Cell().double()
    loop, vmap = (
        fafed.train(module, clients, fafed.STEM(0.05), **common, engine=engine).x
        for engine in ("loop", "vmap")
    )
    torch.testing.assert_close(loop, vmap, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    "algorithm",
    [
        fafed.SCAFFOLD(0.05, control="full", wire="full"),
        fafed.Mime(0.05),
        fafed.MimeLite(0.05),
        fafed.FedGLOMO(0.05, anchor="batch"),
    ],
    ids=lambda a: type(a).__name__,
)
def test_an_anchor_or_full_pass_leaves_the_recurrent_state_alone(algorithm, engine):
    torch.manual_seed(0)
    clients = [tuple(batch(12, seed=s).data) for s in range(3)]
    common = {"rounds": 2, "local_steps": 2, "batch_size": 4, "opening_batch_size": 6}
    result = fafed.train(Cell().double(), clients, algorithm, **common, engine=engine)
    assert result.history[-1].round == 2


def test_a_module_that_computes_its_loss_is_asked_to():
    torch.manual_seed(0)
    module = LSTMLanguageModel(vocabulary=600, embedding=4, hidden=5).double()
    tokens, targets = torch.randint(600, (2, 3, 6))
    example = Batch((tokens, targets), torch.tensor(7), torch.tensor(True))
    losses = token_cross_entropy, lambda logits, targets: token_cross_entropy(logits, targets)
    objectives = [Model(module, loss, clip=0.01) for loss in losses]
    found = []
    for objective in objectives:
        objective.probe(example)
        found.append(objective.evaluate(objective.x0, example, Memory()))
    assert [objective.fused for objective in objectives] == [True, False]
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-15)


def test_a_module_that_computes_its_loss_runs_in_the_loop(recwarn):
    torch.manual_seed(0)
    clients = [tuple(torch.randint(20, (2, 8, 6))) for _ in range(2)]
    common = {"rounds": 1, "local_steps": 2, "batch_size": 4, "loss": token_cross_entropy}
    module = LSTMLanguageModel(vocabulary=20, embedding=4, hidden=5)
    assert fafed.train(module, clients, fafed.FAFED(), **common).engine == "loop"
    assert not recwarn.list  # vmap was not even tried


def test_lstm_runs_in_the_loop():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.lstm(x[:, None])[0][:, -1])

    clients = [tuple(batch(12, seed=s).data) for s in range(2)]
    common = {"rounds": 1, "local_steps": 2, "batch_size": 4}
    result = fafed.train(Reader().double(), clients, fafed.FAFED(), **common)
    assert result.engine == "loop"
    with pytest.raises(fafed.ConfigError, match="vmap"):
        fafed.train(Reader().double(), clients, fafed.FAFED(), **common, engine="vmap")


class OneTensor(Cell):
    """Its state is a tensor, not a tuple of them."""

    def initial_state(self, batch_size):
        return super().initial_state(batch_size)[0]

    def forward(self, x, state):
        outputs, (h,) = super().forward(x, (state,))
        return outputs, h


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_state_may_be_one_tensor(engine):
    results = []
    for kind in (Cell, OneTensor):
        torch.manual_seed(0)
        clients = [batch(n=30, seed=i).data for i in range(3)]
        call = {"rounds": 2, "local_steps": 3, "batch_size": 4, "engine": engine}
        results.append(fafed.train(kind().double(), clients, fafed.FAFED(eta=0.1), **call).x)
    assert torch.equal(*results)
