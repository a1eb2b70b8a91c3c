"""Files that survive a power cut, and checksums that reveal damage.

A rename alone survives a kill, but not a power cut: the disk may have the new name before it has
the content. So the content is synced first, then renamed, and then the folder is synced.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from fafed.errors import FafedError

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
CRC = "crc"  # the key under which sealed content carries its checksum


class Damaged(FafedError):
    """A file does not hold what was written into it."""


# Writing.


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a path to write to. Then it replaces `path`, completely or not at all.

    With `sync` this holds for a power cut, too, and `path` is on disk at the end.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        if sync:
            sync_path(part)
        part.replace(path)
        if sync:
            sync_path(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(
    path: Path, pieces: Iterable[bytes | memoryview], *, sync: bool = True, private: bool = False
) -> None:
    """Replace `path` by this content, completely or not at all."""
    try:
        opened = open_private if private else lambda part: part.open("wb")
        with replacing(path, sync=sync) as part, opened(part) as file:
            for piece in pieces:
                file.write(piece)
    except OSError as cause:
        raise not_written(path, cause) from cause


def not_written(path: Path, cause: OSError) -> FafedError:
    full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    cure = "Free some space" if full else "Choose a place where you may write"
    return FafedError(f"{path} could not be written: {cause}. {cure}")


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make the folder and those above it, and sync them to disk. Only the owner can read a private
    folder, whatever the umask. An existing folder is not changed."""
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)  # another process may be faster
            if private:
                folder.chmod(0o700)
            sync_path(folder.parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
    except OSError as cause:
        raise FafedError(
            f"the folder {path} cannot be made: {cause}. Choose another folder, or free this one"
        ) from cause


def open_private(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file for writing that only its owner can read, whatever the umask."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)  # an existing file may have been readable for others
    return os.fdopen(descriptor, "ab" if append else "wb")


def sync_path(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise  # some network file systems cannot sync a folder
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until a folder and all that is in it are on disk."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def append(descriptor: int, data: bytes) -> None:
    """Write all data: one call of the kernel may write only a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def sweep(folder: Path) -> None:
    """Delete half-written files of killed processes, ours and those of safetensors."""
    for pattern in (".*.part", "*.part", ".tmp*"):
        for stale in folder.glob(pattern):
            stale.unlink(missing_ok=True)


# Checksums.


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """The content with its checksum, to be written as JSON in any layout."""
    return {**content, CRC: _crc(content)}


def unsealed(content: object) -> dict[str, Any]:
    """The content of something `sealed`. Raises ValueError if it has changed. Old files have no
    checksum and are accepted."""
    if not isinstance(content, dict):
        raise ValueError("it is not a table of names and values")
    if CRC not in content:
        return content
    inner = {name: value for name, value in content.items() if name != CRC}
    if content[CRC] != _crc(inner):
        raise ValueError("it fails its checksum")
    return inner


def _crc(content: Mapping[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
