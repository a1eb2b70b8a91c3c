"""Files that only their owner can read, whatever the umask: 0600, in folders of 0700."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def folder(path: Path) -> None:
    """Make a folder and those above it that are missing. One that is there stays as it is."""
    if path.is_dir():
        return
    folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another process was faster
        if not path.is_dir():
            raise
    else:
        path.chmod(0o700)


def opened(path: Path, *, append: bool = False) -> BinaryIO:
    """A file to write."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
    number = os.open(path, flags, 0o600)
    try:
        os.fchmod(number, 0o600)  # one that was there before may have been open to others
    except OSError:
        os.close(number)
        raise
    return os.fdopen(number, "ab" if append else "wb")
