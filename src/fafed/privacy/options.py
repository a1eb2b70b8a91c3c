"""The privacy options of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fafed.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fafed.privacy.encoding import Encoding


LEAST_SILOS = 3  # a sum of two shows each of them the other's message


def default_threshold(silos: int) -> int:
    """How many silos must stay to the end of a secure sum: more than two thirds."""
    return 2 * silos // 3 + 1


def quorum(silos: int) -> int:
    """How many of these silos must answer, or the round counts as one in which nobody did."""
    return max(LEAST_SILOS, default_threshold(silos))


@dataclass(frozen=True)
class Privacy:
    """What a run does for privacy; the table [privacy] of an experiment.

    secure: messages are encoded as integers, so that secure aggregation can add them under masks.
        In simulation and on several ranks they are added without masks: it protects nobody there,
        and gives the numbers that real silos would get.
    bits, headroom, first_bound: the encoding (`fafed.privacy.encoding`).
    """

    secure: bool = False
    bits: Literal[64, 32] = 64
    headroom: float = 8.0
    first_bound: float = 2.0**10

    def __post_init__(self) -> None:
        if not isinstance(self.secure, bool):
            raise ConfigError(f"privacy.secure must be true or false, got {self.secure!r}")
        for name in ("headroom", "first_bound"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if self.secure:
            self.encoding()

    def encoding(self) -> Encoding:
        from fafed.privacy.encoding import Encoding  # loads torch

        return Encoding(self.bits, self.headroom, self.first_bound)

    @classmethod
    def from_dict(cls, table: Mapping[str, object]) -> Privacy:
        known = [f.name for f in dataclasses.fields(cls)]
        for name in table:
            if name not in known:
                raise ConfigError(f"privacy.{name}: no such setting; {nearest(name, known)}")
        return cls(**table)  # type: ignore[arg-type]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"privacy.{name} must be a number, got {value!r}")
    return float(value)
