"""The data for a report: runs, and the studies that chose their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class RunData:
    """One run: one experiment with one seed."""

    name: str  # of its directory, such as "fafed-seed0"
    config: dict[str, Any]  # nested, as in the experiment's TOML file
    records: list[dict[str, Any]]  # Record.to_dict() of each round
    counts: list[list[int]] | None = None  # clients x classes
    classes: list[str] | None = None
    finished: bool = True
    failure: str | None = None  # the error that ended the run, if it diverged


@dataclass(frozen=True)
class StudyData:
    """One search for good settings."""

    name: str
    parameters: list[str]
    trials: list[dict[str, Any]]  # {"params": {...}, "value": float | None, "state": str}
    rule: str  # how the winner was chosen, in words
    direction: Literal["minimize", "maximize"]


def flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """A flat dictionary: "data.partition.kind" for config["data"]["partition"]["kind"]. A schedule
    remains one value."""
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and "schedule" not in value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def show(value: object) -> str:
    """A setting as in TOML, but strings have no quotes. A schedule is "linear: peak 0.1, end 0"."""
    if isinstance(value, Mapping) and "schedule" in value:
        parts = [f"{name} {show(own)}" for name, own in value.items() if name != "schedule"]
        return f"{value['schedule']}: {', '.join(parts)}" if parts else str(value["schedule"])
    return value if isinstance(value, str) else json.dumps(value, default=str)
