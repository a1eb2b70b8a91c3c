"""Warnings that many runs have in common are shown once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

log = logging.getLogger("fafed")


class Once(logging.Filter):
    """Lets each warning pass once. What is below a warning passes always."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno < logging.WARNING or text not in self.seen:
            self.seen.add(text)
            return True
        return False


@contextlib.contextmanager
def each_warning_once() -> Iterator[None]:
    found = Once()
    log.addFilter(found)
    try:
        yield
    finally:
        log.removeFilter(found)
