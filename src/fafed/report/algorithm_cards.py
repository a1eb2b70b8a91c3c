"""A card for each algorithm: what it does, and its costs, measured from its code."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fafed.algorithms import ALGORITHMS
from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.batch import Batch
from fafed.data.sources.examples import Examples
from fafed.objectives.base import Evaluation, Memory
from fafed.objectives.function import Function
from fafed.report.numbers import listing
from fafed.training.build import build
from fafed.training.loop import Run


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    default: object
    allowed: str
    about: str


@dataclasses.dataclass(frozen=True)
class Card:
    """One algorithm with its defaults. Costs are per client and round; gradients are per local
    step. A vector has as many numbers as the model has parameters."""

    name: str
    cls: str
    module: str  # the file, which related algorithms share
    paper: str
    what: str  # one sentence
    use: str  # "Use it when ..."
    beware: str  # "Beware: ..."
    update: str  # the module's text: the update in symbols, departures from the paper
    settings: tuple[Setting, ...]
    up: float  # vectors sent to the server
    down: float  # vectors sent to a client
    gradients: float  # evaluations that one more local step takes
    besides: tuple[str, ...]  # data of additional gradients in a round: "anchor", "full"
    exchanges: int  # exchanges in a round
    kept: float  # vectors that a client keeps between rounds
    server: float  # vectors that the server keeps, the model included
    opening: bool  # whether there is an exchange before the first round
    requires_all_clients: bool  # whether all clients must take part in every round
    population: int | None  # how many clients there must be; None: any number
    adapts: str  # what scales steps by the gradients' size: "no", "server", "local, ..."


def cards() -> list[Card]:
    return [card(name) for name in ALGORITHMS]


def card(name: str) -> Card:
    cls = ALGORITHMS[name]
    algorithm = cls()
    what, use, beware = _advice(cls)
    draws = [kind for exchange in algorithm.exchanges() for kind in exchange.draw]
    return Card(
        name=name,
        cls=cls.__name__,
        module=cls.__module__,
        paper=_paper(cls),
        what=what,
        use=use,
        beware=beware,
        update=inspect.cleandoc(_module_text(cls)).partition("\n\n")[2],
        settings=tuple(
            Setting(f.name, f.default, str(f.metadata["rule"]), f.metadata["about"])
            for f in dataclasses.fields(cls)
        ),
        **_costs(algorithm),
        besides=tuple(kind for kind in draws if kind != "round"),
        exchanges=len(algorithm.exchanges()),
        opening=bool(algorithm.opening()),
        requires_all_clients=algorithm.requires_all_clients,
        population=algorithm.population,
        adapts=_adapts(algorithm),
    )


# What the docstrings say.


def _module_text(cls: type[AnyAlgorithm]) -> str:
    return sys.modules[cls.__module__].__doc__ or ""


def _paper(cls: type[AnyAlgorithm]) -> str:
    """The first citation after the class's name in the module's first paragraph; "" if the method
    is fafed's own."""
    first = _module_text(cls).split("\n\n")[0].replace("\n", " ")
    citations = re.findall(r"([^()]*)\(([^()]*https?://[^()\s]+)\)", first)
    for names, citation in citations:
        if cls.__name__.lower() in names.lower():
            return str(citation)
    return str(citations[0][1]) if citations else ""


