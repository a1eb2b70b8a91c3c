from __future__ import annotations

from typing import Any

from fafed.report import StudyData
from fafed.report.trials import coordinates, ranked, states

TRIALS: list[dict[str, Any]] = [
    {"params": {"eta": 0.001, "q": 1}, "value": 3.0, "state": "COMPLETE"},
    {"params": {"eta": 0.1, "q": 5, "kind": "cosine"}, "value": 1.0, "state": "COMPLETE"},
    {"params": {"eta": 0.01, "q": 3, "kind": "linear"}, "value": 2.0, "state": "COMPLETE"},
    {"params": {"eta": 0.1, "q": 1}, "value": None, "state": "PRUNED"},
    {"params": {"eta": 0.1, "q": 1}, "value": float("nan"), "state": "FAIL"},
]
STUDY = StudyData("demo", ["eta", "q", "kind"], TRIALS, "rule", "minimize")


def test_the_best_come_first_and_those_without_a_value_not_at_all() -> None:
    assert [trial["value"] for trial in ranked(STUDY)] == [1.0, 2.0, 3.0]
    most = StudyData("demo", ["eta"], TRIALS, "rule", "maximize")
    assert ranked(most)[0]["value"] == 3.0
    assert states(STUDY) == "3 complete, 1 pruned, 1 fail"


def test_coordinates() -> None:
    drawn = coordinates(STUDY)
    eta, q, kind, value = drawn["axes"]
    # Two decades are drawn logarithmically, five steps are not.
    assert [tick["text"] for tick in eta["ticks"]] == ["0.001", "0.01", "0.1"]
    assert [tick["text"] for tick in q["ticks"]] == ["1", "3", "5"]
    assert [(tick["at"], tick["text"]) for tick in kind["ticks"]] == [(0, "cosine"), (1, "linear")]
    assert value["label"] == "value"
    worst, middle, best = drawn["lines"]
    assert worst["at"] == [0, 0, None, 1]
    assert [round(at, 9) for at in middle["at"]] == [0.5, 0.5, 1, 0.5]
    assert best["at"] == [1, 1, 0, 0]
    assert [line["rank"] for line in drawn["lines"]] == [0, 0.5, 1]
    assert best["text"][-1] == "value = 1.000"


def test_a_parameter_that_never_changes_lies_in_the_middle() -> None:
    trials = [{"params": {"eta": 0.1}, "value": 1.0, "state": "COMPLETE"}]
    drawn = coordinates(StudyData("demo", ["eta"], trials, "rule", "minimize"))
    assert drawn["lines"][0]["at"] == [0.5, 0.5]
