"""What can be drawn: quantities on the y axis, costs on the x axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fafed.core.records import higher_is_better
from fafed.core.run_data import RunData, flatten
from fafed.errors import ConfigError, nearest
from fafed.report.numbers import PERCENT, Stat, number, percent, spread

Json = dict[str, Any]
Read = Callable[[Json], float | None]


@dataclass(frozen=True)
class Axis:
    """A cost: what a run has spent up to a record."""

    key: str
    name: str  # on its button
    title: str  # under the chart
    unit: str  # "B" and "s" are shown with SI prefixes, "" is a plain count
    read: Callable[[Json], float]


AXES = {
    axis.key: axis
    for axis in (
        Axis("rounds", "Rounds", "Rounds", "", lambda r: float(r["round"])),
        Axis(
            "gradients",
            "Gradients",
            "Gradient evaluations (one step's batch each, all clients)",
            "",
            lambda r: float(r["gradients"]),
        ),
        Axis(
            "bytes",
            "Bytes",
            "Bytes sent and received, all clients",
            "B",
            lambda r: float(r["bytes_up"] + r["bytes_down"]),
        ),
        Axis(
            "seconds",
            "Seconds",
            "Seconds spent in rounds, evaluation not counted",
            "s",
            lambda r: float(r["seconds"]),
        ),
    )
}


@dataclass(frozen=True)
class Quantity:
    """A measured quantity: how to read it from a record, and how to format it."""

    key: str
    title: str
    read: Read
    higher: bool = False
    share: bool = False  # in [0, 1], written as a percentage
    logarithmic: bool = False  # whether it has a logarithmic axis

    def text(self, value: float) -> str:
        return percent(value) if self.share else number(value)

    def brief(self, value: float) -> str:
        """The value without trailing zeros."""
        return f"{100 * value:.6g}{PERCENT}" if self.share else f"{value:.6g}"

    def spread(self, stat: Stat) -> str:
        return spread(stat, as_percent=self.share)


# Two numbers with two names. The clients' is the mean loss of their own models at the points of
# their local steps. The server's is the loss of its model on training data, after the round.
TRAIN_LOSS = Quantity(
    "train_loss",
    "Training loss of the clients",
    lambda record: record.get("train_loss"),
    logarithmic=True,
)
SERVER_TRAIN_LOSS = Quantity(
    "server_train_loss",
    "Training loss of the server's model",
    lambda record: (record.get("train") or {}).get("loss"),
    logarithmic=True,
)
TRAINING = (SERVER_TRAIN_LOSS, TRAIN_LOSS)


def training(runs: Sequence[RunData]) -> list[Quantity]:
    """The training losses, the one that is shown first before the other.

    The server's comes first if every run has measured it: it is about the model that the run ends
    with. If some runs have not, the clients' comes first, because every run has it.
    """
    begun = [run for run in runs if run.records]
    has = [any(SERVER_TRAIN_LOSS.read(r) is not None for r in run.records) for run in begun]
    if not any(has):
        return [TRAIN_LOSS]
    return [SERVER_TRAIN_LOSS, TRAIN_LOSS] if all(has) else [TRAIN_LOSS, SERVER_TRAIN_LOSS]


def _names(runs: Sequence[RunData], part: str) -> list[str]:
    """Names in records[part], in the order in which they first appear."""
    names: dict[str, None] = {}
    for run in runs:
        for record in run.records:
            names |= dict.fromkeys(record.get(part) or {})
    return list(names)


def _reader(part: str, name: str) -> Read:
    return lambda record: (record.get(part) or {}).get(name)


def _exp(read: Read) -> Read:
    def perplexity(record: Json) -> float | None:
        loss = read(record)
        if loss is None:
            return None
        return math.exp(loss) if loss < 700 else math.inf

    return perplexity


def _metric(part: str, name: str, runs: Sequence[RunData]) -> Quantity:
    read = _reader(part, name)
    higher = higher_is_better(name)
    values = [v for run in runs for r in run.records if (v := read(r)) is not None]
    return Quantity(
        _key(part, name),
        f"{part} {name}".replace("_", " ").capitalize(),
        read,
        higher=higher,
        share=higher and all(0 <= v <= 1 for v in values if math.isfinite(v)),
        logarithmic=name == "perplexity" or "loss" in name,
    )


def _key(part: str, name: str) -> str:
    return name if part == "test" else f"{part}_{name}"


def evaluated(runs: Sequence[RunData]) -> list[Quantity]:
    """The quantities of the test data, then of the validation data, the most important first.

    First comes the perplexity of language models, then the accuracy, then another metric for which
    more is better, then the loss, then anything else.
    """
    found: list[Quantity] = []
    language = all(flatten(run.config).get("model.name") == "lstm" for run in runs)
    for part in ("test", "validation"):
        names = _names(runs, part)
        quantities = {name: _metric(part, name, runs) for name in names}
        if language and "loss" in names and "perplexity" not in names:
            quantities["perplexity"] = Quantity(
                _key(part, "perplexity"),
                f"{part.capitalize()} perplexity = exp(loss)",
                _exp(_reader(part, "loss")),
                logarithmic=True,
            )
        first = {"perplexity": 0, "accuracy": 1, "loss": 3}
        order = sorted(quantities, key=lambda n: first.get(n, 2 if quantities[n].higher else 4))
        found += [quantities[name] for name in order]
    return found


def diagnosed(runs: Sequence[RunData]) -> list[Quantity]:
    """The algorithms' diagnostics."""
    return [
        Quantity(name, name.replace("_", " "), _reader("diagnostics", name))
        for name in _names(runs, "diagnostics")
    ]


def primary(runs: Sequence[RunData]) -> Quantity:
    """The quantity that ranks curves: the first of `evaluated`, or else of `training`."""
    return next(iter([*evaluated(runs), *training(runs)]))


def find_quantity(runs: Sequence[RunData], name: str) -> Quantity:
    known = {q.key: q for q in [*evaluated(runs), *training(runs), *diagnosed(runs)]}
    if name not in known:
        raise ConfigError(f"no run has a metric {name!r}; {nearest(name, known)}")
    return known[name]


def find_axis(name: str) -> Axis:
    if name not in AXES:
        raise ConfigError(f"axis {name!r} is unknown; {nearest(name, AXES)}")
    return AXES[name]