def _advice(cls: type[AnyAlgorithm]) -> tuple[str, str, str]:
    """The first sentence, "Use it when ..." and "Beware: ..." in the class's docstring."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    shape = re.fullmatch(r"(.+?\.) (Use it when .+) (Beware: .+)", text)
    if shape is None:
        raise ValueError(
            f"the docstring of {cls.__name__} is not 'What it is. Use it when ... Beware: ...': "
            f"{text!r}"
        )
    return str(shape[1]), str(shape[2]), str(shape[3])


# What the code does.


def _costs(algorithm: AnyAlgorithm, d: int = 4096, q: int = 4) -> dict[str, float]:
    """Run two rounds on a tiny problem and measure the second."""
    clients = algorithm.population or 2
    rows = torch.arange(clients * d, dtype=torch.float32).reshape(clients, d) / d
    square = [(math.isqrt(d), math.isqrt(d))]  # one matrix
    objective = Function(
        lambda x, data: (x - data[0]).square().mean(), torch.ones(d), shapes=square
    )
    vector = objective.x0.numel() * objective.x0.element_size()
    run, longer = (_run(algorithm, objective, rows, steps) for steps in (q, q + 1))
    (one, two), (first, second) = run, longer
    more = (second.gradients - first.gradients) - (two.gradients - one.gradients)
    return {
        "up": (two.bytes_up - one.bytes_up) / (clients * vector),
        "down": (two.bytes_down - one.bytes_down) / (clients * vector),
        "gradients": more / clients,
        "kept": tree.nbytes(algorithm.join(objective.x0)) / vector,
        "server": tree.nbytes(run.state.shared) / vector,
    }


def _run(algorithm: AnyAlgorithm, objective: Function, rows: Tensor, steps: int) -> Run:
    """Two rounds with one row of data for each client."""
    source = Examples((rows,), np.split(np.arange(len(rows)), len(rows)), batch_size=1)
    return build(algorithm, objective, source, rounds=2, local_steps=steps, engine="loop")


class _Slopes(Function):
    """Linear losses <data, x>, whose gradients are the data. A method that does not adapt makes
    steps in proportion to them. Remembers the points of the first client."""

    def __init__(self, slopes: Tensor) -> None:
        super().__init__(lambda x, data: (data[0] @ x).sum(), torch.ones_like(slopes[0]))
        self.first = slopes[0]
        self.seen: list[Tensor] = []

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        if torch.equal(batch.data[0][0], self.first):
            self.seen.append(x.detach())
        return super().evaluate(x, batch, memory)


def _adapts(algorithm: AnyAlgorithm, d: int = 3) -> str:
    """Whether steps are in proportion to the gradients. If not: where the scale is applied."""
    clients = algorithm.population or 2
    slopes = 1 + torch.arange(clients * d, dtype=torch.float64).reshape(clients, d) % 5

    def moves(factors: Sequence[float]) -> tuple[Tensor, Tensor]:
        """The moves of the server's model, and of the first client in the second round."""
        scaled = slopes * torch.tensor(factors, dtype=slopes.dtype)[:, None]
        objective = _Slopes(scaled)
        run = _run(algorithm, objective, scaled, 3)
        run.round()
        objective.seen.clear()
        run.round()
        points = torch.stack(objective.seen)
        return run.state.shared.x - objective.x0, points - points[0]

    (x, local), (x_twice, local_twice) = moves([1] * clients), moves([2] * clients)
    if torch.allclose(x_twice, 2 * x):
        return "no"
    if torch.allclose(local_twice, 2 * local):
        return "server"
    if clients == 1:
        return "local"
    _, beside_another = moves([1, *[2] * (clients - 1)])
    return "local, private" if torch.allclose(local, beside_another) else "local, shared"


# The page.

INTRODUCTION = """\
# Algorithms

`fafed algorithms --markdown` prints this page. Costs are measured from the code, with the default
settings. A *vector* has as many numbers as the model has parameters.
[Which algorithm should I use?](which-algorithm.md) compares the methods.
[Add your own algorithm](add-an-algorithm.md) shows how to write another one.

All updates use the same letters: x is the server's model, q the number of local steps in a round, g
or g_i a gradient on the batch of the current step (of client i), mean_i the mean over the clients
that take part. Products, squares, roots and quotients of vectors are element by element. `eta` is
always a step size.

## Schedules

Where a setting allows a schedule, its value may change from step to step. Schedules count local
steps t = 1, 2, ... over all rounds. In files a schedule is a table, in Python an object of
`fafed.schedules` or any function of t:

```toml
eta = { schedule = "linear", peak = 0.1, warmup = 0.1 }
```

```python
fafed.FedAvg(eta=fafed.schedules.Linear(peak=0.1, warmup=0.1))
fafed.FedAvg(eta=lambda t: 0.1 if t < 500 else 0.01)
```

- `linear`, `Linear(peak, end=0, warmup=0, over=None)`: rises from 0 to `peak` in the first `warmup`
  share of the steps, then falls in a straight line to `end` times `peak`.
- `cosine`, `Cosine(...)`: the same with half a cosine.
- `step`, `Step(kappa, every, factor=0.1)`: `kappa`, times `factor` after every `every` steps.
- `power`, `Power(kappa=1, w=1, every=1, exponent=1/3)`: `kappa / (w + u)^exponent`, where u counts
  steps, or periods of `every` steps.
- `theory-step`, `theory-momentum`, `stem-step`, `stem-momentum`, `TheoryStep` and so on: those of
  FAFED's and STEM's theory.

In files `every` may also be `"round"` or `"epoch"`. `linear` and `cosine` fall over the whole run,
or over `over` steps. Without `over` such a run cannot get more rounds later, because its earlier
rounds would have been others.

A comparison of methods is fair only if all have the same kind of schedule.
"""

