"""From which size of a gradient on is the loop faster than vmap?

For several models and batch sizes: floating-point operations of one gradient, and seconds of a
FedAvg round of 20 clients in the loop divided by seconds under vmap, interleaved, medians of five.
`SMALL_GRADIENT` (fafed.engines.backends.vmap) is the number of operations from which on the loop
wins.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

import fafed
from fafed import models
from fafed.data.sources.base import ClientBatches
from fafed.data.sources.examples import examples_of
from fafed.objectives.module import Model
from fafed.training.build import build

CLIENTS, STEPS, REPEATS = 20, 4, 5
JOBS = [
    ("fashion-cnn", (1, 28, 28), {}),
    ("mnist-cnn", (1, 28, 28), {}),
    ("mlp", (784,), {"inputs": 784, "hidden": (200,), "outputs": 10}),
    ("softmax", (784,), {"inputs": 784, "outputs": 10}),
]


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'model':>12} {'b':>4} {'operations':>11} {'loop/vmap':>9}  chosen")
    for name, shape, options in JOBS:
        for b in (1, 5, 20, 50, 100):
            runs = {e: prepare(name, shape, options, b, e) for e in ("loop", "vmap")}
            times: dict[str, list[float]] = {e: [] for e in runs}
            for run in runs.values():
                run.round()  # warm up
            for _ in range(REPEATS):
                for engine, run in runs.items():
                    began = time.perf_counter()
                    run.round()
                    times[engine].append(time.perf_counter() - began)
            loop, vmap = (statistics.median(times[e]) for e in ("loop", "vmap"))
            work = operations(runs["loop"])
            chosen = prepare(name, shape, options, b, "auto").engine.name
            print(f"{name:>12} {b:>4} {work:>11.2e} {loop / vmap:>9.2f}  {chosen}")


def operations(run):
    """Floating-point operations of one gradient."""
    _, objective, source, *_ = run.engine.task
    (batch,) = ClientBatches(source.gather, source.draw(("round",), 0, 0, 1))
    with FlopCounterMode(display=False) as counter:
        objective.evaluate(objective.x0, batch, objective.start())
    return counter.get_total_flops()


def prepare(name, shape, options, b, engine):
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(200, *shape, generator=generator),
            torch.randint(0, 10, (200,), generator=generator),
        )
        for _ in range(CLIENTS)
    ]
    model = models.build(name, seed=0, **options)
    return build(
        fafed.FedAvg(0.01),
        Model(model, torch.nn.functional.cross_entropy),
        examples_of(clients, batch_size=b),
        rounds=10**6,
        local_steps=STEPS,
        engine=engine,
    )


if __name__ == "__main__":
    main()
