"""Measured runs in a JSON file that is written after each of them.

A later session, also on another machine, continues from the committed file: what is in it is not
run again, unless the experiment has changed. A change of an algorithm's code is not seen: delete
its lines.
"""

from __future__ import annotations

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

from fafed import files
from fafed.errors import FafedError
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.training.loop import Diverged
from studies.which_algorithm.jobs import Setting
from studies.which_algorithm.measurement import accuracy, held_out, seconds

Entry = dict[str, Any]  # of one run: see `_entry`


def key(task: str, name: str, setting: Setting, seed: int) -> str:
    words = ", ".join(f"{name} = {value}" for name, value in setting)
    return f"{task}: {name} ({words}), seed {seed}"


class Missing(FafedError):
    """A run that is not there, and is not made now."""


class Ledger:
    """Runs by their key. `root`: where runs live; None: it only reads. No run begins after
    `minutes`."""

    def __init__(self, path: Path, root: Path | None = None, minutes: float = math.inf) -> None:
        self.path, self.root, self.until = path, root, time.monotonic() + 60 * minutes
        self.runs: dict[str, Entry] = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def measure(self, name: str, experiment: Experiment) -> Entry:
        """The run of that key, made now if it is not there."""
        fingerprint = experiment.fingerprint[:8]
        if self.runs.get(name, {}).get("experiment") != fingerprint:
            if self.root is None or time.monotonic() > self.until:
                raise Missing(name)
            print(name, end=": ", flush=True)
            place = RunDir.for_experiment(experiment, self.root)
            if not place.finished() and place.failure() is None:
                _run(experiment, place)
            self.runs[name] = {"experiment": fingerprint, **_entry(place)}
            self._write()
            print(self.runs[name]["held_out"], flush=True)
        return self.runs[name]

    def _write(self) -> None:
        lines = [f"{json.dumps(name)}: {json.dumps(self.runs[name])}" for name in sorted(self.runs)]
        files.write(self.path, [("{\n" + ",\n".join(lines) + "\n}\n").encode()])


def _run(experiment: Experiment, place: RunDir) -> None:
    try:
        execute(experiment, place, prepare=partial(prepare, workers=1))
    except Diverged as error:
        print(error, end=": ", flush=True)


def _entry(place: RunDir) -> Entry:
    """None for accuracies of a run that diverged."""
    found: Entry = {"test": accuracy(place), "held_out": held_out(place)}
    if records := place.records():  # else it diverged in the first round
        sent = (records[-1].bytes_up + records[-1].bytes_down) / 1e6
        found |= {"seconds": seconds(records), "megabytes": float(f"{sent:.4g}")}
    return found | {"rounds": len(records)}
