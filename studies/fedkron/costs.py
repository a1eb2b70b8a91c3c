"""Of docs/fedkron.md: what it takes to reach a target, untuned defaults, and other step sizes.
All from the results of the two studies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from fafed.report.numbers import NOTHING
from studies import markdown
from studies.which_algorithm import results as which
from studies.which_algorithm.jobs import JOBS, ONE_SEED, SEEDS
from studies.which_algorithm.results import TITLES, Results, percent

OURS = "fedkron"
FIRST = SEEDS.index(ONE_SEED)


class Row(NamedTuple):
    label: str
    rounds: float  # to the target; infinite: not every seed reached it
    megabytes: float
    untuned: float | None  # None: not measured. 0: diverged
    worst: float | None  # of the trials, in points below the best


def costs(found: dict[str, Any], r: Results, rivals: tuple[str, ...], fedavgm: str) -> str:
    text = f"""\
## To a target, untuned, and with other step sizes

- *rounds*, *MB*: until the test set has the target, the mean of three seeds. MB are those of one
  client, both ways. Fewer rounds are fewer seconds only if a round takes as long.
- *untuned*: with the default that the rule of [Which algorithm should I use?](which-algorithm.md)
  takes for all settings, with seed {ONE_SEED} and a falling step size. FedKron has its own default.
- *other step sizes*: how many points the worst of the four trials is behind the best, on held-out
  data. Not quite fair: from end to end FedKron's step sizes are a factor of 8 apart, those of
  other methods about 30. Those with two settings have two step sizes only.
"""
    head = ["method", "rounds", "MB", "untuned", "other step sizes"]
    for job in JOBS:
        rows = sorted(_rows(found, r, job, rivals, fedavgm), key=lambda row: row.rounds)
        cells = [
            [
                row.label,
                _number(row.rounds),
                _number(row.megabytes),
                NOTHING if row.untuned is None else percent(row.untuned),
                NOTHING if row.worst is None else f"-{100 * row.worst:.1f}",
            ]
            for row in rows
        ]
        title = f"{TITLES[job].capitalize()}, target {r.target(job)}"
        text += f"\n### {title}\n\n{markdown.table(head, cells)}"
    return text


def _rows(
    found: dict[str, Any], r: Results, job: str, rivals: tuple[str, ...], fedavgm: str
) -> Iterator[Row]:
    ours = found["default"][job]
    untuned = ours["accuracy"][FIRST]
    yield _row(f"**{which.link(OURS)}, default**", ours, untuned, _worst(r, job, OURS))
    yield _row(fedavgm, found["fedavgm"][job], None, None)
    for name in rivals:
        if name in r.parts[job]:
            own = r.parts[job][name]
            yield _row(which.link(name), own, r.untuned(job, name), _worst(r, job, name))


def _row(label: str, entry: dict[str, Any], untuned: float | None, worst: float | None) -> Row:
    spent = entry["to_target"]
    sent = spent.get("bytes", math.inf) / 1e6
    return Row(label, spent.get("rounds", math.inf), sent, untuned, worst)


def _worst(r: Results, job: str, name: str) -> float | None:
    ends = [trial["accuracy"] or 0 for trial in r.grid(job, name)]
    return max(ends) - min(ends) if len(ends) > 1 else None


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not reached"
