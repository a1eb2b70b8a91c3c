"""What a private local step costs: seconds against the same step without privacy, side by side.

    python -m studies.privacy.step [--passes 7] [--steps 20]
    python -m studies.privacy.step --render-only

FedAvg on the network of the Fashion-MNIST experiments, batches of 100 of random images, one thread.
The ways take turns, and the median of the passes counts. A Poisson batch has 100 examples on
average. The results are in step.json, and in docs/privacy.md. About 1 minute on an idle core.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from fafed import FedAvg, Privacy, models
from fafed.data.sources.examples import examples_of
from fafed.objectives.module import Model
from fafed.training.build import build
from fafed.training.loop import Run
from studies.performance import machine
from studies.privacy import costs

MODEL, BATCH, CLIENTS, EXAMPLES = "fashion-cnn", 100, 2, 2000
DEFAULT = "native"  # what a user gets without privacy
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("without privacy", {"engine": "native"}),
    "loop": ("without privacy", {"engine": "loop"}),
    "private": (
        "clipped, with noise",
        {"privacy": Privacy(level="example", noise=1.0, clip=1.0, delta=1e-5)},
    ),
}


def started(way: str, steps: int) -> Run:
    draw = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(EXAMPLES, 1, 28, 28, generator=draw),
            torch.randint(0, 10, (EXAMPLES,), generator=draw),
        )
        for _ in range(CLIENTS)
    ]
    goal = Model(models.build(MODEL, seed=0), F.cross_entropy)
    source = examples_of(clients, batch_size=BATCH)
    options = {"workers": 1, "threads": 1} | WAYS[way][1]
    return build(FedAvg(0.01), goal, source, rounds=1000, local_steps=steps, **options)


def measure(passes: int, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    runs = {way: started(way, steps) for way in WAYS}
    for run in runs.values():
        run.round()  # compiles, and fills caches
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(passes):
        for way, run in runs.items():
            began = time.perf_counter()
            run.round()
            found[way].append(1000 * (time.perf_counter() - began) / (CLIENTS * steps))
    return {
        "model": MODEL,
        "batch_size": BATCH,
        "threads": 1,
        "passes": passes,
        "machine": machine.describe(1),
        "default": DEFAULT,
        "ways": [
            {
                "way": way,
                "what": WAYS[way][0],
                "milliseconds": statistics.median(own),
                "all": own,
            }
            for way, own in found.items()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="local steps of a round")
    parser.add_argument("--output", type=Path, default=costs.STEP)
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.render_only:
        logging.getLogger("fafed").setLevel(logging.ERROR)  # it would say that it protects nobody
        results = measure(options.passes, options.steps)
        options.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        plain = next(o["milliseconds"] for o in results["ways"] if o["way"] == DEFAULT)
        for one in results["ways"]:
            own = one["milliseconds"]
            print(f"{one['way']:8} {own:8.2f} ms a step, {own / plain:.2f} times {DEFAULT}")
    if options.output == costs.STEP:
        costs.write()


if __name__ == "__main__":
    main()
