"""Clients that train alone, and one client with all data."""

from __future__ import annotations

import math

import pytest
import torch
from modules import batch
from small import experiment, write_data
from torch import nn

import fafed
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.grid import grid
from fafed.experiments.rundir import RunDir
from fafed.objectives.metrics import accuracy

SHARDS = [batch(n=12 + i, seed=i).data for i in range(4)]
TESTS = [batch(n=6, seed=50 + i).data for i in range(4)]
COMMON = {"rounds": 3, "local_steps": 2, "batch_size": 4, "seed": 2}


def net():
    torch.manual_seed(0)
    layers = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", ["fedavg", "fafed", "scaffold"])
def test_local_is_one_run_for_each_client(name, workers):
    algorithm = fafed.ALGORITHMS[name](eta=0.05)
    common = COMMON | {"test": TESTS[0], "metrics": {"accuracy": accuracy}}
    found = fafed.train(
        net(), SHARDS, algorithm, **common, client_test=TESTS, baseline="local", workers=workers
    )
    alone = [
        fafed.train(net(), [shard], algorithm, **common, client_test=[own])
        for shard, own in zip(SHARDS, TESTS, strict=True)
    ]
    torch.testing.assert_close(found.x, sum(one.x for one in alone) / 4)
    for number in range(3):
        record, own = found.history[number], [one.history[number] for one in alone]
        assert record.client_values["test"]["accuracy"] == [one.test["accuracy"] for one in own]
        assert record.client_values["clients_test"]["loss"] == [
            one.clients_test["loss"]["mean"] for one in own
        ]
        assert record.test["loss"] == pytest.approx(sum(one.test["loss"] for one in own) / 4)
        assert record.train_loss == pytest.approx(sum(one.train_loss for one in own) / 4)
        assert record.gradients == sum(one.gradients for one in own)
        assert (record.bytes_up, record.bytes_down, record.clients) == (0, 0, 4)


def test_pooled_is_one_client_with_all_data_and_as_many_gradients():
    federated = fafed.train(net(), SHARDS, fafed.FedAvg(0.05), **COMMON)
    found = fafed.train(
        net(), SHARDS, fafed.FedAvg(0.05), **COMMON, client_test=TESTS, baseline="pooled"
    )
    together = tuple(torch.cat(parts) for parts in zip(*SHARDS, strict=True))
    same = fafed.train(net(), [together], fafed.FedAvg(0.05), **COMMON | {"local_steps": 8})
    assert torch.equal(found.x, same.x)
    assert found.history[-1].gradients == federated.history[-1].gradients
    assert found.history[-1].samples == federated.history[-1].samples
    assert found.history[-1].clients_test["loss"]["clients"] == 4
    few = fafed.train(
        net(), SHARDS, fafed.FedAvg(0.05), **COMMON, participation=0.5, baseline="pooled"
    )
    assert few.history[-1].steps == 3 * 2 * 2


def test_a_client_that_diverges_alone_is_named_and_the_round_undone():
    shards = [*SHARDS[:2], (torch.full_like(SHARDS[2][0], math.inf), SHARDS[2][1])]
    with pytest.raises(fafed.Diverged, match="round 1: client 2 produced a non-finite") as error:
        fafed.train(net(), shards, fafed.FedAvg(), **COMMON, baseline="local")
    assert error.value.client == 2


def small(tmp_path, **changes):
    write_data(tmp_path / "data")
    content = experiment(tmp_path / "data", **changes)
    content["data"] = {"folder": str(tmp_path / "data"), "client_test": 0.2}
    return Experiment.from_dict(content)


@pytest.mark.parametrize("baseline", ["local", "pooled"])
def test_a_baseline_goes_on_after_a_stop(tmp_path, baseline):
    whole = small(tmp_path, baseline=baseline, rounds=4)
    at_once, stopped = (RunDir(tmp_path / name) for name in ("whole", "stopped"))
    execute(whole, at_once)

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(whole, stopped, stop)
    execute(whole, stopped)

    def shown(record):
        return record.to_dict() | {"seconds": None}

    first, second = at_once.records(), stopped.records()
    assert list(map(shown, first)) == list(map(shown, second))
    assert len(first) == 4


def test_compare_adds_the_baselines(tmp_path):
    plan = grid(small(tmp_path), ["fedavg", "fafed"], 2, ["local", "pooled"])
    assert [(e.algorithm.name, e.baseline, e.seed) for e in plan[2:]] == [
        ("fafed", None, 0),
        ("fafed", None, 1),
        ("fafed", "local", 0),
        ("fafed", "local", 1),
        ("fafed", "pooled", 0),
        ("fafed", "pooled", 1),
    ]
    assert len({e.label for e in plan}) == 8


def test_what_a_baseline_cannot_do(tmp_path):
    with pytest.raises(fafed.ConfigError, match="baseline must be 'local', 'pooled' or None"):
        fafed.train(net(), SHARDS, fafed.FedAvg(), **COMMON, baseline="central")
    with pytest.raises(fafed.ConfigError, match="has no server's model: leave out personalise"):
        prepare(small(tmp_path, baseline="local", personalise=2))
