"""The audit file: one JSON line per message, appended and never changed. And the log.

Each line carries the SHA-256 of the line before it. So a changed, removed or inserted line is
noticed. Missing lines at the end are noticed only with a hash that was noted elsewhere: the one
that `fafed silos audit` prints. A line that a crash cut short stays, and the next line says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fafed import files
from fafed.errors import FafedError
from fafed.files import Damaged
from fafed.silos.messages import ExchangeId, OneLine


class Audit:
    """An append-only file: silo, time, round, size, and the digest of the numbers."""

    def __init__(self, path: Path, who: str) -> None:
        self.path = path
        self.who = who
        self.lock = threading.Lock()  # so that lines of two threads do not mix
        files.make_folder(path.parent, private=True)

    def note(
        self,
        direction: Literal["sent", "received", "refused"],
        peer: str,
        kind: str,
        place: ExchangeId,
        size: int,
        digest: str,
        **more: str,
    ) -> None:
        line: dict[str, object] = {
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
        try:
            with self.lock:
                file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX)  # between processes; released with the file
                    _append(file, line)
                finally:
                    os.close(file)
        except OSError as cause:
            raise FafedError(
                f"the audit file {self.path} could not be written: {cause}. Nothing is sent "
                "unrecorded: free some space and go on"
            ) from cause


def _append(file: int, line: dict[str, object]) -> None:
    facts = os.fstat(file)
    if facts.st_mode & 0o077:
        os.fchmod(file, 0o600)
    last, torn = _last(file, facts.st_size)
    chained = line | {"before": _hash(last)} | ({"torn": True} if torn else {})
    try:
        files.append(file, b"\n" * torn + json.dumps(chained).encode() + b"\n")
    except OSError:
        os.ftruncate(file, facts.st_size)  # write a whole line or nothing
        raise


def _last(file: int, size: int) -> tuple[bytes, bool]:
    """The last line, and whether it was cut short."""
    tail, start = b"", size
    while start and tail.count(b"\n", 0, -1) == 0:
        length = min(start, max(4096, size - start))
        start -= length
        tail = os.pread(file, length, start) + tail
    torn = bool(tail) and not tail.endswith(b"\n")
    return tail.removesuffix(b"\n").rpartition(b"\n")[2], torn


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def verify(path: Path, head: str | None = None) -> tuple[int, str]:
    """Check the chain. Return the number of lines and the hash of the last line. `head` is such a
    hash from an earlier time: its line must still be there. Old files begin with lines that are not
    chained. Only the first chained line protects them."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as cause:
        raise FafedError(f"the audit file {path} cannot be read: {cause}") from cause
    before, begun, unread = b"", False, None  # unread: the previous line, if it is not JSON
    for number, line in enumerate(lines, start=1):
        try:
            facts = dict(json.loads(line))
        except (ValueError, TypeError):
            facts = {}
        if unread and not facts.get("torn"):
            raise Damaged(_broken(path, unread, "it is not a line of fafed's"))
        if "before" in facts:
            if facts["before"] != _hash(before):
                raise Damaged(_broken(path, number, "it does not follow from the line before"))
            begun = True
        elif facts and begun:
            raise Damaged(_broken(path, number, "it has no hash of the line before"))
        before, unread = line, None if facts else number
    if unread:
        raise Damaged(_broken(path, unread, "it is not a line of fafed's"))
    if head is not None and head not in map(_hash, lines):
        raise Damaged(
            f"the audit file {path} has no line with the hash {head}: lines are missing at its "
            "end. Compare it with a backup"
        )
    if rest:
        logging.getLogger("fafed").warning("%s: a crash has cut its last line short", path)
    return len(lines), _hash(before)


def _broken(path: Path, number: int, why: str) -> str:
    return (
        f"the audit file {path} is broken at line {number}: {why}. This line or the one before it "
        "was changed, removed or put in: compare them with a backup"
    )


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append everything that fafed logs to this file, too."""
    files.make_folder(path.parent, private=True)
    files.open_private(path, append=True).close()
    logger, handler = logging.getLogger("fafed"), logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
