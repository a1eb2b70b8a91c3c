"""The file of results. Each cell has its own date, so results of several runs can be merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEFAULT = Path(__file__).parent / "results.json"


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def merge(path: Path, new: dict[str, Any]) -> None:
    """Replace the results of the jobs and contenders in `new`; keep all others."""
    found = _merged(read(path), new)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(_rounded(found), indent=1) + "\n")
    part.replace(path)


CELL = "date"  # a mapping with a date is replaced as a whole


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict) or CELL in new:
        return new
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
