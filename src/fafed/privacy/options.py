"""The privacy options of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fafed.core.wire import Wire
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


NUMBERS = ("noise", "clip", "delta", "max_epsilon")
NOISED = (*NUMBERS, "combine", "factors")
NEEDED = {
    "noise": "how much noise there is, for example 1.0; `fafed privacy` finds it for an epsilon",
    "clip": "the bound on the norm of a gradient or a message, for example 1.0",
    "delta": "a probability well below 1 / examples of a client, for example 1e-5",
}


@dataclass(frozen=True)
class Privacy:
    """What a run does for privacy; the table [privacy] of an experiment.

    secure: messages are encoded as integers, so that secure aggregation can add them under masks.
        In simulation and on several ranks they are added without masks: it protects nobody there,
        and gives the numbers that real silos would get.
    bits, headroom, first_bound: the encoding (`fafed.privacy.encoding`).

    level: "example" for differential privacy of each example (a patient's record), "client" for
        that of a client with all its data. Then these must be given, and every record has the
        epsilon that has been spent:
    noise: the standard deviation of the noise on a sum of gradients, in units of `clip`. With
        "client" on a sum of messages.
    clip: the bound on the norm of one example's gradient, or of one client's message.
    delta: the probability of a larger loss of privacy than epsilon; below 1 / examples, or below
        1 / clients.
    max_epsilon: the run stops before the round that would pass it; None: no limit.
    combine: FAFED and STEM ask once in a step, for the difference of its two gradients. This costs
        what one gradient costs. v then collects the squares of m. For "example".
    factors: part of a message -> what it is divided by before the message is clipped, for "client".
        They must not depend on the data. 1 if not given.
    """

    secure: bool = False
    bits: Literal[64, 32] = 64
    headroom: float = 8.0
    first_bound: float = 2.0**10
    level: Literal["example", "client"] | None = None
    noise: float | None = None
    clip: float | None = None
    delta: float | None = None
    max_epsilon: float | None = None
    combine: bool = False
    factors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("secure", "combine"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"privacy.{name} must be true or false, got {getattr(self, name)!r}"
                )
        if self.level not in (None, "example", "client"):
            raise ConfigError(f"privacy.level must be 'example' or 'client', got {self.level!r}")
        if not isinstance(self.factors, Mapping):
            raise ConfigError(f"privacy.factors must be a table, got {self.factors!r}")
        factors = {str(k): _number(f"factors.{k}", v) for k, v in self.factors.items()}
        object.__setattr__(self, "factors", factors)
        for name in ("headroom", "first_bound", *NUMBERS):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(name, getattr(self, name)))
        if self.secure:
            self.encoding()
        if self.level is None:
            self._refuse_unused()
        else:
            self._check_noise()

    def _refuse_unused(self) -> None:
        for name in NOISED:
            if getattr(self, name) not in (None, False, {}):
                raise ConfigError(
                    f"privacy.{name} = {getattr(self, name)!r} does nothing without "
                    "privacy.level = 'example' or 'client'"
                )

    def _check_noise(self) -> None:
        for name, cure in NEEDED.items():
            if getattr(self, name) is None:
                raise ConfigError(f"privacy.level = {self.level!r} needs privacy.{name}: {cure}")
        for name in ("noise", "clip", "max_epsilon"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"privacy.{name} must be > 0, got {value!r}")
        for name, factor in self.factors.items():
            if not factor > 0:
                raise ConfigError(f"privacy.factors.{name} must be > 0, got {factor!r}")
        other = {"example": "factors", "client": "combine"}[str(self.level)]
        if getattr(self, other):
            raise ConfigError(
                f"privacy.{other} does nothing with privacy.level = {self.level!r}: leave it out"
            )
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError(f"privacy.delta must be in (0, 1), got {self.delta!r}")

    def encoding(self) -> Encoding:
        from fafed.privacy.encoding import Encoding  # loads torch

        return Encoding(self.bits, self.headroom, self.first_bound)

    def to_dict(self) -> dict[str, object]:
        """The settings that are not at their defaults."""
        given = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {f.name: value for f, value in given if value not in (f.default, {})}

    @classmethod
    def from_dict(cls, table: Mapping[str, object]) -> Privacy:
        known = [f.name for f in dataclasses.fields(cls)]
        for name in table:
            if name not in known:
                raise ConfigError(f"privacy.{name}: no such setting; {nearest(name, known)}")
        return cls(**table)  # type: ignore[arg-type]


def check_wire(wire: object, privacy: Privacy, baseline: str | None) -> None:
    """Refuse compression where it cannot be had."""
    if wire is None:
        return
    if not isinstance(wire, Wire):
        raise ConfigError(f"wire must be an object such as fafed.Wire('int8'), got {wire!r}")
    told = f"wire = {wire.up!r}"
    if privacy.secure:
        raise ConfigError(
            f"{told} cannot be had with privacy.secure: secure sums add integers of 64 or 32 bits; "
            "leave out wire, and take privacy.bits = 32 for shorter messages"
        )
    if privacy.level == "client":
        raise ConfigError(
            f"{told} cannot be had with privacy.level = 'client': the noise is for whole messages "
            "that are clipped; leave one of them out"
        )
    if baseline is not None:
        raise ConfigError(f"{told} does nothing in baseline = {baseline!r}: leave one of them out")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"privacy.{name} must be a number, got {value!r}")
    return float(value)
