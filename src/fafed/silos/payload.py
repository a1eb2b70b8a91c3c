"""The body of a message: small ones are in memory, large ones on disk.

A model may be so large that a machine can hold only one copy of a message. So a large body is never
copied as a whole. An outgoing body is the tensors themselves. An incoming body is written piece by
piece to a file without a name. The file is mapped into memory and vanishes with the process. The
system can take back its pages whenever it needs memory.
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

LARGE = 2**22  # bytes; for smaller bodies memory is cheaper than a file
PIECE = 2**24  # bytes that are sent or received at once
STRETCH = 2**17  # numbers that are processed at once, so that they stay in the cache


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
        return b"".join(self.between(begin, end))

    def between(self, begin: int, end: int) -> Iterator[memoryview]:
        """The bytes from `begin` to `end`, in pieces."""
        for part in self.parts:
            if piece := part[max(begin, 0) : max(end, 0)]:
                yield piece
            begin, end = begin - len(part), end - len(part)


Body = bytes | bytearray | mmap.mmap | Chain
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_mapping = threading.Lock()  # answers arrive in several threads


def room(folder: Path, size: int) -> bytearray | mmap.mmap:
    """Space for a body of this size, in the folder if it is large."""
    if size <= LARGE:
        return bytearray(size)
    try:
        files.make_folder(folder, private=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here
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
    """The rest of a file. Writing into the mapped memory does not change the file."""
    at, size = file.tell(), os.fstat(file.fileno()).st_size
    if size - at <= LARGE or at % mmap.ALLOCATIONGRANULARITY:
        return file.read()
    return mmap.mmap(file.fileno(), size - at, access=mmap.ACCESS_COPY, offset=at)


def shelved(body: Body, folder: Path) -> Body:
    """The same body. A large body in memory moves into the folder."""
    if len(body) <= LARGE or not isinstance(body, bytes | bytearray):
        return body
    place = room(folder, len(body))
    at = 0
    for piece in pieces(body):
        place[at : at + len(piece)] = piece
        at += len(piece)
    return place


def chained(leaves: Sequence[Tensor]) -> Body:
    """The bytes of these tensors. Few bytes are copied."""
    chain = Chain([flat_bytes(leaf).numpy().data for leaf in leaves if leaf.numel()])
    return chain if len(chain) > LARGE else bytearray(bytes(chain))


def flat_bytes(leaf: Tensor) -> Tensor:
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def tensor(body: Body, dtype: torch.dtype, shape: Sequence[int], at: int) -> Tensor:
    """The tensor that begins at this byte. It is a copy, unless the body is mapped."""
    size = math.prod(shape) * dtype.itemsize
    if isinstance(body, mmap.mmap) and size > LARGE and at % dtype.itemsize == 0:
        return torch.frombuffer(body, dtype=dtype, count=math.prod(shape), offset=at).reshape(shape)
    leaf = torch.empty(tuple(shape), dtype=dtype)
    if size:
        filled, target = 0, flat_bytes(leaf).numpy().data
        chain = body if isinstance(body, Chain) else Chain([memoryview(body)])
        for piece in chain.between(at, at + size):
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
    return leaf


def empty(folder: Path, like: Tensor) -> Tensor:
    """A tensor to write into, on disk if it is large."""
    size = like.numel() * like.element_size()
    if size <= LARGE:
        return torch.empty(like.shape, dtype=like.dtype)
    return tensor(room(folder, size), like.dtype, like.shape, 0)


def zeros(folder: Path, count: int, dtype: torch.dtype) -> Tensor:
    """Zeros, on disk if there are many."""
    size = count * dtype.itemsize
    return tensor(room(folder, size), dtype, (count,), 0)


def pieces(body: Body) -> Iterator[memoryview]:
    """The bytes in order, in pieces."""
    for part in body.parts if isinstance(body, Chain) else [memoryview(body)]:
        for at in range(0, len(part), PIECE):
            yield part[at : at + PIECE]
            if len(part) > LARGE:
                _forget(body)
                release()


def cut(body: Body, at: int, most: int | None = None) -> bytes | memoryview:
    """A piece of at most so many bytes that begins at this byte. For a large body it is not a copy
    if possible."""
    size = PIECE if most is None else min(most, PIECE)
    if isinstance(body, Chain):
        for part in body.parts:
            if 0 <= at < len(part):
                return part[at : at + size]
            at -= len(part)
        return b""
    return memoryview(body)[at : at + size]


def stretches(leaf: Tensor) -> Iterator[Tensor]:
    """The numbers of a tensor in order, in pieces that stay in the cache."""
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
    """Return the memory of mapped files to the system. It is read again when needed."""
    with _mapping:
        found = list(_mapped)
    for body in found:
        _forget(body)


def _forget(body: Body) -> None:
    if isinstance(body, mmap.mmap) and hasattr(body, "madvise"):
        body.madvise(mmap.MADV_DONTNEED)
