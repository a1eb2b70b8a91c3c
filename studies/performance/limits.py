"""The limits of a round: the time of its gradients alone, and the machine's peak."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from studies.performance import jobs, measure
from studies.performance.contenders import Contender
from studies.performance.jobs import Job
from studies.performance.measure import Failed

LIMIT = 300.0  # seconds for one measurement
COUNT, COUNT_TEXT = 200, 16  # gradients
KINDS = {
    "plain-1": Contender("plain-1", "plain module, 1 thread", "gradients"),
    "plain-2": Contender("plain-2", "plain module, 2 threads", "gradients", threads=2),
    "ours-1": Contender("ours-1", "fafed's gradient, 1 worker", "gradients"),
    "ours": Contender(
        "ours", "fafed's gradient, 2 workers", "gradients", arguments=("--workers", "2")
    ),
}


def limits(chosen: Sequence[Job], repeat: int) -> dict[str, Any]:
    """Seconds of one gradient in each way, the least of the repetitions, and its operations."""
    found: dict[str, Any] = {"peak": peak(), "gradients": {}}
    for job in chosen:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
            folder = Path(temporary)
            task = jobs.write(job, folder / "task", 1).folder
            count = min(job.gradients, COUNT_TEXT if job.text else COUNT)
            row: dict[str, Any] = {"date": _today(), "count": count}
            for _ in range(1 if job.text else repeat):
                for name, contender in KINDS.items():
                    kind = ("--kind", name.split("-")[0], "--count", str(count))
                    asked = dataclasses.replace(contender, arguments=(*contender.arguments, *kind))
                    answer = _ask(asked, task, folder)
                    row[name] = min(answer["seconds"], row.get(name, answer["seconds"]))
                    row["operations"] = answer["operations"]
            found["gradients"][job.name] = row
        print(f"{job.name}: {row['plain-1'] * 1e3:.3g} ms for a plain gradient", flush=True)
    return found


def peak() -> dict[str, Any]:
    """Operations per second, by threads."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(temporary)
        found = {
            str(threads): _ask(Contender("peak", "", "peak", threads=threads), folder, folder)
            for threads in (1, 2)
        }
    return {threads: answer["flops"] for threads, answer in found.items()} | {"date": _today()}


def _ask(contender: Contender, task: Path, folder: Path) -> dict[str, Any]:
    command = contender.command(task, folder)
    try:
        return measure.run(command, contender.environment_variables(), folder, LIMIT).found
    except Failed as cause:
        raise SystemExit(f"{contender.label or contender.name} failed: {cause}") from cause


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
