"""A federation in this process under secure aggregation: workers with certificates of a made-up
project, and a wire that keeps everything that the server receives."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from secure_silos import MAKERS, PEM, Project
from silo_tools import Wire, site
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos.messages import Message
from fafed.silos.site import Kit
from fafed.silos.worker import Worker

NAMES = ("a", "b", "c", "d", "e")


@cache
def project(number: int) -> Project:
    return Project()


@cache
def pem(name: str, number: int) -> tuple[bytes, bytes, bytes]:
    """A key, its certificate, and that of the authority."""
    own = project(number)
    key = MAKERS["ed25519"]()
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    certificate = own._certificate(name, key).public_bytes(PEM)
    return key.private_bytes(PEM, *form), certificate, own.root.public_bytes(PEM)


def kit(folder: Path, name: str, project: int = 0) -> Kit:
    found = Kit(folder / "client.key", folder / "client.crt", folder / "rootCA.pem")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(found, pem(name, project), strict=True):
        path.write_bytes(content)
    return found


def secure_worker(tmp: Path, name: str, names=NAMES, **changes: object) -> Worker:
    own = {
        "allow": ["softmax", "modules:Assigned", str(tmp / "data")],
        "secure": {"silos": [*names]},
    }
    return Worker(name, site(tmp / name, **(own | changes)), kit(tmp / "kits" / name, name))


class Recording(Wire):
    """Keeps what the server receives. `drop` says which requests a silo does not answer: a function
    of (silo, kind, round, exchange). `lie` changes a request."""

    def __init__(self, workers):
        super().__init__(workers)
        self.received: list[tuple[str, str, Message]] = []
        self.asked: list[tuple[str, str]] = []
        self.drop = lambda silo, kind, round, exchange: False
        self.lie = lambda silo, head, request: request

    def ask(self, requests, seconds, limit):
        for silo, request in reversed(requests.items()):
            head = json.loads(request.head)
            kind, *place = (head[name] for name in ("kind", "round", "exchange"))
            self.asked.append((silo, kind))
            if silo in self.absent or self.drop(silo, kind, *place):
                yield silo, None
                continue
            request = self.lie(silo, head, Message(bytes(request.head), bytes(request.body)))
            answer = self.workers[silo].handle(request)
            answer = Message(bytes(answer.head), bytes(answer.body))
            self.received.append((silo, kind, answer))
            yield silo, answer


def federation(tmp: Path, names=NAMES, **changes: object) -> Recording:
    return Recording({name: secure_worker(tmp, name, names, **changes) for name in names})


def secure_experiment(tmp: Path, name="fafed", clients=5, **changes) -> Experiment:
    write_data(tmp / "data", clients)
    options = {"secure": True, **changes.pop("privacy", {})}
    settings = {"rounds": 3, "algorithm": {"name": name}, "engine": "loop", "privacy": options}
    return Experiment.from_dict(experiment(tmp / "data", **(settings | changes)))


def in_simulation(found: Experiment, tmp: Path) -> RunDir:
    place = RunDir(tmp / "simulated")
    execute(found, place)
    return place
