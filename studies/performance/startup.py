"""The time that a fresh interpreter takes for an import, `--help` and a first round."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

FIRST_ROUND = """
import fafed, torch
clients = [(torch.randn(20, 5), torch.randint(0, 2, (20,))) for _ in range(3)]
fafed.train(torch.nn.Linear(5, 2), clients, fafed.FedAvg(), rounds=1, local_steps=1, batch_size=5)
"""
COMMANDS = {
    "first round": ["-c", FIRST_ROUND],
    "import fafed": ["-c", "import fafed"],
    "import torch": ["-c", "import torch"],
    "fafed --help": ["-m", "fafed", "--help"],
}
REPEATS = 5


def startup() -> dict[str, Any]:
    """Seconds of wall time of a fresh interpreter: medians."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, arguments in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times[name].append(time.perf_counter() - began)
    found: dict[str, Any] = {name: statistics.median(seconds) for name, seconds in times.items()}
    return found | {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
