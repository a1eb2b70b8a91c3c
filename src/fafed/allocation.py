"""Keep the memory that is given back, and return it now and then.

Large tensors come and go with every gradient. By default the C library returns such memory to the
system at once, and asking for it again costs a page fault for every 4 KB: a quarter of the time
of a gradient of a language model. After `keep_memory` freed memory stays with the process. With
large models it then falls to pieces that fit nothing, which `return_memory` gives back.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of mallopt(3)


def keep_memory() -> bool:
    """For this process, from now on; True if the system lets us (Linux with glibc).

    The command line does so; in your own program it is your decision, since memory that was once
    used is then not returned before the end.
    """
    set_option = _function("mallopt")
    if set_option is None:
        return False
    done = [
        set_option(_MMAP_MAX, 0),
        set_option(_TRIM_THRESHOLD, 2**31 - 1),
        set_option(_ARENA_MAX, 1),  # the arenas of other threads cannot grow beyond 64 MB
    ]
    return all(done)


def return_memory() -> None:
    """Everything that is free at this moment; takes milliseconds, and page faults later."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    if sys.platform != "linux":
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
