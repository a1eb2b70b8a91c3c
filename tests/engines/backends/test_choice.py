"""Which back end "auto" takes, and what it says about it."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import fafed
from fafed.kernels.build import available


def clients(*shape):
    noise = torch.Generator().manual_seed(0)
    return [(torch.randn(8, *shape, generator=noise), torch.arange(8) % 3) for _ in range(3)]


def train(module, *shape, engine="auto"):
    return fafed.train(
        module,
        clients(*shape),
        fafed.FedAvg(eta=0.1),
        rounds=1,
        local_steps=1,
        batch_size=4,
        engine=engine,
    )


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.last = kind(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


class Cells(Recurrent):
    def __init__(self):
        super().__init__(nn.GRU)
        self.layer = nn.GRUCell(5, 6)

    def forward(self, x):
        hidden = x.new_zeros(len(x), 6)
        for part in x.unbind(1):
            hidden = self.layer(part, hidden)
        return self.last(hidden)


@pytest.mark.parametrize("make", [lambda: Recurrent(nn.LSTM), lambda: Recurrent(nn.GRU), Cells])
def test_recurrent_layers_run_in_the_loop(make, caplog):
    with caplog.at_level(logging.INFO, "fafed"):
        assert train(make(), 7, 5).engine == "loop"
    assert "engine: loop (not native: the model is not" in caplog.text
    assert "not vmap: torch has no fast recurrent layers under vmap" in caplog.text


def test_large_gradients_run_in_the_loop(caplog):
    large = nn.Sequential(nn.Linear(6, 2000), nn.Softplus(), nn.Linear(2000, 2000), nn.Softplus())
    with caplog.at_level(logging.INFO, "fafed"):
        assert train(large, 6).engine == "loop"
    assert "not vmap: a gradient takes 9.6e+07 operations, more than 3e+07" in caplog.text


@pytest.mark.skipif(not available(torch.float32), reason="needs a C compiler")
def test_a_small_network_runs_in_c(caplog):
    with caplog.at_level(logging.INFO, "fafed"):
        assert train(nn.Linear(6, 3), 6).engine == "native"
    assert "engine: native (the fastest that supports this model)" in caplog.text


def test_a_missing_compiler_is_told_once(caplog, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert train(nn.Linear(6, 3), 6).engine == "vmap"
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "native would run this model about ten times faster" in told
    assert "install a C compiler, or set CC" in told
    caplog.clear()
    train(Cells(), 7, 5)  # not one that C could run
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
