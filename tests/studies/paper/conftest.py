"""The real protocol with a tiny experiment in place of each, and runs in this process."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path

import pytest
from small import experiment, write_data

from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from studies.paper import driver
from studies.paper.protocol import Protocol

STUDY = Path(__file__).parents[3] / "studies" / "paper"
GRID = {
    "fedavg": {"eta": [0.001, 0.02, 0.2]},
    "fafed": {"eta": [0.001, 0.02, 0.05], "alpha": [0.1, 0.9], "beta": [0.9], "rho": [0.1]},
}
LEVELS = ("tiny-low",)
RUNGS = [
    {"share": 0.1, "keep": 4, "tail": 1},
    {"share": 0.5, "keep": 2, "tail": 2},
    {"share": 1.0, "keep": 1, "tail": 3},
]


@pytest.fixture
def tiny(tmp_path):
    """The real protocol with a tiny experiment in place of each, and short grids."""
    write_data(tmp_path / "data")
    content = tomllib.loads((STUDY / "configs" / "protocol.toml").read_text("utf-8"))
    own = {"stem": {"eta": 0.05}}
    base = experiment(
        tmp_path / "data", search=GRID, settings=own, eval_every=1, checkpoint_every=100
    )
    names = [*LEVELS, "tiny-low-b10", "other", "text", "text-wide", "text-large"]
    data = {"mnist": ["other"], "cifar-10": ["other"]}
    content |= {
        "methods": ["fedavg", "fafed"],
        "tail": 2,
        "seeds": [1, 2],
        "fewest_rounds": 1,
        "on_request": ["text-large"],
        "table2": {name: {"fedavg": 0.6, "fafed": 0.7} for name in LEVELS},
        "readings": {
            "tiny-low-b10": {"column": "tiny-low", "about": "low with b = 10", "why": "It is open."}
        },
        "fair": {"trials": 20, "rungs": RUNGS},
        "budget": {"algorithm": "fedavg", "rounds": 12},
        "curves": content["curves"] | {"rounds": 4, "trials": 2, "data": data},
        "language": {
            "text-large": {
                "about": "tiny",
                "methods": ["fafed", "stem"],
                "seed": 1,
                "control": True,
            }
        },
        "decay": content["decay"]
        | {
            "methods": ["fedavg", "fafed", "fedcm"],
            "seeds": [4, 5],
            "readings": 2,
            "trials": 4,
            "rungs": [{"share": 0.5, "keep": 1, "tail": 1}],
            "eta_times": [0.5, 1.0],
            "grids": {"fedcm": {"eta": [0.05, 0.1], "alpha": [0.1, 0.5]}},
        },
        "text": content["text"]
        | {
            "experiment": "text",
            "check": {"experiment": "text-wide", "about": "more dimensions"},
            "methods": ["stem", "fafed"],
            "seeds": [1, 2],
            "trials": 2,
            "grids": {
                "stem": {"eta": [0.05, 0.2], "alpha": [0.5]},
                "fafed": {"eta": [0.05], "alpha": [0.1, 0.9], "rho": [0.1]},
            },
        },
        "first_rounds": {
            "experiment": "text",
            "rounds": 2,
            "seed": 1,
            "cases": [
                {
                    "about": "as it is",
                    "algorithm": "fafed",
                    "settings": {"eta": 0.02, "alpha": 0.5, "beta": 0.9, "rho": 0.1},
                },
                {
                    "about": "no clipping",
                    "algorithm": "fafed",
                    "settings": {"eta": 0.02},
                    "changes": {"clip": 1e6},
                },
                {
                    "about": "STEM",
                    "algorithm": "stem",
                    "settings": {"eta": 0.2, "alpha": 0.5},
                },
            ],
        },
        "again": content["again"]
        | {"rounds": 4, "trials": 2, "seeds": [1], "data": {"mnist": ["other"]}},
        "experiments": {
            name: Experiment.from_dict(
                base | {"name": name} | ({"batch_size": 10} if "b10" in name else {})
            )
            for name in names
        },
    }
    content["tuned"] |= {"trials": 5, "eta_times": [1.0, 2.0]}
    server, _, estimate = content["momentum"]
    content["momentum"] = [server, estimate]
    server |= {"methods": ["fafed"], "eta_times": [0.5]}
    estimate |= {"methods": ["fafed"], "grid": {"old_grad_scale": [0.0]}}
    content["sensitivity"] |= {
        "experiment": "tiny-low",
        "values": {"algorithm.alpha": [0.5, 1.0], "local_steps": [1, 2]},
    }
    content["deviations"] = [
        {
            "about": "larger batches",
            "experiment": "tiny-low",
            "methods": ["fafed"],
            "changes": {"batch_size": 10},
            "settings": {"beta": 0.5},
        }
    ]
    return Protocol.model_validate(content)


@pytest.fixture
def ran(monkeypatch):
    """Runs are made in this process; the list says which."""
    made = []

    def in_this_process(experiments, root, jobs, on_tick=None, *, threads=None):
        places = [RunDir.for_experiment(e, root) for e in experiments]
        for e, place in zip(experiments, places, strict=True):
            if not place.finished():
                made.append(place)
                execute(e, place, prepare=partial(prepare, workers=1))
            on_tick([place])
        return places

    monkeypatch.setattr(driver, "run_all", in_this_process)
    monkeypatch.setattr(driver, "PAUSE", -1.0)
    monkeypatch.setattr(
        "fafed.experiments.folder._git_revision", lambda: None
    )  # it takes longer than a run
    return made
