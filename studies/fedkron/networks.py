"""FedKron's default against tuned rivals on convolutional networks, the tasks of the FAFED paper.

The experiments are those of studies/paper/configs, with fewer rounds and with held-out data. The
grids are those of studies.which_algorithm. What is finished is kept, task by task.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fafed.experiments.config import Experiment
from studies.which_algorithm import jobs, measurement
from studies.which_algorithm.jobs import SEEDS, TUNING_SEED, Setting
from studies.which_algorithm.measurement import Runs, accuracy, held_out

RESULTS = Path(__file__).parent / "networks.json"
CONFIGS = Path(__file__).parent.parent / "paper" / "configs"

LEVELS = ("high", "moderate", "low")
ROUNDS = {"fashion-mnist": 50, "mnist": 50, "cifar-10": 15}
TASKS = tuple(f"{data}-{level}" for data in ROUNDS for level in LEVELS)
HELD_OUT = 0.05
MORE, FACTOR = 3, 3  # how often a grid grows where its end is best, and by which factor
MOMENTUM = 0.9
DEFAULT: Setting = (("eta", 0.18),)
FEDAVGM = "fedavgm"  # FedAvg with momentum on the server
FEDPAC = "fedpac"
RIVALS = (
    *(FEDAVGM, FEDPAC, "fedadam", "fedams", "scaffold", "scaffoldm", "domo", "prsgdm"),
    *("localamsgrad", "fedcm", "feddyn", "diloco", "fedmuon", "fafed", "stem"),
)
GRIDS = {
    FEDAVGM: {"eta": [0.003, 0.01, 0.03, 0.1], "server_momentum": [MOMENTUM]},
    FEDPAC: {"eta": [0.0003, 0.001, 0.003, 0.01]},
}

Results = dict[str, dict[str, Any]]  # by task and method


def read() -> Results:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def rounds(task: str) -> int:
    return ROUNDS[task.rpartition("-")[0]]


@cache
def experiment(task: str) -> Experiment:
    own = Experiment.read(CONFIGS / f"{task}.toml")
    length = rounds(task)
    data = own.to_dict()["data"] | {"validation": HELD_OUT, "train_sample": 0}
    first = jobs.experiment(jobs.JOBS[0])
    return own.changed(
        rounds=length, eval_every=length // 5, checkpoint_every=length, data=data,
        settings=first.settings, search=first.search,
    )  # fmt: skip


def grid(task: str, name: str) -> list[Setting]:
    return jobs.combinations(GRIDS.get(name) or experiment(task).search[name])


def run(task: str, name: str, setting: Setting, seed: int) -> Experiment:
    algorithm = "fedavg" if name == FEDAVGM else name
    found = jobs.with_setting(experiment(task), algorithm, setting, "linear")
    return found.changed(seed=seed)


def choose(make: Runs, task: str) -> dict[str, Setting]:
    """Each rival's best setting on held-out data. Where the best step size is at an end of those
    tried, one more beyond it is tried, too."""
    tried = {name: grid(task, name) for name in RIVALS}
    best: dict[str, Setting] = {}
    for _ in range(1 + MORE):
        trials = make(
            f"{task}: choosing",
            {
                (name, setting): run(task, name, setting, TUNING_SEED)
                for name in RIVALS
                for setting in tried[name]
            },
        )
        for name in RIVALS:
            scores = {setting: held_out(trials[name, setting]) or 0 for setting in tried[name]}
            best[name] = max(scores, key=scores.__getitem__)
            tried[name] += beyond(tried[name], best[name])
    return best


def beyond(tried: list[Setting], best: Setting) -> list[Setting]:
    """The next setting if the best step size is at an end."""
    etas = [dict(setting)["eta"] for setting in tried]
    eta = dict(best)["eta"]
    if min(etas) < eta < max(etas):
        return []
    further = eta * FACTOR if eta == max(etas) else eta / FACTOR
    return [tuple((dict(best) | {"eta": float(f"{further:.3g}")}).items())]


def measure(make: Runs, task: str) -> dict[str, Any]:
    """One task: choose each rival's setting with one seed, then measure all with other seeds."""
    chosen = choose(make, task)
    chosen["fedkron"] = DEFAULT
    ends = make(
        f"{task}: measuring",
        {
            (name, seed): run(task, name, setting, seed)
            for name, setting in chosen.items()
            for seed in SEEDS
        },
    )
    return {
        name: {
            "setting": dict(setting),
            "accuracy": [accuracy(ends[name, seed]) for seed in SEEDS],
            "seconds": min(measurement.seconds(ends[name, seed].records()) for seed in SEEDS),
        }
        for name, setting in chosen.items()
    }


def measure_all(make: Runs) -> Results:
    """All tasks. The file is written after each."""
    found = read()
    for task in TASKS:
        if task not in found:
            found[task] = measure(make, task)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return found
