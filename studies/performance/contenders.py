"""The programs that are compared, and the command that starts each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from studies.performance import environments
from studies.performance.environments import OWN, ROOT
from studies.performance.jobs import LARGE

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True)
class Contender:
    name: str
    label: str
    runner: str  # a module of studies.performance.runners
    environment: str = OWN
    arguments: tuple[str, ...] = ()
    threads: int = 1  # of torch, in each process
    processes: int = 1  # more than one: by torchrun
    algorithm: str = "fedavg"
    left_out: Mapping[str, str] = field(default_factory=dict)  # job -> why

    @property
    def comparable(self) -> bool:
        """Whether its final vector must equal that of the others."""
        return self.algorithm == "fedavg"

    def command(self, task: Path, answer: Path) -> list[str]:
        launcher = (*TORCHRUN, str(self.processes)) if self.processes > 1 else ()
        own = (*self.arguments, "--threads", str(self.threads), "--began", repr(time.time()))
        python = environments.python(self.environment)
        module = f"studies.performance.runners.{self.runner}"
        return [str(python), *launcher, "-m", module, str(task), str(answer), *own]

    def environment_variables(self) -> dict[str, str]:
        """Environment variables."""
        threads = str(self.threads)
        own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        return {**os.environ, **own, "PYTHONWARNINGS": "ignore"}


NOWHERE: Mapping[str, str] = {}


def _ours(
    name: str, label: str, algorithm: str, workers: int, left_out: Mapping[str, str] = NOWHERE
) -> Contender:
    return Contender(
        name,
        label,
        "ours",
        arguments=("--algorithm", algorithm, "--workers", str(workers)),
        algorithm=algorithm,
        left_out=left_out,
    )


_MANY = "one process for each client: too many of them"
_LARGE = "a round takes minutes, and the plain loop stands for it"
_FEW = dict.fromkeys(LARGE, "compared with a plain loop, pfl and Flower alone")
_LONG = {"J5": _LARGE, "J5H": _LARGE}
_NOT_WRITTEN = dict.fromkeys(("J5", "J5H", *LARGE), "its model is not written in JAX here")
_ALL = (
    _ours("ours", "fafed, 2 workers", "fedavg", 2),
    _ours("ours-1", "fafed, 1 worker", "fedavg", 1),
    Contender("plain-1", "plain loop, 1 thread", "plain"),
    Contender("plain-2", "plain loop, 2 threads", "plain", threads=2),
    Contender("pfl-1", "pfl, 1 process", "pfl", "pfl", left_out=_LONG),
    Contender("pfl-2", "pfl, 2 processes", "pfl", "pfl", processes=2),
    Contender("flower", "Flower, 2 actors", "flower", "flower", left_out={"J5H": _LARGE}),
    Contender("fedlab", "FedLab, 1 process", "fedlab", "fedlab", left_out=_LONG | _FEW),
    Contender(
        "flare",
        "NVIDIA FLARE, 2 calls at once",
        "flare",
        "flare",
        left_out={"J3": _MANY, "J6": _MANY, **_LONG, **_FEW},
    ),
    Contender(
        "jax-vmap",
        "JAX by hand, all clients in one vmap",
        "jax_round",
        "jax",
        arguments=("--ways", "vmap"),
        left_out=_NOT_WRITTEN,
    ),
    Contender(
        "jax-map",
        "JAX by hand, client by client on each core",
        "jax_round",
        "jax",
        arguments=("--ways", "map"),
        left_out=_NOT_WRITTEN,
    ),
    Contender("fedjax", "FedJAX", "fedjax", "jax", left_out=_NOT_WRITTEN),
    _ours("ours-fafed", "fafed, FAFED, 2 workers", "fafed", 2),
    _ours(
        "ours-scaffold",
        "fafed, SCAFFOLD, 2 workers",
        "scaffold",
        2,
        {"J5": "its gradients are FedAvg's"},
    ),
)
CONTENDERS = {contender.name: contender for contender in _ALL}
OURS = "ours"  # times are given as multiples of this one's
TRUTH = "plain-1"  # final vectors are compared with this one's
GROUPS = {
    "ours": [n for n in CONTENDERS if n.startswith("ours")],
    "plain": ["plain-1", "plain-2"],
    "pfl": ["pfl-1", "pfl-2"],
    "jax": ["jax-vmap", "jax-map", "fedjax"],
    "all": list(CONTENDERS),
}


def chosen(names: str) -> list[Contender]:
    """The contenders named in a list such as "ours,pfl-2"; OURS and TRUTH always take part."""
    wanted = {OURS, TRUTH}
    for name in names.split(","):
        if name not in CONTENDERS and name not in GROUPS:
            known = ", ".join([*GROUPS, *CONTENDERS])
            raise SystemExit(f"--with: nobody is called {name!r}; there are {known}")
        wanted |= set(GROUPS.get(name, [name]))
    return [contender for contender in _ALL if contender.name in wanted]
