"""Before anything is submitted: what a silo's data is, and what an experiment would send from it.

`look` reads the data of a silo. `rehearse` runs two rounds of an experiment with this silo alone,
in this process and a folder that vanishes. It uses the code of a real run, so the messages are
those that would leave, in kind, size and content. Nothing leaves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fafed.data.own import columns_in, files_in
from fafed.errors import ConfigError
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir
from fafed.files import Json
from fafed.silos import messages
from fafed.silos.limits import refuse_client_level
from fafed.silos.messages import Message
from fafed.silos.part import RunPlan
from fafed.silos.private import Ledger
from fafed.silos.serve import serve
from fafed.silos.server import FederationConfig
from fafed.silos.site import Site, SiteData
from fafed.silos.worker import Worker

ROUNDS = 2  # the first round may have an opening, the second one is like all others


class Look(NamedTuple):
    """The data of one silo. It is for the silo's own people."""

    where: str
    rows: int
    inputs: tuple[int, ...]  # the shape of an example
    columns: tuple[str, ...]  # of a table
    classes: dict[int, int] | None  # class -> rows; None: targets are not class numbers
    names: tuple[str, ...] = ()  # of the classes
    notes: tuple[str, ...] = ()  # what its people should know before a run

    @property
    def numbers(self) -> int:
        return int(torch.Size(self.inputs).numel())


def look(data: SiteData) -> Look:
    """Read the data as a run would, with all checks that need no experiment."""
    if data.share:
        raise ConfigError("share = true: this silo has no data of its own to look at")
    found = data.examples()
    if not isinstance(found, tuple | list) or len(found) != 2:
        count = len(found) if not isinstance(found, Mapping) else len(next(iter(found.values())))
        return Look(str(data.function), count, (), (), None)
    inputs, targets = found
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    where, rules = str(data.function), data.rules()
    if data.folder:
        (file,), _ = files_in(data.folder)
        where = str(file)
        columns, notes = columns_in(file, rules)
    classes = _classes(targets)
    numbers = rules.numbers() or (True,) * len(columns)
    notes += _problems(inputs, dict(zip(columns, numbers, strict=False)), classes)
    shape = tuple(inputs.shape[1:])
    return Look(where, len(inputs), shape, columns, classes, rules.classes, notes)


def _problems(
    inputs: Tensor, columns: Mapping[str, bool], classes: dict[int, int] | None
) -> tuple[str, ...]:
    """What does not stop a run, and is rarely meant. columns: name -> whether it is of numbers."""
    found = []
    if classes is not None and len(classes) == 1:
        found.append("all rows have the same class")
    same = (inputs == inputs[:1]).all(0).flatten().tolist()
    if constant := [
        n for (n, number), s in zip(columns.items(), same, strict=False) if number and s
    ]:
        found.append(f"the same number in all rows: {', '.join(constant)}")
    return tuple(found)


def _classes(targets: Tensor) -> dict[int, int] | None:
    if targets.is_floating_point() or targets.ndim != 1:
        return None
    values, counts = np.unique(targets.numpy(), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


class Leaving(NamedTuple):
    """One message that would leave the silo."""

    round: int
    kind: str
    bytes: int
    facts: dict[str, Json]
    tensors: list[str]  # "x float32 [28]"


class _Alone:
    """A transport to one silo in this process. It keeps what would leave."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.seen: list[Leaving] = []

    def present(self) -> list[str]:
        return [self.worker.name]

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        for silo, request in requests.items():
            answer = self.worker.handle(request)
            head = messages.glance(answer.head)
            tensors = [f"{name} {kind} {shape}" for name, kind, shape in head["tensors"]]
            facts = dict(head["facts"])
            self.seen.append(Leaving(head["round"], head["kind"], answer.size, facts, tensors))
            yield silo, answer


class Spending(NamedTuple):
    """Epsilon of this silo's rows."""

    delta: float
    rounds: list[int]
    epsilon: list[float]  # of the run, after these rounds
    before: float  # that other runs have spent, at the silo's own max_delta


class Rehearsal(NamedTuple):
    train: int  # rows to train on
    held_out: int
    parameters: int
    leaving: list[Leaving]
    spending: Spending | None  # with privacy.level = "example"


def rehearse(experiment: Experiment, site: Site, name: str) -> Rehearsal:
    """Two rounds with this silo alone. An error is the one that a real run would end with, with the
    details that otherwise stay in the silo's log."""
    refuse_client_level(experiment)
    short = experiment.changed(
        rounds=ROUNDS,
        eval_every=1,
        participation=1.0,
        failure=0.0,
        weights="uniform",
        checkpoint_every=1,
        privacy=_without_sums(experiment),
    )
    if experiment.privacy_options().secure:
        column_sums = "never" if site.limits.column_sums == "never" else "open"
        changes = {"require_secure": False, "column_sums": column_sums}
        open_limits = site.limits.model_copy(update=changes)
        site = site.model_copy(update={"limits": open_limits})
    spending = _spending(experiment, site)
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(name, site.model_copy(update={"folder": Path(folder) / "silo"}))
        part = worker.loaded("check", RunPlan(short.to_dict(), 0, 1))
        transport = _Alone(worker)
        serve(short, RunDir(Path(folder) / "run"), transport, FederationConfig((name,), 1))
        rows, parameters = part.source.examples[0], part.goal.x0.numel()
        return Rehearsal(rows, part.test_rows, parameters, transport.seen, spending)


def _without_sums(experiment: Experiment) -> dict[str, object]:
    """The table [privacy] for one silo. A sum over it would hide nothing, and is refused."""
    if experiment.privacy_options().level != "example":
        return {}
    sums = ("secure", "bits", "headroom", "first_bound", "max_epsilon")
    return {name: value for name, value in experiment.privacy.items() if name not in sums}


def _spending(experiment: Experiment, site: Site) -> Spending | None:
    """The plan of the whole run on this silo. The silo's own limits are checked against it."""
    if experiment.privacy_options().level != "example":
        return None
    from fafed.privacy.accounting import epsilon_of

    with tempfile.TemporaryDirectory() as folder:
        own = site.model_copy(update={"folder": Path(folder)})
        alone = experiment.changed(participation=1.0, weights="uniform")
        alone = alone.changed(privacy=alone.privacy | {"secure": False})
        part = Worker("check", own).loaded("check", RunPlan(alone.to_dict(), 0, 1))
        assert part.private is not None
        budget, ledger = part.private.budget, Ledger(site.folder)
        part.private.ledger = ledger
        part.private.check_plan()
        last = budget.affordable(experiment.rounds)
        rounds = sorted({max(1, last * tenth // 10) for tenth in range(1, 11)})
        return Spending(
            budget.accountant.delta,
            rounds,
            [budget.accountant.epsilon(number) for number in rounds],
            epsilon_of(ledger.of_others(""), site.limits.max_delta),
        )
