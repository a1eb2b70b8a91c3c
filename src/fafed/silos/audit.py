"""What was sent and received, one line of JSON each, appended and never changed; and the log."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fafed.errors import FafedError
from fafed.silos import private
from fafed.silos.messages import OneLine, Place


class Audit:
    """An append-only file: who, when, which round, how much, and the digest of the numbers."""

    def __init__(self, path: Path, who: str) -> None:
        self.path = path
        self.who = who
        self.lock = threading.Lock()  # the lines of two threads do not mix
        private.folder(path.parent)

    def note(
        self,
        direction: Literal["sent", "received", "refused"],
        peer: str,
        kind: str,
        place: Place,
        size: int,
        digest: str,
        **more: Any,
    ) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": self.who,
            "direction": direction,
            "peer": peer,
            "kind": kind,
            **place._asdict(),
            "bytes": size,
            "sha256": digest,
            **more,
        }
        data = (json.dumps(line) + "\n").encode()
        try:
            with self.lock:
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(file, data)
                finally:
                    os.close(file)
        except OSError as cause:
            raise FafedError(
                f"the audit file {self.path} could not be written: {cause}. Nothing is sent "
                "unrecorded: free some space and go on"
            ) from cause


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """What fafed logs meanwhile is also appended to this file."""
    private.folder(path.parent)
    private.opened(path, append=True).close()
    logger, handler = logging.getLogger("fafed"), logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
