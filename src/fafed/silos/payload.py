"""Where the numbers of a message are: small ones in memory, large ones on disk.

A model may be so large that one copy of a message is all a machine can hold. So a large body is
never copied as a whole: one that goes out is the tensors themselves, one that comes in is written,
piece by piece, to a file without a name, which is mapped into memory and gone with the process.
Its pages are the system's to take back whenever it needs them.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from fafed import files
from fafed.errors import FafedError

LARGE = 2**22  # bytes; below, memory is cheaper than a file
PIECE = 2**24  # bytes that are handled at once
STRETCH = 2**17  # numbers that are computed with at once


class Chain:
    """The bytes of tensors one after another, without a copy."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self.parts = list(parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def __getitem__(self, wanted: slice) -> bytes:
        begin, end, _ = wanted.indices(len(self))
        found = []
        for part in self.parts:
            found.append(part[max(begin, 0) : max(end, 0)])
            begin, end = begin - len(part), end - len(part)
        return b"".join(found)


Body = bytes | bytearray | mmap.mmap | Chain
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_mapping = threading.Lock()  # answers come in threads of their own


def room(folder: Path, size: int) -> bytearray | mmap.mmap:
    """Space for a body of this size, in the folder if it is large."""
    if size <= LARGE:
        return bytearray(size)
    try:
        files.make_folder(folder, private=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found out here
            else:
                file.truncate(size)
            made = mmap.mmap(file.fileno(), size)
    except OSError as cause:
        raise FafedError(
            f"there is no room for {size} bytes in {folder}: {cause}. Free some space"
        ) from cause
    with _mapping:
        _mapped.add(made)
    return made


def rest(file: BinaryIO) -> bytes | mmap.mmap:
    """What follows in a file. Who writes into a mapped one does not change the file."""
    at, size = file.tell(), os.fstat(file.fileno()).st_size
    if size - at <= LARGE or at % mmap.ALLOCATIONGRANULARITY:
        return file.read()
    return mmap.mmap(file.fileno(), size - at, access=mmap.ACCESS_COPY, offset=at)


def shelved(body: Body, folder: Path) -> Body:
    """The same body; a large one that is in memory moves into the folder."""
    if len(body) <= LARGE or not isinstance(body, bytes | bytearray):
        return body
    place = room(folder, len(body))
    at = 0
    for piece in pieces(body):
        place[at : at + len(piece)] = piece
        at += len(piece)
    return place


def chained(leaves: Sequence[Tensor]) -> Body:
    """The bytes of these tensors: a copy if they are few."""
    chain = Chain([flat_bytes(leaf).numpy().data for leaf in leaves if leaf.numel()])
    return chain if len(chain) > LARGE else bytearray(bytes(chain))


def flat_bytes(leaf: Tensor) -> Tensor:
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def tensor(body: Body, dtype: torch.dtype, shape: Sequence[int], at: int) -> Tensor:
    """The numbers from this byte on: those of a mapped body as they lie there, others copied."""
    size = math.prod(shape) * dtype.itemsize
    if isinstance(body, mmap.mmap) and size > LARGE and at % dtype.itemsize == 0:
        return torch.frombuffer(body, dtype=dtype, count=math.prod(shape), offset=at).reshape(shape)
    leaf = torch.empty(tuple(shape), dtype=dtype)
    if size:
        raw = bytearray(body[at : at + size])
        flat_bytes(leaf).copy_(torch.frombuffer(raw, dtype=torch.uint8))
    return leaf


def empty(folder: Path, like: Tensor) -> Tensor:
    """A tensor to write into, on disk if it is large."""
    size = like.numel() * like.element_size()
    if size <= LARGE:
        return torch.empty(like.shape, dtype=like.dtype)
    return tensor(room(folder, size), like.dtype, like.shape, 0)


def pieces(body: Body) -> Iterator[memoryview]:
    """The bytes in order, a few at a time."""
    for part in body.parts if isinstance(body, Chain) else [memoryview(body)]:
        for at in range(0, len(part), PIECE):
            yield part[at : at + PIECE]
            if len(part) > LARGE:
                _forget(body)
                release()


def cut(body: Body, at: int) -> bytes | memoryview:
    """A piece that begins with this byte: of a large body not copied where that can be."""
    if isinstance(body, Chain):
        for part in body.parts:
            if 0 <= at < len(part):
                return part[at : at + PIECE]
            at -= len(part)
        return b""
    return memoryview(body)[at : at + PIECE]


def stretches(leaf: Tensor) -> Iterator[Tensor]:
    """The numbers of a tensor in order, so few at a time that they stay in the cache."""
    for index, stretch in enumerate(torch.split(leaf.reshape(-1), STRETCH), start=1):
        yield stretch
        if index % (PIECE // STRETCH) == 0:
            release()


def digest(body: Body) -> str:
    found = hashlib.sha256()
    for piece in pieces(body):
        found.update(piece)
    return found.hexdigest()


def release() -> None:
    """Give back the memory of what was read from files or written to them; it is read again when
    it is wanted again."""
    with _mapping:
        found = list(_mapped)
    for body in found:
        _forget(body)


def _forget(body: Body) -> None:
    if isinstance(body, mmap.mmap) and hasattr(body, "madvise"):
        body.madvise(mmap.MADV_DONTNEED)
