"""Hyper-parameters: a default, the allowed values, and a description."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fafed.core.plain import number

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

    def cure(self, value: object) -> str:
        """What to write in place of the name or the table of a schedule."""
        if not self.schedule or not isinstance(value, str | Mapping):
            return ""
        return (
            "; a schedule is an object such as fafed.schedules.Linear(peak=0.1), and in a file a "
            'table such as { schedule = "linear", peak = 0.1 }'
        )

    def __str__(self) -> str:
        return self.text + (" or a schedule" if self.schedule else "")


def above(low: float, *, schedule: bool = False) -> Rule:
    return Rule(f"a number > {low:g}", lambda v: number(v) and v > low, schedule)


def at_least(low: float, *, schedule: bool = False) -> Rule:
    return Rule(f"a number >= {low:g}", lambda v: number(v) and v >= low, schedule)


def between(low: float, high: float, *, schedule: bool = False) -> Rule:
    return Rule(
        f"a number in [{low:g}, {high:g}]", lambda v: number(v) and low <= v <= high, schedule
    )


def integer(low: int) -> Rule:
    return Rule(
        f"an integer >= {low}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= low,
    )


def one_of(*choices: str, function: bool = False) -> Rule:
    text = "one of " + ", ".join(map(repr, choices)) + (" or a function" if function else "")
    return Rule(text, lambda v: (isinstance(v, str) and v in choices) or (function and callable(v)))


share = Rule("a number in (0, 1]", lambda v: number(v) and 0 < v <= 1)
fraction = Rule("a number in [0, 1)", lambda v: number(v) and 0 <= v < 1)
sizes = Rule("positive sizes", lambda v: isinstance(v, tuple) and all(n > 0 for n in v))
switch = Rule("True or False", lambda v: isinstance(v, bool))


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.text} or None", lambda v: v is None or rule.test(v), rule.schedule)


def hyper(default: T, rule: Rule, about: str) -> T:
    """A dataclass field that checks itself when the algorithm is built."""
    return dataclasses.field(default=default, metadata={"rule": rule, "about": about})
