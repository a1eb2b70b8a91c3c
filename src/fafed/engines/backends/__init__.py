"""Back ends: how the engine of one process computes the clients. Each has one file.

The same algorithm code runs in all of them. Results agree up to rounding.
"""

from __future__ import annotations

import logging

from fafed.engines.backends.base import Backend, CannotRun, Differs, Task
from fafed.engines.backends.loop import Loop
from fafed.engines.backends.native import Native
from fafed.engines.backends.vmap import Vmap
from fafed.errors import ConfigError

__all__ = ["BACKENDS", "Backend", "CannotRun", "Task", "choose"]

log = logging.getLogger("fafed")

BACKENDS: dict[str, type[Backend]] = {"loop": Loop, "vmap": Vmap, "native": Native}
FASTEST_FIRST: tuple[type[Backend], ...] = (Native, Vmap)


def choose(wanted: str, task: Task) -> Backend:
    """The back end of this name. For "auto", the fastest one that supports the task."""
    if wanted == "auto":
        return _fastest(task)
    if wanted not in BACKENDS:
        known = ", ".join(map(repr, ["auto", *BACKENDS]))
        raise ConfigError(f"engine must be one of {known}, got {wanted!r}")
    backend = BACKENDS[wanted](task)
    try:
        backend.check()
    except CannotRun as why:
        raise ConfigError(f"engine={wanted!r} cannot run this: {why}; use 'loop'") from why
    return backend


def _fastest(task: Task) -> Backend:
    for kind in FASTEST_FIRST:
        backend = kind(task)
        try:
            if backend.pays():
                backend.check()
                return backend
        except Differs as why:
            log.warning("%s and is not used", why)
        except CannotRun:
            continue
    return Loop(task)
