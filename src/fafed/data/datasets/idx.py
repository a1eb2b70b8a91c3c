"""IDX, the format of MNIST and its relatives: a big-endian header, then the bytes of one array.

0 0 8 d    two zeros, type 8 (uint8), number of dimensions d
d sizes    4 bytes each
data       exactly as many bytes as the sizes say
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fafed.data.datasets.base import Pixels
from fafed.data.datasets.cache import reading
from fafed.errors import DataError

GZIP = b"\x1f\x8b"


def read(path: Path, shape: tuple[int, ...]) -> Pixels:
    """The array in an IDX file, plain or gzipped. It must have exactly this shape."""
    with reading(path), path.open("rb") as file:
        zipped = file.read(2) == GZIP
        file.seek(0)
        if not zipped:
            return _parse(file, shape, path)
        with gzip.open(file) as stream:
            return _parse(cast("BinaryIO", stream), shape, path)


def header(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


def dump(array: Pixels) -> bytes:
    """The array as a plain IDX file."""
    return header(array.shape) + array.tobytes()


def sha256(array: Pixels) -> str:
    """The sha256 of the array as a plain IDX file, without making the file."""
    digest = hashlib.sha256(header(array.shape))
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _parse(stream: BinaryIO, shape: tuple[int, ...], path: Path) -> Pixels:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08":
        raise DataError(
            f"{path} is not an IDX file of bytes: it begins with {magic.hex(' ') or 'nothing'}, "
            "expected 00 00 08 and the number of dimensions"
        )
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} ends inside its header: it is cut short, get a fresh copy")
    found = struct.unpack(f">{magic[3]}I", sizes)
    if found != shape:  # before the data is read, so a false header cannot ask for huge arrays
        raise DataError(f"{path} holds an array of shape {found}, expected {shape}")
    content = stream.read(prod(shape))
    if len(content) < prod(shape):
        raise DataError(
            f"{path} is cut short: expected {prod(shape)} bytes of data, found {len(content)}; "
            "get a fresh copy"
        )
    if stream.read(1):
        raise DataError(f"{path} has bytes after its data: it is damaged, get a fresh copy")
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)  # bytearray: writable
