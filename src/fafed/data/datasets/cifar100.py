"""CIFAR-100 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

The cache keeps the archive of the binary version. For each image it has a byte for the superclass,
one for the class, then 3,072 bytes for the pixels: red, green, blue, each row by row. The "python
version" is a pickle, which can run any code when it is opened, so it is refused.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fafed.data.datasets.base import Dataset, Download, Images, Origin, Pixels, labelled
from fafed.data.datasets.cache import content, reading, verified
from fafed.errors import DataError

ARCHIVE = "cifar-100-binary.tar.gz"
SHA256 = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
SIZE = 168_513_733
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
PER_IMAGE = 2 + 3 * 32 * 32
COUNTS = {"train.bin": 50_000, "test.bin": 10_000}
NAMES = "fine_label_names.txt"


def read(folder: Path) -> Images:
    return images(verified(folder / ARCHIVE, SHA256), folder / ARCHIVE)


def images(archive: bytes, path: Path) -> Images:
    members = _members(archive, path)
    train, test = (_labelled(members[name], count, path) for name, count in COUNTS.items())
    names = members[NAMES].decode("ascii").split()
    return Images(labelled(*train, MEAN, STD), labelled(*test, MEAN, STD), tuple(names))


def _members(archive: bytes, path: Path) -> dict[str, bytes]:
    """Read the known members only. Nothing is extracted, so names in the archive can do no harm."""
    found: dict[str, bytes] = {}
    with reading(path), tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            name = member.name.rpartition("/")[2]
            file = tar.extractfile(member) if name in (*COUNTS, NAMES) and member.isreg() else None
            if file is not None:
                found[name] = file.read()
    missing = {*COUNTS, NAMES} - set(found)
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}: get a fresh copy of it")
    return found


def _labelled(rows: bytes, count: int, path: Path) -> tuple[Pixels, Pixels]:
    if len(rows) != count * PER_IMAGE:
        raise DataError(
            f"{path}: {len(rows)} bytes of images, expected {count * PER_IMAGE}; get a fresh copy"
        )
    table = np.frombuffer(rows, np.uint8).reshape(count, PER_IMAGE)
    return table[:, 2:].reshape(-1, 3, 32, 32).copy(), table[:, 1].copy()


def unpack(source: Path) -> Iterator[tuple[str, bytes]]:
    """From the archive of the binary version."""
    path = source if source.is_file() else source / ARCHIVE
    if not path.is_file():
        raise DataError(f"no {ARCHIVE} in {source}: name the folder that holds it, or the file")
    yield ARCHIVE, content(path)


CIFAR100 = Dataset(
    name="cifar-100",
    description="50,000 + 10,000 photographs, 32x32 colour, 100 classes",
    licence="none stated; the authors ask to cite Krizhevsky (2009)",
    read=read,
    origin=Origin(
        files={ARCHIVE: SHA256},
        downloads=(
            Download(ARCHIVE, SIZE, SHA256, (f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",)),
        ),
        unpack=unpack,
    ),
)
