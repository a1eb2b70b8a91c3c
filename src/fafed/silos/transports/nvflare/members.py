"""Silos that join or leave a project: their entries in the project file of `nvflare provision`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fafed import files
from fafed.errors import ConfigError, nearest
from fafed.silos.transports.nvflare.local_federation import participant


def add(project: Path, silo: str) -> None:
    """Add a silo to the project file."""
    content = _read(project)
    members = content["participants"]
    if silo in (names := [one["name"] for one in members]):
        raise ConfigError(f"{silo!r} is in {project} already: give another name")
    host = next((one["name"] for one in members if one.get("type") == "server"), "")
    after = [i for i, one in enumerate(members) if one.get("type") in ("server", "client")]
    members.insert(1 + max(after, default=len(names) - 1), participant(silo, host))
    _write(project, content)


def remove(project: Path, silo: str) -> None:
    """Take a silo out of the project file."""
    content = _read(project)
    silos = [one["name"] for one in content["participants"] if one.get("type") == "client"]
    if silo not in silos:
        raise ConfigError(f"there is no silo {silo!r} in {project}; {nearest(silo, silos)}")
    content["participants"] = [one for one in content["participants"] if one["name"] != silo]
    _write(project, content)


def _read(project: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(project.read_text("utf-8"))
        for one in found["participants"]:
            _ = one["name"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError) as cause:
        raise ConfigError(
            f"{project} is not a project file ({cause}): give the one that `fafed silos project` "
            "has printed"
        ) from cause
    return dict(found)


def _write(project: Path, content: dict[str, Any]) -> None:
    text = str(yaml.safe_dump(content, sort_keys=False))
    files.write(project, [text.encode()])
