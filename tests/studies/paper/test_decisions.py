"""Decisions, numbers and the ledger, without runs or with a single one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from fafed.errors import ConfigError, FafedError
from fafed.experiments.assemble import prepare
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.experiments.tuning import GRIDS
from fafed.training.loop import Diverged
from studies.paper import driver, figures, verdicts
from studies.paper.decisions import (
    Decisions,
    first_round_at,
    missing,
    points,
    score,
    subset,
)
from studies.paper.findings import perplexity, read_at, rises
from studies.paper.ledger import Job, Ledger, Missing, Outcome, compact_record
from studies.paper.protocol import Protocol


def outcome(accuracies, settings=None, **more):
    job = Job("tiny-low", "fedavg", settings or {"eta": 0.1}, 0, len(accuracies))
    columns = {
        "round": list(range(1, len(accuracies) + 1)),
        "validation_accuracy": accuracies,
        "test_accuracy": accuracies,
    }
    return Outcome(job, columns, **more)


def test_a_run_is_read_where_it_had_cost_as_much():
    columns = {
        "round": [5, 10, 15, 20],
        "bytes": [60, 110, 160, 210],  # the first round costs 20, the others 10 each
        "test_accuracy": [0.1, 0.3, 0.4, 0.4],
    }
    run = Outcome(Job("tiny-low", "fafed", {}, 0, 20), columns)
    assert read_at(run, "bytes", 210, 3, 5) == run.end("test_accuracy", 3)
    assert read_at(run, "bytes", 999, 1, 5) == 0.4
    # 135 bytes are 12.5 rounds; 5 rounds earlier are 7.5
    assert read_at(run, "bytes", 135, 1, 5) == pytest.approx(0.35)
    assert read_at(run, "bytes", 135, 2, 5) == pytest.approx((0.35 + 0.2) / 2)
    assert math.isnan(read_at(replace(run, failure="NaN"), "bytes", 135, 1, 5))


def test_rises_are_summed():
    assert rises(outcome([3.0, 2.0, 2.5, 1.0, 1.25]), "test_accuracy") == 0.75
    assert rises(outcome([3.0, 2.0]), "test_accuracy") == 0


def test_slower_step_sizes_are_not_run_beyond_the_fastest(tiny):
    (job,) = missing([lambda: Decisions(tiny, Ledger()).budget("tiny-low")])
    assert (job.settings, job.rounds) == ({"eta": 0.2}, 12)
    fast = Outcome(job, outcome([0.5, 0.6, 0.7, 0.5, 0.7]).columns)
    (job,) = missing([lambda: Decisions(tiny, Ledger([fast])).budget("tiny-low")])
    assert (job.settings, job.rounds) == ({"eta": 0.02}, 3)
    assert Decisions(tiny, Ledger()).rounds("other") == 4


def test_a_budget_that_is_never_reached(tiny):
    ledger = Ledger()
    for eta in (0.2, 0.02, 0.001):
        ledger.add(Outcome(Job("tiny-low", "fedavg", {"eta": eta}, 0, 12), outcome([0.1]).columns))
    found = Decisions(tiny, ledger).budget("tiny-low")
    assert (found.count, found.reached) == (12, False)


def test_a_run_that_is_about_to_write_its_last_checkpoint_is_left_alone(tiny, ran, tmp_path):
    job = Job("other", "fedavg", {"eta": 0.02}, 0, 2)
    batch = driver.Batch(tiny, Ledger(), [job], tmp_path, lambda line: None)
    (path,) = batch.open
    execute(batch.experiments[0], RunDir(path), prepare=partial(prepare, workers=1))
    batch.look([RunDir(path)])
    assert RunDir(path).checkpoints.exists()
    assert not batch.ledger.outcomes
    batch.look([])
    assert not RunDir(path).checkpoints.exists()
    assert list(batch.ledger.outcomes) == [job.key]


def test_a_curve_that_diverges_makes_way_for_the_next(tiny):
    """Of two trials the better one is measured first, and the other only if it fails."""
    ledger, measured = Ledger(), []
    decide = partial(Decisions(tiny, ledger).curve, "other", "fedavg")
    while todo := missing([decide]):
        for job in todo:
            final = "data.validation" not in job.changes
            failure = "round 2: NaN" if final and not measured else None
            measured += [job.settings["eta"]] if final else []
            ledger.add(Outcome(job, outcome([job.settings["eta"]]).columns, failure=failure))
    assert len(measured) == 2
    assert measured[0] > measured[1]  # the better one by its trial
    assert decide().job.settings["eta"] == measured[1]


def test_settings_are_chosen_at_the_first_level(tiny):
    curves = tiny.curves.model_copy(update={"data": {"mnist": ["other", "tiny-low-b10"]}})
    decisions = Decisions(tiny.model_copy(update={"curves": curves}), Ledger())
    wanted = []
    while todo := missing([partial(decisions.curve, "tiny-low-b10", "fedavg")]):
        for job in todo:
            wanted.append((job.experiment, "data.validation" in job.changes))
            decisions.ledger.add(Outcome(job, outcome([0.5]).columns))
    assert set(wanted) == {("other", True), ("tiny-low-b10", False)}


def test_the_end_of_a_run():
    run = outcome([0.1, None, 0.5, 0.7])
    assert run.end("test_accuracy", 2) == pytest.approx(0.6)
    assert run.series("test_accuracy") == [(1, 0.1), (3, 0.5), (4, 0.7)]
    assert first_round_at(run, "test_accuracy", 2, 0.3) == 3
    assert first_round_at(run, "test_accuracy", 2, 0.61) is None
    assert math.isnan(run.end("train_loss", 1))
    assert score(outcome([0.9], failure="round 3: NaN"), 1) == -math.inf


def test_where_a_curve_is_the_lowest_and_what_is_shown_of_perplexities():
    def run(*losses):
        plain = outcome([0.5] * len(losses))
        return replace(plain, columns=dict(plain.columns) | {"train_loss": list(losses)})

    other = run(5.0, 4.0, 3.0, 3.0)
    led = {"FAFED": run(9.0, 3.5, 2.5, 3.0), "FedAvg": other}
    assert verdicts.lowest_words(led) == "lowest in 2 of 4 rounds, from 2 to 3"
    assert verdicts.lowest_words({"FAFED": run(9.0, 4.0, 2.0, 3.5), "FedAvg": other}) == (
        "lowest in 1 of 4 rounds, round 3"
    )
    assert verdicts.lowest_words({"FAFED": other, "FedAvg": other}) == "lowest in no round"
    assert figures._later(led["FAFED"]) == pytest.approx(math.exp(3.0))
    assert perplexity(1e9) < math.inf


def test_subsets_are_the_same_every_time_and_cover_the_step_sizes():
    grid = points(GRIDS["fedadam"])
    some = subset(grid, 20)
    assert len(some) == 20
    assert some == subset(grid, 20)
    assert len({(point["eta"], point["eta_g"]) for point in some}) == 15
    assert subset(grid, 60) == grid


def test_the_ledger_on_disk(tmp_path):
    run = outcome([0.5, 0.6], {"eta": {"schedule": "power", "kappa": 1.0}}, seconds=3.5)
    (tmp_path / "gone.jsonl").touch()  # of an experiment that no decision refers to any more
    Ledger([run]).write(tmp_path)
    assert not (tmp_path / "gone.jsonl").exists()
    again = Ledger.read(tmp_path)
    assert list(again.outcomes.values()) == [run]
    with pytest.raises(Missing, match="1 runs are missing"):
        again.need([run.job, outcome([0.5]).job])
    (tmp_path / "tiny-low.jsonl").write_text('{"experiment": "x"}\n', "utf-8")
    with pytest.raises(FafedError, match="line 1 is not a record of a run"):
        Ledger.read(tmp_path)


def test_the_folder_is_checked(tmp_path, tiny):
    with pytest.raises(ConfigError, match=r"protocol\.toml cannot be read"):
        Protocol.read(tmp_path)
    (tmp_path / "protocol.toml").write_text("methods = 3", "utf-8")
    with pytest.raises(ConfigError, match="methods"):
        Protocol.read(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no nothing\.toml"):
        tiny.experiment("nothing")


def test_a_run_that_failed_in_its_first_round_comes_last(tiny, tmp_path):
    job = Job("tiny-low", "fedavg", {"eta": 3e38}, 0, 4)
    place = RunDir.for_experiment(job.build(tiny), tmp_path)
    with pytest.raises(Diverged):
        execute(job.build(tiny), place)
    failed = compact_record(job, place)
    assert score(failed, 3) == -math.inf
    assert first_round_at(failed, "test_accuracy", 1, 0.5) is None
