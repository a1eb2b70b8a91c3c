"""Algorithms x seeds from Python, on a real model."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn

import fafed
from fafed.experiments.rundir import all_runs

ALGORITHMS = {"plain": fafed.FedAvg(eta=0.1), "careful": fafed.FedAvg(eta=0.01)}


def clients(n=3):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (n, 20), generator=g)
    centres = torch.eye(3, 4)
    return [(centres[y] + 0.3 * torch.randn(20, 4, generator=g), y) for y in labels]


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def call(**changes):
    shards = clients()
    return {
        "model": net(),
        "clients": shards,
        "algorithms": ALGORITHMS,
        "seeds": (1, 2),
        "rounds": 3,
        "local_steps": 2,
        "batch_size": 5,
        "test": shards[0],
        "metrics": {"accuracy": fafed.metrics.accuracy},
    } | changes


class Late(fafed.schedules.Schedule):
    """0.1 for two rounds, then far too much."""

    def __call__(self, t):
        return torch.where(t <= 4, 0.1, torch.inf).double()


def test_every_algorithm_runs_with_every_seed():
    found = fafed.compare(**call())
    assert list(found.results) == [(a, s) for a in ALGORITHMS for s in (1, 2)]
    options = {k: v for k, v in call().items() if k not in ("algorithms", "seeds")}
    alone = fafed.train(**options, algorithm=ALGORITHMS["careful"], seed=2)
    assert torch.equal(found.results["careful", 2].x, alone.x)
    frame = found.frame()
    assert len(frame) == 2 * 2 * 3
    assert {"algorithm", "seed", "round", "train_loss", "test_accuracy"} <= set(frame.columns)
    one = frame[(frame.algorithm == "careful") & (frame.seed == 2)]
    assert list(one.test_accuracy) == [r.test["accuracy"] for r in alone.history]
    lines = repr(found).splitlines()
    assert any("plain" in line and "±" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_in_a_folder_it_goes_on_and_the_command_line_reads_it(tmp_path):
    done = []

    def stop(record):
        done.append(record)
        if len(done) == 5:
            signal.raise_signal(signal.SIGINT)

    found = fafed.compare(**call(folder=tmp_path, on_record=stop))
    assert not found.finished
    assert [len(result.history) for result in found.results.values()] == [3, 2]
    again = fafed.compare(**call(folder=tmp_path))
    whole = fafed.compare(**call())
    assert again.finished
    for key, result in whole.results.items():
        assert torch.equal(again.results[key].x, result.x)
    places = all_runs(tmp_path)
    assert len(places) == 4
    assert all(place.finished() and place.data().records for place in places)


def test_a_model_may_depend_on_the_seed_and_its_curve_is_still_one(tmp_path):
    found = fafed.compare(**call(model=net))
    assert repr(found).count("plain") == 1
    first, second = (found.results["plain", seed].x for seed in (1, 2))
    assert not torch.equal(first, second)
    page = found.report(tmp_path / "report", target=0.5)
    assert "careful" in page.read_text()
    assert found.figures(tmp_path / "figures")


def test_a_run_that_diverges_does_not_stop_the_others():
    wild = {"wild": fafed.FedAvg(eta=Late()), **ALGORITHMS}
    found = fafed.compare(**call(algorithms=wild, seeds=[1], rounds=6))
    assert found.finished
    assert [run.failure is None for run in found.runs] == [False, True, True]
    assert "wild-seed1: round 3: client 0 produced" in repr(found)
    assert len(found.results["wild", 1].history) == 2


def test_a_list_of_algorithms_gets_names():
    again = [fafed.FedAvg(eta=0.1), fafed.FedAvg(eta=0.2), fafed.FAFED(), fafed.FedAvg(eta=0.3)]
    found = fafed.compare(**call(algorithms=again, seeds=[0], rounds=1))
    assert [name for name, _ in found.results] == ["fedavg", "fedavg-2", "fafed", "fedavg-3"]
    alone = fafed.compare(**call(algorithms=fafed.FAFED(), seeds=[0], rounds=1))
    assert list(alone.results) == [("fafed", 0)]


def test_what_all_runs_warn_of_is_said_once(caplog):
    for _ in range(2):  # and again in the next comparison
        caplog.clear()
        fafed.compare(**call(rounds=1, batch_size=21))
        assert caplog.text.count("fewer than batch_size = 21") == 1


def test_what_is_wrong_with_the_last_run_comes_before_the_first():
    seen = []
    for change, words in (
        (
            {"algorithms": [fafed.FedAvg(), fafed.FedPD()], "participation": 0.5},
            "needs every client",
        ),
        ({"algorithms": [fafed.FedAvg(), fafed.Adam()]}, "runs with 1 client, got 3"),
        ({"seeds": (1, 2, -3)}, "seed must be an integer from 0"),
    ):
        with pytest.raises(fafed.ConfigError, match=words):
            fafed.compare(**call(**change, on_record=seen.append))
    assert not seen


def test_the_users_generator_is_where_it_would_be_without_the_check():
    """A function that makes a model may draw from it."""
    for algorithms in ([fafed.FedAvg()], [fafed.FedAvg(), fafed.FAFED()]):
        made = []

        def model(seed, made=made):
            made.append(nn.Linear(4, 3))
            return made[-1]

        wanted = call(model=model, algorithms=algorithms, seeds=[0], rounds=1)
        torch.manual_seed(5)
        found = fafed.compare(**wanted)
        first = made[-len(algorithms)]  # the ones before it were for the check
        torch.manual_seed(5)
        assert torch.equal(first.weight, nn.Linear(4, 3).weight)
        assert found.finished


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": ()}, "seeds is empty"),
        ({"seeds": (1, 2, 1)}, r"seeds names one twice, got \(1, 2, 1\): each seed is one run"),
        ({"algorithms": []}, "algorithms is empty"),
        ({"algorithms": ["fedavg"]}, "algorithm must be an object such as"),
        ({"algorithms": fafed.FedAvg}, "algorithm must be an object such as"),
    ],
)
def test_wrong_calls_are_refused(change, words):
    with pytest.raises(fafed.ConfigError, match=words):
        fafed.compare(**call(**change))
