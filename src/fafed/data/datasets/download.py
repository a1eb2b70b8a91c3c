"""Downloads that continue after a broken connection. A file gets its name only if it is correct."""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fafed.data.datasets.base import Download
from fafed.data.datasets.cache import writing
from fafed.errors import DataError

Progress = Callable[[int, int], None]  # (bytes done, bytes in total)

CHUNK = 1 << 18
TRIES = 5  # of one address, as long as each try receives data
SECONDS = 30  # of silence before a connection counts as broken


def fetch(file: Download, target: Path, progress: Progress) -> None:
    """Download `file` to `target`. Continue from target.part of an earlier attempt."""
    if target.is_file() and _sha256(target) == file.sha256:
        progress(file.size, file.size)
        return
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    failures = []
    for url in file.urls:
        for _ in range(TRIES):
            before = _size(part)
            try:
                _go_on(url, part, file, progress)
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{url}: {getattr(error, 'reason', error)}")
                if _size(part) <= before:
                    break
                continue
            found = _sha256(part)
            if found == file.sha256:
                with writing(target):
                    part.replace(target)
                return
            part.unlink()
            failures.append(f"{url}: expected sha256 {file.sha256}, found {found}")
            if not before:  # it came in one piece: another try would bring the same
                break
    raise DataError(
        f"cannot download {file.name} ({'; '.join(dict.fromkeys(failures))}); try again later, "
        "which goes on from where it stopped, or get the file in another way and import it"
    )


def _go_on(url: str, part: Path, file: Download, progress: Progress) -> None:
    """Download the rest of `part`. If the server sends the whole file, write it again."""
    done = _size(part)
    if done > file.size:
        part.unlink()
        done = 0
    if done == file.size:
        return
    with _open(url, done) as response:
        if response.status == http.client.PARTIAL_CONTENT:
            size = _whole_size(response.headers.get("Content-Range", ""), done)
        else:
            size = response.headers.get("Content-Length")
            done = 0
        if size is not None and int(size) != file.size:
            raise OSError(f"another file: expected {file.size} bytes, found {size}")
        with writing(part):
            out = part.open("ab" if done else "wb", buffering=0)
        with out:
            while chunk := response.read(min(CHUNK, file.size - done)):
                with writing(part):
                    _write(out, chunk)
                done += len(chunk)
                progress(done, file.size)
    if done < file.size:
        raise OSError(f"the connection broke after {done} of {file.size} bytes")


def _open(url: str, start: int) -> Any:
    request = urllib.request.Request(url, headers={"User-Agent": "fafed"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return urllib.request.urlopen(request, timeout=SECONDS)
    except urllib.error.HTTPError as error:
        with error:  # it is an open response, too
            raise OSError(f"HTTP {error.code} {error.reason}") from None


def _whole_size(content_range: str, start: int) -> str | None:
    """The size of the whole file, from an answer that starts at the byte we asked for."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if not match or int(match[1]) != start:
        raise OSError(f"asked for bytes from {start}, was sent {content_range!r}")
    return None if match[2] == "*" else match[2]


def _write(out: Any, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[out.write(view) :]  # unbuffered, so that a full disk shows here


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
