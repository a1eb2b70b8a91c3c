"""FedKron's default against tuned rivals: on the images of the FAFED paper, with its convolutional
networks, and on text.

Experiments on images are those of studies/paper/configs, with fewer rounds; those on text are in
configs. The grids are those of studies.which_algorithm. Every run is kept in networks.json when it
is finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fafed.experiments.config import Experiment
from studies.fedkron.ledger import Entry, Ledger, Missing, key
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import SEEDS, TUNING_SEED, Setting
from studies.which_algorithm.measurement import ABOUT_EQUAL

RESULTS = Path(__file__).parent / "networks.json"
CONFIGS = Path(__file__).parent / "configs"
PAPER = Path(__file__).parent.parent / "paper" / "configs"

LEVELS = ("high", "moderate", "low")
ROUNDS = {"fashion-mnist": 30, "mnist": 15, "cifar-10": 15}  # on images; on text: see configs
IMAGES = tuple(f"{data}-{level}" for data in ROUNDS for level in LEVELS)  # the cheap ones first
TEXT = ("lstm", "transformer", "lora")
TASKS = (*IMAGES, *TEXT)
EVALUATIONS = 5  # in a run; of the last three the mean counts when settings are chosen
HELD_OUT = 0.05
MORE, FACTOR = 2, 3  # how often a grid grows where its end is best, and by which factor
MOMENTUM = 0.9
OURS = "fedkron"
DEFAULT: Setting = (("eta", 0.18),)
FEDAVGM = "fedavgm"  # FedAvg with momentum on the server
FEDPAC = "fedpac"
RIVALS = (
    *(FEDAVGM, "fedmuon", "fedcm", "scaffoldm", "prsgdm"),  # the strongest of which_algorithm
    *("feddyn", FEDPAC, "fedadam", "fedams", "scaffold"),
    *("domo", "localamsgrad", "diloco", "fafed", "stem"),
)
STRONGEST = 4  # of the rivals, which are in this order
GRIDS = {
    FEDAVGM: {"eta": [0.003, 0.01, 0.03, 0.1], "server_momentum": [MOMENTUM]},
    FEDPAC: {"eta": [0.0003, 0.001, 0.003, 0.01]},
}


class Found(NamedTuple):
    """A method on a task: its setting, and its runs with the seeds of the comparison."""

    setting: Setting
    runs: list[Entry]


def rounds(task: str) -> int:
    return experiment(task).rounds


@cache
def experiment(task: str) -> Experiment:
    own = Experiment.read((CONFIGS if task in TEXT else PAPER) / f"{task}.toml")
    length = own.rounds if task in TEXT else ROUNDS[task.rpartition("-")[0]]
    data = own.to_dict()["data"] | {"validation": HELD_OUT, "train_sample": 0}
    first = jobs.experiment(jobs.JOBS[0])
    return own.changed(
        rounds=length, eval_every=length // EVALUATIONS, checkpoint_every=length, data=data,
        settings=first.settings, search=first.search,
    )  # fmt: skip


def grid(task: str, name: str) -> list[Setting]:
    return jobs.combinations(GRIDS.get(name) or experiment(task).search[name])


def run(task: str, name: str, setting: Setting, seed: int) -> Experiment:
    algorithm = "fedavg" if name == FEDAVGM else name
    found = jobs.with_setting(experiment(task), algorithm, setting, "linear")
    return found.changed(seed=seed)


def trial(ledger: Ledger, task: str, name: str, setting: Setting, seed: int) -> Entry:
    return ledger.measure(key(task, name, setting, seed), run(task, name, setting, seed))


def choose(ledger: Ledger, task: str, name: str) -> Setting:
    """The best setting on held-out data, with one seed. Where the best step size is at an end of
    those tried, one more beyond it is tried, too."""
    tried = grid(task, name)
    scores: dict[Setting, float] = {}
    for further in range(1 + MORE):
        for setting in tried:
            if setting not in scores:
                found = trial(ledger, task, name, setting, TUNING_SEED)
                scores[setting] = found["held_out"] or 0
        best = max(scores, key=scores.__getitem__)
        if further < MORE:
            tried += beyond(tried, best)
    return best


def beyond(tried: list[Setting], best: Setting) -> list[Setting]:
    """The next setting if the best step size is at an end."""
    etas = [dict(setting)["eta"] for setting in tried]
    eta = dict(best)["eta"]
    if min(etas) < eta < max(etas):
        return []
    further = eta * FACTOR if eta == max(etas) else eta / FACTOR
    return [tuple((dict(best) | {"eta": float(f"{further:.3g}")}).items())]


def found(ledger: Ledger, task: str, name: str) -> Found:
    """Choose the setting with one seed, then measure with others. FedKron has its default."""
    setting = DEFAULT if name == OURS else choose(ledger, task, name)
    return Found(setting, [trial(ledger, task, name, setting, seed) for seed in SEEDS])


def affordable(ledger: Ledger, task: str, method: Found) -> int:
    """How many rounds cost the bytes of FedAvg's."""
    budget = found(ledger, task, FEDAVGM).runs[0].get("megabytes", 0)
    cost = method.runs[0].get("megabytes", 0) / (budget or 1)
    return rounds(task) if cost <= 1 + ABOUT_EQUAL else int(rounds(task) / cost)


def at_equal_bytes(ledger: Ledger, task: str, name: str) -> Entry:
    """A run of so many rounds, with the first seed of the comparison."""
    method = found(ledger, task, name)
    length = affordable(ledger, task, method)
    if length == rounds(task):
        return method.runs[0]
    whole = run(task, name, method.setting, SEEDS[0])
    shorter = whole.changed(rounds=length, eval_every=length, checkpoint_every=length)
    label = f"{key(task, name, method.setting, SEEDS[0])}, {length} rounds"
    return ledger.measure(label, shorter)


def wanted(tasks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The strongest rivals on all tasks first, then the others; the cheap tasks first."""
    for names in ((OURS, *RIVALS[:STRONGEST]), RIVALS[STRONGEST:]):
        yield from ((task, name) for task in tasks for name in names)


def measure(ledger: Ledger, tasks: Sequence[str]) -> None:
    """It ends when the ledger begins no more runs."""
    for measured in (found, at_equal_bytes):
        for task, name in wanted(tasks):
            try:
                measured(ledger, task, name)
            except Missing:
                return


def there(ledger: Ledger) -> Iterator[tuple[str, dict[str, Found]]]:
    """The tasks that have FedKron and a rival, with the methods that are measured in full."""
    for task in TASKS:
        complete: dict[str, Found] = {}
        for name in (OURS, *RIVALS):
            try:
                complete[name] = found(ledger, task, name)
            except Missing:
                continue
        if OURS in complete and len(complete) > 1:
            yield task, complete
