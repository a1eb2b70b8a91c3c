"""The 50-million-parameter language model over two real silos: seconds and peak memory.

    python benchmarks/silos/large.py [--parameters small] [--rounds 3] [--silos 2]

FAFED sends three vectors each way, 600 MB. Random tokens; the step is as short as it can be, so
that what is measured is the way of the messages. Needs fafed[nvflare].
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

HERE = Path(__file__).parent
SIZES: dict[str, dict[str, Any]] = {
    "large": {},  # 50,065,078 parameters
    "small": {"vocabulary": 200, "embedding": 20, "hidden": 20},
}


def tokens(silos: int, vocabulary: int) -> Any:
    """Data for the experiment: a few short passages for each silo."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(vocabulary, (silos, 4, 5), generator=draw)
    return [(part[:, :-1], part[:, 1:]) for part in text], None


def main() -> None:
    from fafed.engines.nvflare.driver import Driver
    from fafed.engines.nvflare.job import FafedRecipe
    from fafed.engines.nvflare.kits import ADMIN
    from fafed.engines.nvflare.trial import federation
    from fafed.experiment import Experiment
    from fafed.rundir import RunDir

    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", choices=SIZES, default="large")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--silos", type=int, default=2)
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sys.path.insert(0, str(HERE))
    options = SIZES[chosen.parameters]
    vocabulary = options.get("vocabulary", 33_278)
    experiment = Experiment.of(
        {
            "name": "large",
            "rounds": chosen.rounds,
            "local_steps": 1,
            "batch_size": 1,
            "opening_batch_size": 1,
            "engine": "loop",
            "loss": "token_cross_entropy",
            "metrics": [],
            "eval_every": 100,
            "data": {
                "function": "large:tokens",
                "options": {"silos": chosen.silos, "vocabulary": vocabulary},
                "train_sample": 0,
            },
            "model": {"name": "lstm", "dropout": 0.0, **options},
            "algorithm": {"name": "fafed", "eta": 0.001},
        }
    )
    peaks: dict[str, int] = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with federation(work, [experiment], chosen.silos, work / "runs") as local:

            def tick() -> None:
                local.watch()
                for member in local.members:
                    for process in member._all():
                        parent = member.process and process.pid == member.process.pid
                        label = f"{member.kit.name} {'parent' if parent else 'job'}"
                        peaks[label] = max(peaks.get(label, 0), peak(process))

            silos = list(local.silos)
            driver = Driver(local.kits / ADMIN, silos, username=ADMIN, min_silos=1, tick=tick)
            try:
                driver.run(
                    FafedRecipe(experiment, silos, deadline=900, start=300),
                    lambda _, record: print(
                        f"round {record.round}: {record.seconds:.1f} s so far", flush=True
                    ),
                )
            finally:
                driver.close()
        place = RunDir.of(experiment, work / "runs")
        records = place.records()
        lines = [json.loads(x) for x in (place.path / "audit.jsonl").read_text().splitlines()]
    message = max(line["bytes"] for line in lines)
    seconds = [b.seconds - a.seconds for a, b in itertools.pairwise(records)]
    print(f"message {message / 1e6:.1f} MB, {chosen.silos} silos")
    print(f"seconds of each round after the first: {', '.join(f'{s:.2f}' for s in seconds)}")
    print(f"all in all {time.perf_counter() - began:.0f} s; peak memory:")
    for label, bytes_ in sorted(peaks.items()):
        print(f"  {label:18} {bytes_ / 1e6:8.0f} MB  {bytes_ / message:6.1f} messages")


def peak(process: psutil.Process) -> int:
    """The most that the process ever held."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split() for line in text.splitlines() if line.startswith("VmHWM")]
    return int(found[0][1]) * 1024 if found else 0


if __name__ == "__main__":
    main()
