"""Keep freed memory in the process, and return it to the system when memory is short.

Every gradient allocates and frees large tensors. By default the C library returns this memory to
the system at once. Getting it back costs a page fault for every 4 KB: a quarter of the time of a
language model's gradient. After `keep_freed_memory` freed memory stays with the process. With large
models it becomes fragmented. `return_memory` gives it back when the machine is short of memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

LIMITS = (  # of a container, in both versions of control groups; absent or "max": no limit
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on. True if the system supports it (Linux with
    glibc).

    The command line does this. In your own program you decide: memory that was used once is not
    returned before the end of the process.
    """
    done = [
        call("mallopt", _MMAP_MAX, 0),
        call("mallopt", _TRIM_THRESHOLD, -1),  # never
        call("mallopt", _ARENA_MAX, 1),  # the arenas of other threads cannot grow beyond 64 MB
    ]
    return all(done)


def return_memory() -> None:
    """Return all free memory to the system, but only if the process could not double in size.

    This takes milliseconds, and page faults when the memory is used again. If done after each
    client, it takes a quarter of the time of a large language model with few local steps.
    """
    if sys.platform == "linux" and room() < resident():
        call("malloc_trim", 0)


def resident() -> int:
    """Bytes of memory that this process uses, without mapped files."""
    _, pages, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(pages) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def room() -> int:
    """Bytes that the machine, or the container if that is less, has left for this process."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    rooms = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for file in LIMITS:
        limit = file.read_text().strip() if file.exists() else "max"
        rooms += [int(limit) - resident()] if limit.isdigit() else []
    return min(rooms, default=0)


def call(name: str, *arguments: int) -> int:
    """Call a function of the GNU C library. With another C library, do nothing and return 0."""
    if sys.platform != "linux":
        return 0
    try:
        return int(getattr(ctypes.CDLL(None), name)(*arguments))
    except (OSError, AttributeError):
        return 0
