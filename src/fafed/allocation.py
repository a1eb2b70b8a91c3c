"""Keep the memory that is given back.

Large tensors come and go with every gradient. By default the C library returns such memory to the
system at once, and asking for it again costs a page fault for every 4 KB: a quarter of the time
of a gradient of a language model. After `keep_memory` freed memory stays with the process.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of mallopt(3)


def keep_memory() -> bool:
    """For this process, from now on; True if the system lets us (Linux with glibc).

    The command line does so; in your own program it is your decision, since memory that was once
    used is then not returned before the end.
    """
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    done = [
        set_option(_MMAP_MAX, 0),
        set_option(_TRIM_THRESHOLD, 2**31 - 1),
        set_option(_ARENA_MAX, 1),  # the arenas of other threads cannot grow beyond 64 MB
    ]
    return all(done)
