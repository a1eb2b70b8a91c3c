"""Keep the memory that is given back, and return it now and then.

Large tensors come and go with every gradient. By default the C library returns such memory to the
system at once, and asking for it again costs a page fault for every 4 KB: a quarter of the time
of a gradient of a language model. After `keep_memory` freed memory stays with the process. With
large models it then falls to pieces that fit nothing, which `return_memory` gives back when the
machine gets short of memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

LIMITS = (  # of a container, in both versions of control groups; not there, or "max": none
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of mallopt(3)


def keep_freed_memory() -> bool:
    """For this process, from now on; True if the system lets us (Linux with glibc).

    The command line does so; in your own program it is your decision, since memory that was once
    used is then not returned before the end.
    """
    done = [
        call("mallopt", _MMAP_MAX, 0),
        call("mallopt", _TRIM_THRESHOLD, -1),  # never
        call("mallopt", _ARENA_MAX, 1),  # the arenas of other threads cannot grow beyond 64 MB
    ]
    return all(done)


def return_memory() -> None:
    """All that is free at this moment, if this process could not become twice as large.

    It takes milliseconds, and page faults when the memory is used again: done after each client, a
    quarter of the time of a large language model with few local steps.
    """
    if sys.platform == "linux" and room() < resident():
        call("malloc_trim", 0)


def resident() -> int:
    """Bytes of this process that are in memory, without files."""
    _, pages, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(pages) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def room() -> int:
    """Bytes that the machine has left for this process, or the container if that is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    rooms = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for file in LIMITS:
        limit = file.read_text().strip() if file.exists() else "max"
        rooms += [int(limit) - resident()] if limit.isdigit() else []
    return min(rooms, default=0)


def call(name: str, *arguments: int) -> int:
    """A function of the GNU C library; 0, and nothing happens, with another one."""
    if sys.platform != "linux":
        return 0
    try:
        return int(getattr(ctypes.CDLL(None), name)(*arguments))
    except (OSError, AttributeError):
        return 0
