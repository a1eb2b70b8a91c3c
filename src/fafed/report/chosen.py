"""Which runs a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fafed.experiments.rundir import RunDir, all_runs

TRIALS = "tune-"  # `fafed tune` keeps the trials of an algorithm in a folder with this prefix


def chosen(roots: Sequence[Path], command: str = "fafed report") -> tuple[list[RunDir], list[str]]:
    """The runs below these folders, each once, and what to say about those that are left out.

    The trials of a search are no results: their settings were tried, not chosen. They are shown
    only if their own folder, or one inside it, is named. `command` is the one that shows them then.
    """
    found: dict[Path, RunDir] = {}
    trials: dict[Path, int] = {}
    for root in roots:
        for place in all_runs(root):
            folder = place.path.parent.parent  # above it, as for every run, the experiment's name
            if folder.name.startswith(TRIALS) and root in folder.parents:
                trials[folder] = trials.get(folder, 0) + 1
            else:
                found.setdefault(place.path.resolve(), place)
    said = [
        f"{count} trial{' of a search is' if count == 1 else 's of a search are'} left out: "
        f"`{command} {folder}` shows {'it' if count == 1 else 'them'}"
        for folder, count in trials.items()
    ]
    return list(found.values()), said
