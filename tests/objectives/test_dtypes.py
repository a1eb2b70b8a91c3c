"""Parameters of several types, mixed precision, and compiled modules."""

from __future__ import annotations

import logging

import pytest
import torch
from modules import batch
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.objectives.module import Model

CLIENTS = [
    tuple(part.float() if part.is_floating_point() else part for part in batch(12, seed=s).data)
    for s in range(3)
]
CALL = {"rounds": 2, "local_steps": 3, "batch_size": 4, "test": CLIENTS[0]}


def train(module, **options):
    return fafed.train(module, CLIENTS, fafed.FAFED(eta=0.1), **{**CALL, **options})


class Mixed(nn.Module):
    """A frozen base and a head in bfloat16, and an adapter in float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(6, 8).bfloat16().requires_grad_(False)
        self.adapter = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3).bfloat16()

    def forward(self, x):
        hidden = self.base(x.bfloat16()) + self.adapter(x.float()).bfloat16()
        return self.head(hidden.tanh()).float()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_each_parameter_keeps_its_type(engine):
    module = Mixed()
    found = train(module, engine=engine)
    assert found.x.dtype == torch.float32
    assert found.x.numel() == 6 * 8 + 8 + 8 * 3 + 3
    assert torch.equal(found.model.base.weight, module.base.weight)
    kinds = [p.dtype for p in found.model.parameters()]
    assert kinds == [p.dtype for p in module.parameters()]
    adapter = found.x[: 6 * 8].view(8, 6)
    assert torch.equal(found.model.adapter.weight, adapter)
    assert not torch.equal(adapter, module.adapter.weight)
    assert torch.equal(found.model.head.weight.reshape(-1), found.x[56:80].bfloat16())


def test_the_gradient_with_several_types_is_autograds():
    module, example = Mixed(), batch(8)
    data = (example.data[0].float(), example.data[1])
    example = example._replace(data=data)
    goal = Model(module, F.cross_entropy)
    goal.probe(example)
    found = goal.evaluate(goal.x0, goal.here(example), goal.start()).gradient
    loss = F.cross_entropy(module(data[0].bfloat16()), data[1])
    parts = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
    torch.testing.assert_close(found, torch.cat([p.reshape(-1).float() for p in parts]))


# Mixed precision.


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


class Tells(nn.Module):
    """A layer that remembers the types that it has computed, with all its copies."""

    seen = set()  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        out = self.layer(x)
        self.seen.add((self.training, out.dtype))
        return out


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_amp_reaches_every_thread_in_training_and_evaluation(engine, workers):
    Tells.seen.clear()
    train(Tells(), amp="bf16", workers=workers, engine=engine)
    assert Tells.seen == {(True, torch.bfloat16), (False, torch.bfloat16)}


def test_amp_is_torchs_autocast():
    example = batch(8)
    example = example._replace(data=(example.data[0].float(), example.data[1]))
    goal, module = Model(Net(), F.cross_entropy, amp="bf16"), Net()
    goal.probe(example)
    assert goal.network is None  # it has one precision
    found = goal.evaluate(goal.x0, example, goal.start()).gradient
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(module(example.data[0]), example.data[1])
    parts = torch.autograd.grad(loss, list(module.parameters()))
    assert torch.equal(found, torch.cat([p.reshape(-1) for p in parts]))


def test_an_active_autocast_is_adopted_and_said(caplog):
    with caplog.at_level(logging.INFO), torch.autocast("cpu", torch.bfloat16):
        around = train(Net(), workers=2)
    assert "uses amp='bf16' in all its threads" in caplog.text
    assert torch.equal(around.x, train(Net(), amp="bf16", workers=2).x)


@pytest.mark.parametrize("amp", ["fp16", "float16", "bfloat16"])
def test_other_types_are_refused(amp):
    with pytest.raises(fafed.ConfigError, match="use 'bf16'"):
        train(Net(), amp=amp)


def test_an_active_autocast_in_float16_is_refused():
    with torch.autocast("cpu", torch.float16), pytest.raises(fafed.ConfigError, match="bfloat16"):
        train(Net())


# Compiled modules: `backend="eager"` compiles nothing, but wraps the module all the same.


def wrapped(module):
    return torch.compile(module, backend="eager")


def inside():
    module = Net()
    module[0] = wrapped(module[0])
    return module


def in_place():
    module = Net()
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize("build", [lambda: wrapped(Net()), inside, in_place])
@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
def test_a_compiled_module_is_trained_as_the_module_inside(build, engine):
    found, plain = train(build(), engine=engine), train(Net(), engine=engine)
    assert torch.equal(found.x, plain.x)
    assert list(found.model.state_dict()) == list(Net().state_dict())


def test_it_is_said_that_the_compiler_is_not_used(caplog):
    with caplog.at_level(logging.INFO):
        train(inside())
    assert "trained without the compiler: 0" in caplog.text
