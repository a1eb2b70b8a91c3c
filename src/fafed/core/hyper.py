"""Hyper-parameters: a default, the allowed values, and a description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Rule:
    """The values that a hyper-parameter may have."""

    text: str
    test: Callable[[Any], bool]
    schedule: bool = False

    def allows(self, value: object) -> bool:
        if self.schedule and callable(value) and not isinstance(value, type):
            return True
        return self.test(value)

    def __str__(self) -> str:
        return self.text + (" or a schedule" if self.schedule else "")


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def above(low: float, *, schedule: bool = False) -> Rule:
    return Rule(f"a number > {low:g}", lambda v: _number(v) and v > low, schedule)


def at_least(low: float, *, schedule: bool = False) -> Rule:
    return Rule(f"a number >= {low:g}", lambda v: _number(v) and v >= low, schedule)


def between(low: float, high: float, *, schedule: bool = False) -> Rule:
    return Rule(
        f"a number in [{low:g}, {high:g}]", lambda v: _number(v) and low <= v <= high, schedule
    )


def integer(low: int) -> Rule:
    return Rule(
        f"an integer >= {low}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= low,
    )


def one_of(*choices: str, function: bool = False) -> Rule:
    text = "one of " + ", ".join(map(repr, choices)) + (" or a function" if function else "")
    return Rule(text, lambda v: (isinstance(v, str) and v in choices) or (function and callable(v)))


switch = Rule("True or False", lambda v: isinstance(v, bool))


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.text} or None", lambda v: v is None or rule.test(v), rule.schedule)


def hyper(default: T, rule: Rule, about: str) -> T:
    """A dataclass field that checks itself when the algorithm is built."""
    return dataclasses.field(default=default, metadata={"rule": rule, "about": about})
