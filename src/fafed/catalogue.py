"""What each algorithm is and costs, read and measured from its code."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import numpy as np
import torch

from fafed.algorithm import Algorithm
from fafed.algorithms import ALGORITHMS
from fafed.data.batches import Examples
from fafed.objective import Function
from fafed.training import build


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    default: Any
    allowed: str
    about: str


@dataclasses.dataclass(frozen=True)
class Card:
    """One algorithm; costs are per client and, but for the gradients, per round."""

    name: str
    cls: str
    paper: str
    settings: tuple[Setting, ...]
    up: float  # vectors sent to the server
    down: float  # vectors sent to a client
    gradients: float  # evaluations per local step
    opening: bool  # whether there is an exchange before the first round
    everyone: bool  # whether all clients must take part in every round


def cards() -> list[Card]:
    return [card(name) for name in ALGORITHMS]


def card(name: str) -> Card:
    cls = ALGORITHMS[name]
    algorithm = cls()
    up, down, gradients = _costs(algorithm)
    return Card(
        name=name,
        cls=cls.__name__,
        paper=_paper(cls),
        settings=tuple(
            Setting(f.name, f.default, str(f.metadata["rule"]), f.metadata["about"])
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        ),
        up=up,
        down=down,
        gradients=gradients,
        opening=bool(algorithm.opening()),
        everyone=algorithm.everyone,
    )


def _paper(cls: type[Algorithm]) -> str:
    """The citation in the module's first paragraph that is nearest behind the class's name."""
    first = (sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0].replace("\n", " ")
    citations = re.findall(r"([^()]*)\(([^()]*https?://[^()\s]+)\)", first)
    for names, citation in citations:
        if cls.__name__.lower() in names.lower():
            return str(citation)
    return str(citations[0][1]) if citations else first


def _costs(algorithm: Algorithm, d: int = 16, q: int = 4) -> tuple[float, ...]:
    """Run two rounds on a tiny problem and look at the second."""
    clients = algorithm.population or 2
    x0 = torch.ones(d)
    pool = (torch.arange(clients * d, dtype=torch.float32).reshape(-1, d) / d,)
    source = Examples(pool, np.split(np.arange(clients), clients), batch_size=1)
    objective = Function(lambda x, data: (x - data[0]).square().mean(), x0)
    run = build(algorithm, objective, source, rounds=2, local_steps=q, engine="loop")
    one, two = run
    vector = clients * d * x0.element_size()
    return (
        (two.bytes_up - one.bytes_up) / vector,
        (two.bytes_down - one.bytes_down) / vector,
        (two.gradients - one.gradients) / (clients * q),
    )
