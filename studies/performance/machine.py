"""A description of the machine, without anything that identifies it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def describe(cores: int) -> dict[str, Any]:
    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores used": cores,
        "memory GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def pin(cores: int) -> int:
    """Keep this process and its children to this many cores; return the number that it got."""
    if not hasattr(os, "sched_setaffinity"):
        return cores
    mine = sorted(os.sched_getaffinity(0))[:cores]
    os.sched_setaffinity(0, mine)
    return len(mine)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
