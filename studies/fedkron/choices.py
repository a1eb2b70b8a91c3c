"""How FedKron's default and its parts were chosen: short runs of four tasks, held-out data, one
seed that no comparison uses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fafed.experiments.config import Experiment
from studies.fedkron import networks
from studies.fedkron.ledger import Entry, Ledger, Missing, key
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import Setting

RESULTS = Path(__file__).parent / "choices.json"
SEED = 5
ROUNDS = {"skewed": 30, "fashion-mnist-high": 30, "mnist-high": 15, "cifar-10-high": 15}
EVERY = 3  # rounds from one evaluation to the next
ETAS = (0.09, 0.18, 0.36)
WHOLE: Setting = (("eta", 0.18),)
WITHOUT: dict[str, Setting] = {  # one part off at a time
    "the limit on local steps": (("reach", 0.0),),
    "the bound on gradients": (("kappa", 0.0),),
    "momentum of the server": (("mu", 0.0),),
    "memory of the scale": (("beta", 0.0),),
    "directions: all alike in a layer": (("rank", 1), ("rho", 1.0)),
    "most of the scale: floor at the largest": (("rho", 1.0),),
    "the fall of the step size": (("end", 1.0),),
}
RANKS = (16, 32, 10000)  # the last one: all directions
OTHERWISE: dict[str, Setting] = {  # other values of what stays
    "a longer memory, beta = 0.9": (("beta", 0.9),),
    "a higher floor, rho = 0.05": (("rho", 0.05),),
    "local steps up to twice as long": (("reach", 2.0),),
    "gradients up to twice as long": (("kappa", 4.0),),
}


@cache
def experiment(task: str) -> Experiment:
    own = jobs.experiment(task) if task in jobs.JOBS else networks.experiment(task)
    length = ROUNDS[task]
    return own.changed(rounds=length, eval_every=EVERY, checkpoint_every=length, seed=SEED)


def trial(ledger: Ledger, task: str, changes: Setting) -> Entry:
    setting = tuple((dict(WHOLE) | dict(changes)).items())
    run = experiment(task).with_algorithm("fedkron", **dict(setting))
    return ledger.measure(key(task, "fedkron", setting, SEED), run)


def wanted() -> Iterator[tuple[str, Setting]]:
    """The step sizes first: the default needs them on every task. Then the cheap tasks first, so
    that an early end leaves complete columns."""
    for task in ROUNDS:
        for eta in ETAS:
            yield task, (("eta", eta),)
    changes = [*WITHOUT.values(), *((("rank", rank),) for rank in RANKS), *OTHERWISE.values()]
    for task in ROUNDS:
        for change in changes:
            yield task, change


def measure(ledger: Ledger) -> None:
    for task, changes in wanted():
        try:
            trial(ledger, task, changes)
        except Missing:
            return
