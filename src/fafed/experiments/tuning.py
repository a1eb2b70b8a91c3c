"""Search for good hyper-parameters with Optuna.

Every trial is an ordinary run in its own directory. So trials can be resumed, and appear in
reports. The study is in a database (SQLite beside the runs unless another address is given). So
several processes or machines can share it.

The rule that ranks trials never uses the test set. "train_loss" is the last training loss of the
server's model, or, if that is not evaluated, the mean of the clients' losses over the last tenth of
the rounds. "validation" is the last validation accuracy (or loss, if there is no accuracy) on data
held out from the training set.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from filelock import FileLock
from optuna.trial import TrialState

from fafed import files
from fafed.core.records import Record
from fafed.core.run_data import StudyData
from fafed.data import DATASETS
from fafed.engines.worker_pool import cores
from fafed.errors import ConfigError, FafedError, without_passwords
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.grid import end, follow
from fafed.experiments.rundir import Busy, RunDir
from fafed.files import Damaged
from fafed.training.loop import Diverged

Rule = Literal["train_loss", "validation"]
Sampler = Literal["grid", "tpe"]
Direction = Literal["minimize", "maximize"]

NO_HELD_OUT = "the rule 'validation' needs held-out data: set data.validation, for example 0.1"

_ETA = [0.001, 0.01, 0.02, 0.05, 0.1]
_ETA_G = [10**-1.5, 10**-2.0, 10**-2.5]
_BETA = [0.1, 0.9]

# The paper's grids for images. An experiment's [search.NAME] table replaces them.
GRIDS: dict[str, dict[str, list[Any]]] = {
    "fedavg": {"eta": _ETA},
    "scaffold": {"eta": _ETA},
    "stem": {"eta": _ETA, "alpha": _BETA},
    "fedadam": {"eta": _ETA, "eta_g": _ETA_G, "beta1": _BETA, "beta2": _BETA, "tau": [0.01]},
    "fedams": {"eta": _ETA, "eta_g": _ETA_G, "beta1": _BETA, "beta2": _BETA, "tau": [0.01]},
    "fafed": {"eta": _ETA, "alpha": _BETA, "beta": _BETA, "rho": [0.01]},
}


def space(experiment: Experiment, algorithm: str) -> dict[str, list[Any]]:
    """Hyper-parameter -> values to try."""
    found = experiment.search.get(algorithm) or GRIDS.get(algorithm)
    if not found:
        raise ConfigError(
            f"there is no grid for {algorithm!r}: give one in the experiment, for example\n"
            f"[search.{algorithm}]\neta = [0.01, 0.1]"
        )
    return found


def _explained(rule: Rule, direction: Direction) -> str:
    if rule == "train_loss":
        return "lowest training loss at the end (of the server's model, if it was measured)"
    what = "highest last accuracy" if direction == "maximize" else "lowest last loss"
    return f"{what} on held-out data"


def score(records: Sequence[Record], rule: Rule) -> float:
    """The number that ranks a trial."""
    if rule == "train_loss":
        measured = [r.train["loss"] for r in records if r.train]
        if measured:
            return measured[-1]
        tail = records[-max(1, len(records) // 10) :]
        losses = [r.train_loss for r in tail if r.train_loss is not None]
        return sum(losses) / len(losses) if losses else math.inf
    held_out = [r.validation for r in records if r.validation]
    if not held_out:
        raise ConfigError(NO_HELD_OUT)
    return held_out[-1].get("accuracy", held_out[-1]["loss"])


def tune(
    experiment: Experiment,
    algorithm: str,
    root: Path,
    *,
    rule: Rule = "train_loss",
    sampler: Sampler = "grid",
    trials: int | None = None,
    prune: bool = False,
    storage: str | None = None,
    jobs: int = 1,
    on_trial: Callable[[StudyData], None] | None = None,
) -> StudyData:
    """Search, or continue a search that was stopped. Return the study so far."""
    choices = space(experiment, algorithm)
    if rule == "validation" and not (experiment.data.validation or _text(experiment)):
        raise ConfigError(NO_HELD_OUT)
    size = math.prod(len(values) for values in choices.values())
    wanted = min(trials or size, size) if sampler == "grid" else (trials or size)
    experiment = experiment.with_algorithm(algorithm)
    folder = root / experiment.name / f"tune-{algorithm}"
    files.make_folder(folder)
    content = json.dumps([experiment.fingerprint, choices], sort_keys=True)
    told = hashlib.sha256(content.encode()).hexdigest()[:8]
    plan = SearchPlan(
        name=f"{experiment.name}-{algorithm}-{rule}-{told}",
        experiment=experiment.to_dict(),
        algorithm=algorithm,
        choices=choices,
        folder=str(folder),
        rule=rule,
        direction="minimize" if rule == "train_loss" else _validation_direction(experiment),
        sampler=sampler,
        prune=prune,
        storage=storage or f"sqlite:///{folder / 'study.db'}",
        wanted=wanted,
        workers=max(1, cores() // min(jobs, wanted)),
        parent=os.getpid(),
    )
    study = _study(plan)
    if storage is None:
        _forget_interrupted(study)
    if sampler == "grid":
        _enqueue(study, choices, wanted)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_search, args=(plan,)) for _ in range(min(jobs, wanted))]
    for process in processes:
        process.start()
    shown = -1
    try:
        while any(process.is_alive() for process in processes):
            for process in processes:
                process.join(timeout=0.3)
            if on_trial and (done := len(_ended(study))) != shown:
                shown = done
                on_trial(_data(study, plan))
    except BaseException:
        end(processes)
        raise
    if any(process.exitcode for process in processes):
        raise FafedError("a tuning process failed, see above; start the same command to go on")
    return _data(study, plan)


def best(study: StudyData) -> Mapping[str, Any]:
    """The settings of the best trial."""
    finished = [t for t in study.trials if t["state"] == "complete" and t["value"] is not None]
    finished = [t for t in finished if math.isfinite(t["value"])]
    if not finished:
        raise FafedError(f"no trial of {study.name} finished: widen the grid or use smaller steps")
    sign = 1 if study.direction == "minimize" else -1
    chosen = min(finished, key=lambda t: sign * t["value"])
    return dict(chosen["params"])


class SearchPlan(NamedTuple):
    """What a worker needs: plain values that can be sent to another process."""

    name: str  # of the study; every experiment and grid has its own study
    experiment: dict[str, Any]
    algorithm: str
    choices: dict[str, list[Any]]
    folder: str
    rule: Rule
    direction: Direction
    sampler: Sampler
    prune: bool
    storage: str
    wanted: int
    workers: int
    parent: int


def _study(plan: SearchPlan) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # All points of a grid are in the queue, so nothing is sampled.
    samplers = {"grid": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    sampler: optuna.samplers.BaseSampler = samplers[plan.sampler](seed=0)
    pruner = optuna.pruners.MedianPruner() if plan.prune else optuna.pruners.NopPruner()
    try:
        return optuna.create_study(
            study_name=plan.name,
            storage=plan.storage,
            sampler=sampler,
            pruner=pruner,
            direction=plan.direction,
            load_if_exists=True,
        )
    except Exception as cause:  # whatever the database's driver raises
        where = without_passwords(plan.storage)
        raise ConfigError(f"the study at {where} cannot be opened: {cause}") from cause


def _enqueue(study: optuna.Study, choices: Mapping[str, list[Any]], wanted: int) -> None:
    """Put the points of the grid that no worker has taken into the study's queue, in order."""
    alive = [t for t in study.get_trials(deepcopy=False) if t.state is not TrialState.FAIL]
    taken = [t.system_attrs.get("fixed_params", t.params) for t in alive]
    for values in list(itertools.product(*choices.values()))[:wanted]:
        point = dict(zip(choices, values, strict=True))
        if point not in taken:
            study.enqueue_trial(point)


