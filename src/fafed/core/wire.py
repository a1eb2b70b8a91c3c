"""The setting `wire`: how the clients' messages are compressed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fafed.core.plain import number, plain
from fafed.errors import ConfigError, nearest

KINDS = ("bf16", "int8", "topk")
SHARE = 0.01


@dataclass(frozen=True)
class Wire:
    """How clients compress what they send; the table [wire] of an experiment (docs/wire.md).

    up: "bf16" sends each number in two bytes, "int8" in one, "topk" only the largest numbers of
        each vector, each with its place.
    share: with "topk", the share of a vector's numbers that is sent; 0.01 if not given.
    error_feedback: each client keeps what compression leaves out, and adds it to its next message.
        Without it, that is lost.
    """

    up: Literal["bf16", "int8", "topk"]
    share: float | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if self.up not in KINDS:
            raise ConfigError(f"wire.up must be one of {', '.join(KINDS)}, got {self.up!r}")
        if not isinstance(self.error_feedback, bool):
            raise ConfigError(
                f"wire.error_feedback must be true or false, got {self.error_feedback!r}"
            )
        share = plain(self.share)
        if self.up != "topk":
            if share is not None:
                raise ConfigError(
                    f"wire.share = {share!r} does nothing with up = {self.up!r}: leave it out"
                )
            return
        share = SHARE if share is None else share
        if not (number(share) and 0 < share <= 1):
            raise ConfigError(f"wire.share must be a number in (0, 1], got {share!r}")
        object.__setattr__(self, "share", float(share))

    def to_dict(self) -> dict[str, object]:
        """The settings that are not at their defaults."""
        given = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {f.name: value for f, value in given if value != f.default}

    @classmethod
    def from_dict(cls, table: Mapping[str, object]) -> Wire | None:
        """From the table [wire]. None if it is empty: nothing is compressed."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in table:
            if name not in known:
                raise ConfigError(f"wire.{name}: no such setting; {nearest(name, known)}")
        if table and "up" not in table:
            raise ConfigError(f"wire.up is missing: give one of {', '.join(KINDS)}")
        return cls(**table) if table else None  # type: ignore[arg-type]