OVERVIEW = """\
## Overview

*Up* and *down*: vectors per client and round. *Keeps*: vectors that a client keeps between rounds.
*Gradients*: evaluations per local step. "+ data" adds one per round on the client's whole data.
*Adapts*: whether the size of gradients scales the server's steps or the local steps, and whether
clients share this scale. *Needs all*: whether all clients must take part in every round.
"""


def markdown(found: Sequence[Card]) -> str:
    """The whole of docs/algorithms.md."""
    parts = [INTRODUCTION, OVERVIEW]
    parts.append(_table(OVERVIEW_COLUMNS, (_overview(card) for card in found)))
    for _, family in itertools.groupby(found, lambda card: card.module):
        parts += _family(list(family))
    return "\n".join(parts)


OVERVIEW_COLUMNS = ("method", "up", "down", "keeps", "gradients", "adapts", "needs all")


def _overview(card: Card) -> list[str]:
    whole = " + data" if "full" in card.besides else ""
    needs_all = "yes" if card.requires_all_clients else "no"
    needs_all = "one client" if card.population == 1 else needs_all
    numbers = [_number(n) for n in (card.up, card.down, card.kept)]
    link = f"[{card.cls}](#{card.cls.lower()})"
    return [link, *numbers, _number(card.gradients) + whole, card.adapts, needs_all]


def _family(members: list[Card]) -> Iterator[str]:
    """The methods of one file: first the update, then each method."""
    if len(members) == 1:
        yield f"## {members[0].cls}\n"
        yield from _method(members[0], update=True)
        return
    yield f"## {listing([card.cls for card in members])}\n"
    yield _fenced(members[0].update)
    for card in members:
        yield f"### {card.cls}\n"
        yield from _method(card, update=False)


def _method(card: Card, update: bool) -> Iterator[str]:
    citation, _, address = card.paper.rpartition("https://")
    text = citation.strip(" ,") or address
    origin = f"[{text}](https://{address})" if address else "fafed's own, experimental"
    yield f'{origin} · `fafed.{card.cls}`, in files `name = "{card.name}"`\n'
    yield f"{card.what}\n"
    if update:
        yield _fenced(card.update)
    yield f"**Use it when**{card.use.removeprefix('Use it when')}\n"
    yield f"**Beware:**{card.beware.removeprefix('Beware:')}\n"
    yield _cost_lines(card)
    rows = ([f"`{s.name}`", f"`{_literal(s.default)}`", s.allowed, s.about] for s in card.settings)
    yield _table(("setting", "default", "allowed", "meaning"), rows)


def _cost_lines(card: Card) -> str:
    trips = "" if card.exchanges == 1 else f", in {card.exchanges} exchanges"
    data = {"full": "one on the client's whole data", "anchor": "one on a larger batch"}
    besides = "".join(f", and {data[kind]} per round" for kind in card.besides)
    server = f"the server {_vectors(card.server)}" + (", the model" if card.server == 1 else "")
    lines = [
        f"Sent per client and round: {_vectors(card.up)} up, {_number(card.down)} down{trips}.",
        f"Computed: {_number(card.gradients)} gradient{'s' * (card.gradients != 1)} per local step"
        f"{besides}.",
        f"Kept between rounds: a client {_vectors(card.kept)}, {server}.",
    ]
    if card.opening:
        lines.append("One exchange before the first round.")
    if card.population == 1:
        lines.append("For one client.")
    elif card.requires_all_clients:
        lines.append("All clients must take part in every round.")
    return "".join(f"- {line}\n" for line in lines)


def _fenced(text: str) -> str:
    """Turn indented blocks into fenced ones. The text between them is Markdown already."""
    parts = []
    for indented, lines in itertools.groupby(_glued(text), lambda line: line.startswith("    ")):
        block = "\n".join(line.removeprefix("    ") if indented else line for line in lines)
        parts.append(f"```text\n{block.strip()}\n```" if indented else block.strip())
    return "\n\n".join(parts) + "\n"


def _glued(text: str) -> Iterator[str]:
    """The blocks of a text. Blank lines between two indented blocks belong to these."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        inside = 0 < i < len(lines) - 1 and lines[i - 1][:4] == lines[i + 1][:4] == "    "
        yield "    " if not line and inside else line


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(value: float) -> str:
    return f"{value:.2g}"


def _vectors(value: float) -> str:
    number = _number(value)
    return "nothing" if value == 0 else f"{number} vector{'s' * (number != '1')}"


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
