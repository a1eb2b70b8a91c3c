"""Made-up runs for the report's tests: smooth, a little noisy, the same every time."""

from __future__ import annotations

import math
import random
from typing import Any

from fafed.core.records import Record
from fafed.report import RunData, StudyData

SPEED = {"fafed": 0.06, "fedavg": 0.03, "scaffold": 0.04, "stem": 0.05, "fedadam": 0.035}
CLASSES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "boot"]  # fmt: skip


def config(algorithm: str = "fafed", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """`options` of the algorithm; every other change replaces a top-level entry."""
    options = changes.pop("options", {"eta": 0.01})
    return {
        "name": "fashion-mnist-high",
        "rounds": 100,
        "local_steps": 5,
        "batch_size": 100,
        "seed": seed,
        "data": {
            "name": "fashion-mnist",
            "clients": 20,
            "partition": {"kind": "high", "form": "groups"},
        },
        "model": {"name": "fashion-cnn"},
        "algorithm": {"name": algorithm} | options,
    } | changes


def record(
    round: int,
    train_loss: float | None = 1.0,
    test: dict[str, float] | None = None,
    diagnostics: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Round r costs 10 r gradients, 100 r bytes up, 200 r bytes down and r / 2 seconds."""
    return Record(
        round=round,
        steps=5 * round,
        gradients=10.0 * round,
        samples=1000 * round,
        bytes_up=100 * round,
        bytes_down=200 * round,
        seconds=round / 2,
        clients=20,
        train_loss=train_loss,
        test=test or {},
        diagnostics=diagnostics or {},
    ).to_dict()


def plain_run(*accuracies: float | None, **settings: Any) -> RunData:
    """One record per accuracy, None for a round that was not measured."""
    settings = config(**settings)
    records = [
        record(i, 1 / i, {} if a is None else {"accuracy": a})
        for i, a in enumerate(accuracies, start=1)
    ]
    return RunData(f"{settings['algorithm']['name']}-seed{settings['seed']}", settings, records)


def run(
    algorithm: str = "fafed", seed: int = 0, rounds: int = 100, every: int = 2, **changes: Any
) -> RunData:
    """A learning curve that looks like one."""
    rng = random.Random(f"{algorithm} {seed}")
    settings = config(algorithm, seed, rounds=rounds, **changes)
    speed = SPEED.get(algorithm, 0.02 + 0.03 * random.Random(algorithm).random())
    doubled = 2 if algorithm in ("fafed", "stem") else 1
    nbytes = 3_000_000 if algorithm in ("fafed", "scaffold") else 1_500_000
    luck, records = 1 + rng.gauss(0, 0.12), []
    for r in range(1, rounds + 1):
        left = math.exp(-speed * luck * r)
        test = {}
        if r % every == 0 or r == rounds:
            accuracy = 0.88 + speed - 0.6 * left + rng.gauss(0, 0.006)
            test = {"loss": 0.3 + 1.9 * left + rng.gauss(0, 0.015), "accuracy": accuracy}
        extra = {"m_norm": 3 * left + 0.1, "adaptive_fraction": 1 - left} if doubled == 2 else {}
        records.append(
            record(r, 0.25 + 2.0 * left + abs(rng.gauss(0, 0.04)), test, extra)
            | {
                "gradients": 100.0 * r * doubled,
                "bytes_up": nbytes * r,
                "bytes_down": nbytes * r // 2,
                "seconds": 0.21 * r * doubled * (1 + 0.02 * rng.random()),
            }
        )
    return RunData(f"{algorithm}-seed{seed}", settings, records, counts(), CLASSES)


def counts(clients: int = 20, classes: int = 10) -> list[list[int]]:
    """Each client has a few classes of its own and a little of the rest."""
    rng = random.Random(0)
    return [
        [
            rng.randrange(150, 900) if (c + k) % classes < 3 else rng.choice((0, 0, 12, 40))
            for k in range(classes)
        ]
        for c in range(clients)
    ]


def study(trials: int = 40) -> StudyData:
    rng = random.Random(1)
    made: list[dict[str, Any]] = []
    for i in range(trials):
        params: dict[str, Any] = {
            "eta": 10 ** rng.uniform(-3, 0),
            "alpha": rng.uniform(0.01, 0.5),
            "local_steps": rng.choice([1, 5, 10]),
            "schedule": rng.choice(["constant", "cosine"]),
        }
        value = abs(math.log10(params["eta"]) + 1.5) + params["alpha"] + 0.1 * rng.random()
        pruned = i % 9 == 8
        made.append(
            {
                "params": params,
                "value": None if pruned else value,
                "state": "PRUNED" if pruned else "COMPLETE",
            }
        )
    rule = "Final training loss, mean over the last 10 rounds, one seed that the runs do not use."
    return StudyData("fafed", ["eta", "alpha", "local_steps", "schedule"], made, rule, "minimize")
