"""The 50-million-parameter language model over two real silos: seconds and peak memory.

    python studies/performance/silos/large.py [--rounds 3] [--silos 2]

FAFED sends three vectors each way, 600 MB. Random tokens; the step is as short as it can be, so
that what is measured is the way of the messages. The same run with a small model comes first: what
its processes take, which is the imports of torch and FLARE, is taken off.

Two figures for each process. Private: memory that only this process can give back (RssAnon, looked
at fifty times a second). Resident: with it the pages of files that are mapped (VmHWM, kept by the
system, so no peak is missed); the system takes those back whenever it needs them. Needs
fafed[nvflare], and Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
SIZES: dict[str, dict[str, Any]] = {
    "large": {},  # 50,065,078 parameters
    "small": {"vocabulary": 200, "embedding": 20, "hidden": 20},
}
Peaks = dict[str, dict[str, int]]  # process -> field of /proc -> bytes


def tokens(silos: int, vocabulary: int) -> Any:
    """Data for the experiment: a few short passages for each silo."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(vocabulary, (silos, 4, 5), generator=draw)
    return [(part[:, :-1], part[:, 1:]) for part in text], None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--silos", type=int, default=2)
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sys.path.insert(0, str(HERE))
    base, _, _ = measured("small", chosen.rounds, chosen.silos)
    peaks, message, seconds = measured("large", chosen.rounds, chosen.silos)
    print(f"message {message / 1e6:.1f} MB, {chosen.silos} silos")
    print(f"seconds of each round after the first: {', '.join(f'{s:.2f}' for s in seconds)}")
    print("peak memory, and how many messages that is beyond the small model's run:")
    for label, found in sorted(peaks.items()):
        for kind, field in (("private", "RssAnon"), ("resident", "VmHWM")):
            beyond = (found[field] - base[label][field]) / message
            print(f"  {label:16} {kind:8} {found[field] / 1e6:5.0f} MB {beyond:5.1f} messages")


def measured(size: str, rounds: int, silos: int) -> tuple[Peaks, int, list[float]]:
    """Peaks, the bytes of a message, and the seconds of each round after the first."""
    experiment = language_model(SIZES[size], rounds, silos)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        place, peaks = federated(experiment, silos, Path(folder), say=f"{size}, ")
        records = place.records()
        lines = [json.loads(x) for x in (place.path / "audit.jsonl").read_text().splitlines()]
    seconds = [b.seconds - a.seconds for a, b in itertools.pairwise(records)]
    return peaks, max(line["bytes"] for line in lines), seconds


def federated(
    experiment: Any, silos: int, work: Path, *, say: str | None = None
) -> tuple[Any, Peaks]:
    """Run an experiment over processes on FLARE: its run, and the peaks of the processes."""
    from fafed.experiments.rundir import RunDir
    from fafed.silos.transports.nvflare.driver import Driver
    from fafed.silos.transports.nvflare.job import FafedRecipe
    from fafed.silos.transports.nvflare.local_federation import ADMIN
    from fafed.silos.transports.nvflare.try_out import local_federation

    def on_record(_: Any, record: Any) -> None:
        if say is not None:
            print(f"{say}round {record.round}: {record.seconds:.1f} s so far", flush=True)

    runs = work / "runs"
    with local_federation(work, [experiment], silos, runs) as local, watched(local) as peaks:
        names = list(local.silos)
        driver = Driver(local.kits / ADMIN, names, username=ADMIN, min_silos=1, tick=local.watch)
        try:
            driver.run(FafedRecipe([experiment], names, deadline=900, start=300), on_record)
        finally:
            driver.close()
    return RunDir.for_experiment(experiment, runs), peaks


def language_model(options: dict[str, Any], rounds: int, silos: int) -> Any:
    from fafed.experiments.config import Experiment

    vocabulary = options.get("vocabulary", 33_278)
    return Experiment.from_dict(
        {
            "name": "large",
            "rounds": rounds,
            "local_steps": 1,
            "batch_size": 1,
            "opening_batch_size": 1,
            "engine": "loop",
            "loss": "token_cross_entropy",
            "metrics": [],
            "eval_every": 100,
            "data": {
                "function": "large:tokens",
                "options": {"silos": silos, "vocabulary": vocabulary},
                "train_sample": 0,
            },
            "model": {"name": "lstm", "dropout": 0.0, **options},
            "algorithm": {"name": "fafed", "eta": 0.001},
        }
    )


@contextlib.contextmanager
def watched(local: Any) -> Iterator[Peaks]:
    """The peaks of all processes of a federation meanwhile."""
    peaks: Peaks = {}
    over = threading.Event()

    def look() -> None:
        known: dict[int, str] = {}
        listed = 0.0
        while not over.wait(0.02):
            if time.monotonic() > listed + 1.0:
                known, listed = processes(local), time.monotonic()
            for pid, label in known.items():
                for field, size in memory(pid).items():
                    held = peaks.setdefault(label, {})
                    held[field] = max(held.get(field, 0), size)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def processes(local: Any) -> dict[int, str]:
    found = {}
    for member in local.members:
        for process in member._all():
            parent = member.process and process.pid == member.process.pid
            found[process.pid] = f"{member.kit.name} {'parent' if parent else 'job'}"
    return found


def memory(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.startswith(("RssAnon", "VmHWM"))]
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


if __name__ == "__main__":
    main()
