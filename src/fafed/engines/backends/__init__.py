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
from fafed.kernels.build import NoCompiler

__all__ = ["BACKENDS", "Backend", "CannotRun", "Task", "choose"]

log = logging.getLogger("fafed")

BACKENDS: dict[str, type[Backend]] = {"loop": Loop, "vmap": Vmap, "native": Native}
FASTEST_FIRST: tuple[type[Backend], ...] = (Native, Vmap)


def choose(wanted: str, task: Task) -> Backend:
    """The back end of this name. For "auto", the fastest one that supports the task."""
    if wanted == "auto":
        chosen = _fastest(task)
        log.info("engine: %s (%s)", chosen.name, chosen.why)
        return chosen
    if wanted not in BACKENDS:
        known = ", ".join(map(repr, ["auto", *BACKENDS]))
        raise ConfigError(f"engine must be one of {known}, got {wanted!r}")
    backend = BACKENDS[wanted](task)
    backend.why = f"engine = {wanted!r}"
    try:
        backend.check()
    except CannotRun as why:
        raise ConfigError(f"engine={wanted!r} cannot run this: {why}; use 'loop'") from why
    return backend


def _fastest(task: Task) -> Backend:
    against: list[str] = []
    for kind in FASTEST_FIRST:
        backend = kind(task)
        try:
            if drawback := backend.drawback():
                raise CannotRun(drawback)
            backend.check()
        except CannotRun as cause:
            if isinstance(cause, Differs):
                log.warning("%s and is not used", cause)
            if isinstance(cause.__cause__, NoCompiler):
                log.warning(
                    "engine: native would run this model about ten times faster, but %s; install a "
                    "C compiler, or set CC; the last digits of the results differ without it",
                    cause,
                )
            words = " ".join(str(cause).split())  # torch's messages have several lines
            against.append(f"not {kind.name}: {words[:200]}")
        else:
            backend.why = "; ".join(["the fastest that supports this model", *against])
            return backend
    loop = Loop(task)
    loop.why = "; ".join(against)
    return loop
