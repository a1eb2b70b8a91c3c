from __future__ import annotations

import dataclasses
import math

import pytest
from report_runs import config, plain_run, record

from fafed import ConfigError
from fafed.core.run_data import flatten, show
from fafed.report import RunData, table
from fafed.report.curves import make_curves, remarks
from fafed.report.quantities import TRAIN_LOSS, evaluated


def labels(*runs: RunData) -> list[str]:
    return [curve.label for curve in make_curves(runs)]


def test_runs_that_differ_only_in_seed_and_name_are_one_curve() -> None:
    runs = [plain_run(0.5, seed=seed, name=f"try {seed}") for seed in range(3)]
    (curve,) = make_curves(runs)
    assert curve.label == "fafed"
    assert len(curve.runs) == 3


def test_a_unique_algorithm_is_its_own_label() -> None:
    assert labels(plain_run(0.5), plain_run(0.5, algorithm="stem")) == ["fafed", "stem"]


def test_labels_name_what_differs_within_the_algorithm_only() -> None:
    runs = [
        plain_run(0.5, options={"eta": 0.1, "beta": 0.9}),
        plain_run(0.5, options={"eta": 0.2}),
        plain_run(0.5, algorithm="fedavg", options={"lr": 1.0}),
    ]
    assert labels(*runs) == ["fafed eta=0.1, beta=0.9", "fafed eta=0.2, beta=default", "fedavg"]


def test_labels_shorten_keys_unless_that_is_ambiguous() -> None:
    kinds = [{"partition": {"kind": kind}} for kind in ("high", "low")]
    assert labels(*(plain_run(0.5, data=data) for data in kinds)) == [
        "fafed partition=high",
        "fafed partition=low",
    ]
    twice = [{"a": {"size": n}, "b": {"size": n}} for n in (1, 2)]
    assert labels(*(plain_run(0.5, data=data) for data in twice))[0] == (
        "fafed data.a.size=1, data.b.size=1"
    )


def test_a_run_without_an_algorithm_is_called_by_its_name() -> None:
    assert labels(RunData("mine", {}, [record(1)])) == ["mine"]


def test_a_repeated_seed_counts_once_with_its_longest_run() -> None:
    short, long = plain_run(0.1), plain_run(0.1, 0.2)
    (curve,) = make_curves([short, long])
    assert curve.runs == (long,)
    assert remarks([short, long], [curve]) == [
        "Left out, because their seed is already there: fafed-seed0."
    ]


def test_no_runs_and_empty_runs_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="name at least one run directory"):
        make_curves([])
    with pytest.raises(ConfigError, match="after the first round"):
        make_curves([RunData("empty", config(), [])])


def test_a_curve_whose_seed_diverged_does_not_win() -> None:
    good = [plain_run(0.5, 0.6), plain_run(0.5, 0.6, seed=1)]
    bad = plain_run(0.9, algorithm="stem")
    runs = [*good, dataclasses.replace(bad, finished=False, failure="client 3 was non-finite")]
    good_row, bad_row = table(runs)
    assert good_row.final["accuracy"].mean == 0.6
    assert math.isnan(bad_row.final["accuracy"].mean)
    assert "client 3 was non-finite" in remarks(runs, make_curves(runs))[0]
    early = RunData("stem-seed1", config("stem", seed=1), [], finished=False, failure="NaN")
    (curve,) = make_curves([bad, early])  # before its first record, too
    assert curve.diverged
    assert curve.runs == (bad,)
    with pytest.raises(ConfigError, match="all diverged in their first round"):
        make_curves([early])


def test_series_are_means_over_the_common_rounds_that_were_measured() -> None:
    runs = [plain_run(0.2, None, 0.4, 0.9), plain_run(0.4, None, 0.8, seed=1)]
    (curve,) = make_curves(runs)
    (accuracy,) = evaluated(runs)
    series = curve.series(accuracy)
    assert series.costs["rounds"] == [1, 3]
    assert series.costs["gradients"] == [10, 30]
    assert series.costs["bytes"] == [300, 900]
    assert series.costs["seconds"] == [0.5, 1.5]
    assert series.mean == pytest.approx([0.3, 0.6])
    assert (series.low, series.high) == ([0.2, 0.4], [0.4, 0.8])
    assert curve.rounds == 3


def test_values_that_are_missing_or_not_finite_are_not_drawn() -> None:
    records = [record(1, 2.0), record(2, None), record(3, math.nan), record(4, 1.0)]
    (curve,) = make_curves([RunData("run", config(), records)])
    assert curve.series(TRAIN_LOSS).costs["rounds"] == [1, 3, 4]
    assert curve.series(TRAIN_LOSS).finite().mean == [2.0, 1.0]


def test_remarks_name_what_a_reader_must_know() -> None:
    runs = [
        plain_run(0.2, 0.3),
        dataclasses.replace(plain_run(0.4, seed=1), finished=False),
        plain_run(0.4, 0.5, algorithm="stem"),
        RunData("later", config("stem", seed=1), []),
    ]
    assert remarks(runs, make_curves(runs)) == [
        "Left out, because no round is finished: later.",
        "Not finished: fafed-seed1.",
        "fafed: its seeds stopped at different rounds; means are over the 1 rounds that all of "
        "them have (the longest has 2).",
        "The curves have different numbers of rounds; each counts to its own end.",
    ]


def test_a_schedule_is_one_setting_in_words() -> None:
    found = flatten({"algorithm": {"eta": {"schedule": "linear", "peak": 0.1, "warmup": 0.2}}})
    assert {name: show(value) for name, value in found.items()} == {
        "algorithm.eta": "linear: peak 0.1, warmup 0.2"
    }
