"""What is kept of FedKron's runs, and what the page says of it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from small import experiment as small
from small import write_data

from fafed import FedKron
from fafed.experiments.config import Experiment
from studies.fedkron import choices, networks, sections
from studies.fedkron.ledger import Ledger, Missing, key
from studies.which_algorithm.jobs import TUNING_SEED


@pytest.fixture(scope="module")
def chosen():
    return Ledger(choices.RESULTS)


def test_every_change_is_a_change_of_the_default():
    whole = FedKron(**dict(choices.WHOLE))
    for setting in choices.WITHOUT.values():
        assert dataclasses.replace(whole, **dict(setting)) != whole
    assert FedKron() == whole


def test_the_rule_takes_the_smallest_of_the_largest_losses(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    scores = {"skewed": (0.80, 0.79, 0.70), "fashion-mnist-high": (0.70, 0.78, 0.80)}
    for task, values in scores.items():
        for eta, value in zip(choices.ETAS, values, strict=True):
            setting = (("eta", eta),)
            experiment = choices.experiment(task).with_algorithm("fedkron", eta=eta)
            entry = {"experiment": experiment.fingerprint[:8], "held_out": value}
            ledger.runs[key(task, "fedkron", setting, choices.SEED)] = entry
    losses = sections.worst_losses(ledger)  # the other tasks are not there
    assert losses == pytest.approx({0.09: 0.1, 0.18: 0.02, 0.36: 0.1})
    assert sections.rule(ledger) == 0.18


def test_the_default_is_what_the_rule_takes(chosen):
    """As soon as all tasks have been run."""
    if all(sections._complete(chosen, task) for task in choices.ROUNDS):
        assert FedKron().eta == sections.rule(chosen)


def test_a_run_is_kept_and_not_made_again(tmp_path):
    write_data(tmp_path / "data")
    content = small(tmp_path / "data", rounds=2, algorithm={"name": "fedkron"})
    content["data"] |= {"validation": 0.2}
    path, experiment = tmp_path / "ledger.json", Experiment.from_dict(content)
    name = key("small", "fedkron", (("eta", 0.18),), 0)
    found = Ledger(path, tmp_path / "runs").measure(name, experiment)
    assert found["rounds"] == 2
    assert 0 <= found["held_out"] <= 1
    assert Ledger(path).measure(name, experiment) == found
    with pytest.raises(Missing):
        Ledger(path).measure(name, experiment.changed(rounds=3))  # another experiment
    with pytest.raises(Missing):
        Ledger(path, tmp_path / "runs", minutes=0).measure("another", experiment)


def _ledger(tmp_path, ours, theirs):
    """The first task with FedKron and one rival."""
    task, rival = networks.TASKS[0], networks.RIVALS[0]
    ledger = Ledger(tmp_path / "ledger.json", tmp_path, minutes=0)

    def note(name, setting, seed, accuracy):
        experiment = networks.run(task, name, setting, seed).fingerprint[:8]
        entry = {"experiment": experiment, "test": accuracy, "held_out": accuracy, "rounds": 1}
        ledger.runs[key(task, name, setting, seed)] = entry

    for seed in networks.SEEDS:
        note(networks.OURS, networks.DEFAULT, seed, ours)
    grid = networks.grid(task, rival)
    for setting in grid:
        note(rival, setting, TUNING_SEED, 0.6)
    best = grid[1]  # not at an end
    for seed in (TUNING_SEED, *networks.SEEDS):
        note(rival, best, seed, theirs)
    return ledger


@pytest.mark.parametrize(("ours", "theirs", "ahead"), [(0.8, 0.7, 1), (0.7, 0.8, 0)])
def test_the_comparison_counts_what_is_measured(tmp_path, ours, theirs, ahead):
    text = " ".join(sections.compared(_ledger(tmp_path, ours, theirs)).split())
    assert "0 tasks are complete" in text  # the other rivals have not been run
    assert "FedKron is first on 0 of them" in text
    assert f"rivals that have been run on {ahead}." in text
    assert sections.ABSENT in text


def test_nothing_measured_is_no_victory(tmp_path):
    text = sections.compared(Ledger(tmp_path / "none.json"))
    assert "first on 0 of them" in " ".join(text.split())


def test_diverged_and_missing_are_told_apart():
    assert sections._cell(0.0, 0.5) == "diverged"
    assert sections._cell(None, 0.5) == sections.ABSENT
    assert sections._cell(0.51, 0.5) == "+1.0"
    assert sections._cell(0.51, None) == "51.0 %"


def test_the_kept_files_are_read_as_they_are():
    for path in (choices.RESULTS, networks.RESULTS):
        if path.exists():
            for entry in json.loads(path.read_text("utf-8")).values():
                assert {"experiment", "test", "held_out", "rounds"} <= set(entry)
