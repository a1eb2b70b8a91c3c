"""Silos in this process: real workers with real folders, only the wire is missing; and the
simulation that a run over silos is held against."""

from __future__ import annotations

from pathlib import Path

from fafed.engines.base import Snapshot
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir
from fafed.silos.messages import Message
from fafed.silos.serve import serve
from fafed.silos.server import FederationConfig
from fafed.silos.site import Site
from fafed.silos.worker import Worker
from fafed.training.cohort import Cohort

NAMES = ("a", "b", "c")


def site(folder: Path, **changes: object) -> Site:
    content = {"folder": folder, "allow": ["softmax", "lstm"], "data": {"share": True}}
    return Site.model_validate(content | changes)


class Wire:
    """Carries messages within this process; tests spoil it."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self.workers = workers
        self.absent: set[str] = set()
        self.silent: set[str] = set()
        self.spoil = lambda silo, answer: answer

    def present(self) -> list[str]:
        return [name for name in self.workers if name not in self.absent]

    def ask(self, requests, seconds, limit):
        for silo, request in reversed(requests.items()):  # in another order than the clients'
            if silo in self.absent:
                yield silo, None
                continue
            request = Message(bytes(request.head), bytes(request.body))
            answer = self.workers[silo].handle(request)
            if silo not in self.silent:
                yield silo, self.spoil(silo, answer)


def local_federation(tmp: Path, names=NAMES, **changes: object) -> Wire:
    return Wire({name: Worker(name, site(tmp / name, **changes)) for name in names})


def run(
    experiment: Experiment, tmp: Path, wire: Wire, on_record=None, bounds=None, **federation
) -> RunDir:
    place = RunDir(tmp / "run")
    names = tuple(wire.workers)
    federation = FederationConfig(names, **({"min_silos": 1} | federation))
    measure = "share" if next(iter(wire.workers.values())).site.data.share else None
    serve(experiment, place, wire, federation, measure=measure, bounds=bounds, on_record=on_record)
    return place


def final(place: RunDir):
    """The vector that a run ended with."""
    from safetensors import safe_open

    from fafed.experiments import checkpoint

    with safe_open(checkpoint.found(place.checkpoints)[0], framework="pt") as file:
        return file.get_tensor("server.0.x")


class Scripted(Cohort):
    """Everyone, but for those who are absent from a round."""

    def __init__(self, population, absent):
        super().__init__(population)
        self.absent = absent  # round -> clients

    def answering(self, round, invited):
        return tuple(c for c in invited if c not in self.absent.get(round, ()))


def simulated(found: Experiment, absent, forgets=None):
    """The vector of a simulation that goes as a run over silos went. `forgets`: round -> the client
    that had lost its state when it began."""
    run = prepare(found).run
    run.cohort = Scripted(run.engine.population, absent)
    for number in range(1, found.rounds + 1):
        if number in (forgets or {}):
            states = run.engine.states
            states[forgets[number]] = None
            run.engine.restore(Snapshot(states, {}))
            run.state = run.state._replace(members=())
        run.round()
    return run.state.shared.x
