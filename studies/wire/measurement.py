"""One run for each row and seed. Each result is written as soon as it is there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from fafed import files
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment, Part
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.training.loop import Diverged

ROOT = Path(__file__).parent.parent.parent
CONFIGS = Path(__file__).parent / "configs"
RESULTS = Path(__file__).parent / "results.json"
EXPERIMENT = "fashion-mnist-high"


class Row(Part):
    """One line of the table."""

    algorithm: str
    settings: dict[str, Any] = Field(default_factory=dict)  # beside those of the experiment
    wire: dict[str, Any] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        return json.dumps([self.algorithm, self.settings, self.wire], sort_keys=True)


class Plan(Part):
    seeds: list[int]
    tail: int
    holds: float
    budgets: list[int]
    rows: list[Row]


class Curve(NamedTuple):
    """A run: at each evaluation, the bytes so far and the test accuracy."""

    round: list[int]
    bytes_up: list[int]
    accuracy: list[float]
    failure: str | None = None


def read_plan() -> Plan:
    return Plan.model_validate(tomllib.loads((CONFIGS / "rows.toml").read_text("utf-8")))


def experiment(row: Row, seed: int) -> Experiment:
    base = Experiment.read(CONFIGS / f"{EXPERIMENT}.toml")
    found = base.with_algorithm(row.algorithm, **row.settings)
    return found.changed(seed=seed, wire=row.wire)


def measure(runs: Path, results: Path = RESULTS, only: Sequence[str] = ()) -> None:
    """Make the runs that are missing, seed by seed, on one thread. `only`: some algorithms."""
    plan = read_plan()
    for seed in plan.seeds:
        for row in plan.rows:
            known = read_results(results)
            key = f"{row.label} {seed}"
            if key in known or (only and row.algorithm not in only):
                continue
            print(key, flush=True)
            known[key] = _curve(experiment(row, seed), runs)
            content = {name: one._asdict() for name, one in known.items()}
            files.write(results, [_lines(content).encode()])


def read_results(path: Path = RESULTS) -> dict[str, Curve]:
    """Row and seed -> curve; empty if nothing has been measured."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return {name: Curve(**one) for name, one in found.items()}


def _lines(content: Mapping[str, object]) -> str:
    """One line for each run."""
    rows = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in content.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _curve(wanted: Experiment, runs: Path) -> Curve:
    place = RunDir.for_experiment(wanted, runs)
    failure = None
    if not place.finished():
        try:
            execute(wanted, place, prepare=partial(prepare, workers=1))
        except Diverged as cause:
            failure = str(cause)
    seen = [record for record in place.records() if record.test]
    return Curve(
        [record.round for record in seen],
        [record.bytes_up for record in seen],
        [round(record.test["accuracy"], 5) for record in seen],
        failure,
    )
