"""Format numbers for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = "—"  # replaces a missing number
PERCENT = "\u00a0%"  # with a space that does not break
DIGITS = 4  # significant ones: enough to rank curves, few enough to compare at a glance


@dataclass(frozen=True)
class Stat:
    """Mean over seeds and, given at least two, their sample standard deviation (ddof = 1)."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Stat:
        if not all(map(math.isfinite, values)):
            # One diverged seed makes the mean meaningless, and must not be hidden.
            return cls(math.nan, None, len(values))
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, len(values))


def decimals(value: float, digits: int = DIGITS) -> int:
    """How many decimals show `digits` significant digits of `value`."""
    if value == 0 or not math.isfinite(value):
        return digits - 1
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def number(value: float, places: int | None = None) -> str:
    if not math.isfinite(value):
        return "not finite"
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{DIGITS - 1}g}"
    return f"{value:,.{decimals(value) if places is None else places}f}"


def percent(value: float) -> str:
    return f"{100 * value:.2f}{PERCENT}" if math.isfinite(value) else "not finite"


def spread(stat: Stat, as_percent: bool = False) -> str:
    """Mean ± std, both with the same number of decimals."""
    if stat.std is None or not math.isfinite(stat.mean):
        return percent(stat.mean) if as_percent else number(stat.mean)
    if as_percent:
        return f"{100 * stat.mean:.2f} ± {100 * stat.std:.2f}{PERCENT}"
    if stat.mean != 0 and not 1e-4 <= abs(stat.mean) < 1e7:
        return f"{number(stat.mean)} ± {stat.std:.2g}"
    places = decimals(stat.mean)
    return f"{number(stat.mean, places)} ± {number(stat.std, places)}"


def count(value: float) -> str:
    """A count. A mean of counts over seeds may have a fraction, shown with one digit."""
    return f"{value:,.0f}" if float(value).is_integer() or value >= 1000 else f"{value:,.1f}"


def size(nbytes: float) -> str:
    """Bytes in powers of 1000: kB, MB, GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # 999.95 would print as 1000, so it already gets the next unit.
        if nbytes < 999.5 or unit == "TB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.{min(2, decimals(nbytes, 3))}f} {unit}"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def listing(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