def _search(plan: SearchPlan) -> None:
    """In a worker: make trials until the queue is empty (grid) or there are enough."""
    follow(plan.parent)
    study = _study(plan)
    while (trial := _next(study, plan)) is not None:
        try:
            study.tell(trial, _trial(plan, trial))
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
        except FafedError as error:  # it names the thing and the cure: a traceback would hide them
            print(f"{plan.algorithm}, {dict(trial.params)}: {error}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None


def _next(study: optuna.Study, plan: SearchPlan) -> optuna.Trial | None:
    # SQLite has no row locks: without our lock, two workers could get the same point
    with FileLock(Path(plan.folder) / ".next.lock"):
        if plan.sampler == "grid":
            left = bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
        else:
            taken = [t for t in study.get_trials(deepcopy=False) if t.state is not TrialState.FAIL]
            left = len(taken) < plan.wanted
        return study.ask() if left else None


def _trial(plan: SearchPlan, trial: optuna.Trial) -> float:
    settings = {
        name: trial.suggest_categorical(name, values) for name, values in plan.choices.items()
    }
    experiment = Experiment.from_dict(plan.experiment).with_algorithm(plan.algorithm, **settings)
    place = RunDir.for_experiment(experiment, Path(plan.folder))
    records: list[Record] = []
    with contextlib.suppress(Damaged):  # resuming repairs it, or says why it cannot
        records += place.records()

    def look(record: Record) -> None:
        records.append(record)
        if plan.prune and (plan.rule == "train_loss" or record.validation):
            trial.report(score(records, plan.rule), record.round)
            if trial.should_prune():
                raise optuna.TrialPruned

    worst = math.inf if plan.direction == "minimize" else -math.inf
    if place.failure() is not None:
        return worst
    if not place.finished():
        try:
            execute(experiment, place, look, partial(prepare, workers=plan.workers))
        except Diverged:
            return worst
        except Busy:  # another worker has this point already
            raise optuna.TrialPruned from None
    return score(place.records(), plan.rule)


def _validation_direction(experiment: Experiment) -> Direction:
    names = experiment.metric_names(text=_text(experiment))
    return "maximize" if "accuracy" in names else "minimize"


def _text(experiment: Experiment) -> bool:
    """A text has only a loss, and its own held-out part."""
    known = DATASETS.get(experiment.data.name or "")
    return known is not None and known.text


def _forget_interrupted(study: optuna.Study) -> None:
    """Drop trials of killed workers. They stay 'running' for ever and block their points."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def _data(study: optuna.Study, plan: SearchPlan) -> StudyData:
    trials = [
        {"params": dict(t.params), "value": t.value, "state": t.state.name.lower()}
        for t in _ended(study)
    ]
    return StudyData(
        name=f"{plan.experiment['name']}: {plan.algorithm}",
        parameters=list(plan.choices),
        trials=trials,
        rule=_explained(plan.rule, plan.direction),
        direction=plan.direction,
    )
