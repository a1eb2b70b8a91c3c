"""The limit of a round: gradients alone, on batches that are prepared beforehand.

plain: autograd on the plain module. ours: fafed's own gradient as its engine calls it, for one
client or for a group under vmap, in as many threads as workers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from studies.performance.runners import harness
from studies.performance.runners import plain_models as models
from studies.performance.runners.harness import Task

DIFFERENT = 8  # prepared batches, used in turn


class Work(NamedTuple):
    call: Callable[[int], object]
    size: int  # gradients in a call


def plain(task: Task) -> Work:
    model = models.build(task.model, task.options, task.x0)
    parameters = list(model.parameters())
    batches = [next(task.batches(0, i % task.clients)) for i in range(DIFFERENT)]

    def call(i: int) -> object:
        models.begin(model)
        return torch.autograd.grad(models.loss(model, *batches[i % DIFFERENT]), parameters)

    return Work(call, 1)


def ours(folder: Path) -> Work:
    from fafed.core.batch import Batch
    from fafed.engines.simulation import Simulation
    from studies.performance.runners.ours import Ours

    mine = Ours(folder, "fedavg", 1)
    run = mine.start(1, 1)  # this also lets the objective inspect the model
    engine, source, objective = run.engine, mine.source(), mine.objective
    assert isinstance(engine, Simulation)
    groups = engine.backend.groups(range(mine.task.clients), engine.kept)
    size = max(map(len, groups))
    groups = [group for group in groups if len(group) == size]
    batches = []
    for i in range(DIFFERENT):
        drawn = source.draw_stacked(("round",), groups[i % len(groups)], 0, 1).round
        first = type(drawn)(*(part[:, 0] for part in drawn))
        batches.append((source.gather(first), first.key, first.fresh))
    memory = objective.start()
    if engine.name == "loop":

        def one(i: int) -> object:
            data, keys, fresh = batches[i % DIFFERENT]
            batch = Batch(tuple(part[0] for part in data), keys[0], fresh[0])
            return objective.evaluate(objective.x0, batch, memory)

        return Work(one, 1)

    native = engine.name == "native"
    way = objective.evaluate_native if native else objective.evaluate_functional

    def client(x, data, key, fresh):  # type: ignore[no-untyped-def]
        return way(x, Batch(data, key, fresh), memory).gradient

    def group(i: int) -> object:
        data, keys, fresh = batches[i % DIFFERENT]
        return torch.func.vmap(client)(points[: len(keys)], data, keys, fresh)

    points = objective.x0.repeat(size, 1)
    return Work(group, size)


def operations(task: Task) -> int:
    """Floating-point operations of one gradient."""
    work = plain(task)
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        work.call(0)  # without mkldnn, whose LSTM the counter does not know
    return int(counter.get_total_flops())


def seconds(make: Callable[[], Work], workers: int, count: int) -> float:
    """Seconds per gradient when the workers share about `count` of them."""
    works = [make() for _ in range(workers)]
    calls = max(4, count // (works[0].size * workers))

    def share(work: Work) -> None:
        for i in range(calls):
            work.call(i)

    def timed(each: Callable[[Callable[[Work], object]], object]) -> float:
        each(lambda work: work.call(0))
        began = time.perf_counter()
        each(share)
        return (time.perf_counter() - began) / (calls * works[0].size * workers)

    if workers == 1:  # here, with as many threads as were asked for
        return timed(lambda task: task(works[0]))
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return timed(lambda task: list(pool.map(task, works)))


def main() -> None:
    found = harness.arguments(kind="plain", workers=1, count=100)
    task = harness.read(found.task)

    def make() -> Work:
        return plain(task) if found.kind == "plain" else ours(found.task)

    answer = {
        "seconds": seconds(make, found.workers, found.count),
        "operations": operations(task),
    }
    (found.answer / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
