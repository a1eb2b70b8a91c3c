"""How time and memory grow with the number of clients, the size of the model, and q."""

from __future__ import annotations

import dataclasses
from typing import Any

from studies.performance.contenders import CONTENDERS
from studies.performance.contest import compete
from studies.performance.jobs import JOBS, Job

WHO = ("ours", "ours-fafed", "plain-1")
_MLP = dataclasses.replace(JOBS["J3"], clients=20, rounds=2)
SERIES: dict[str, dict[int, Job]] = {
    "clients": {
        n: dataclasses.replace(JOBS["J6"], name=f"clients={n}", clients=n)
        for n in (20, 100, 1_000, 10_000)
    },
    "width": {
        n: dataclasses.replace(_MLP, name=f"width={n}", options={"hidden": [n]})
        for n in (50, 200, 800, 3_200)
    },
    "steps": {
        n: dataclasses.replace(_MLP, name=f"q={n}", steps=n, rounds=2) for n in (1, 5, 20, 80)
    },
}
FIXED = {
    "clients": "softmax regression, b = 10, q = 5",
    "width": "MLP 784-width-10, 20 clients, b = 10, q = 10",
    "steps": "MLP 784-200-10, 20 clients, b = 10",
}


def growth(budget: float) -> dict[str, Any]:
    contenders = [CONTENDERS[name] for name in WHO]
    found: dict[str, Any] = {}
    for series, chosen in SERIES.items():
        found[series] = {
            str(n): compete(job, contenders, rounds=2, repeat=1, budget=budget)
            for n, job in chosen.items()
        }
    return found
