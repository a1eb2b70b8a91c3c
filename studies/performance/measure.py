"""Start a process, watch the memory of all its descendants, and stop it when it takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.performance.environments import ROOT

PROC = Path("/proc")
PAUSE = 0.1  # seconds between two looks
PAGE = os.sysconf("SC_PAGE_SIZE")


class Failed(Exception):
    """A runner that gave no answer."""


class TooSlow(Failed):
    """A runner that was stopped because it took too long."""


@dataclass(frozen=True)
class Answer:
    found: dict[str, Any]  # what the runner wrote
    wall: float  # seconds from start to end
    # Peak resident memory of all processes together, in MiB. Shared pages count once per process.
    # None where the system does not report it.
    memory: float | None


def run(
    command: Sequence[str], environment_variables: Mapping[str, str], answer: Path, limit: float
) -> Answer:
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env=environment_variables,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        seen: dict[int, str] = {}
        highest = 0
        try:
            while process.poll() is None:
                family = descendants(process.pid)
                seen |= family
                highest = max(highest, resident(family))
                if time.perf_counter() - began > limit:
                    raise TooSlow(f"stopped after {limit:.0f} s")
                time.sleep(PAUSE)
        finally:
            _end(process, seen)
        if process.returncode or not (answer / "answer.json").is_file():
            log.seek(0)
            text = log.read().decode(errors="replace").strip().splitlines()
            last = text[-1].replace(str(ROOT), "")[:300] if text else "no output"
            raise Failed(f"exit code {process.returncode}: {last}")
    found = json.loads((answer / "answer.json").read_text())
    memory = highest * PAGE / 2**20 if highest else None
    return Answer(found, time.perf_counter() - began, memory)


def descendants(pid: int) -> dict[int, str]:
    """The ids of a process and of all its descendants, each with the time at which it began.

    The system may use an id again; the id and the time together are unique.
    """
    children: dict[int, list[int]] = {}
    times: dict[int, str] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            times[int(entry.name)] = stat[19]
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, new = {pid}, [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found |= set(new)
    return {pid: times[pid] for pid in found if pid in times}


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat that follow the name; nothing if it has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def resident(pids: Iterable[int]) -> int:
    """The number of resident pages of these processes."""
    total = 0
    for pid in pids:
        try:
            total += int((PROC / str(pid) / "statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total


def _end(process: subprocess.Popen[bytes], seen: Mapping[int, str]) -> None:
    """End the processes of `seen` that still run, and no others."""
    for pid, began in seen.items():
        stat = _stat(pid)
        if stat and stat[19] == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()
