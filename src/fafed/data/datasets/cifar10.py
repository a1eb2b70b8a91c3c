"""CIFAR-10 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

The cache keeps the six files of the binary version. For each image they have one byte for the
label, then 3,072 bytes for the pixels: red, green, blue, each row by row. The "python version" is a
pickle, which can run any code when it is opened, so it is refused.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fafed.data.datasets.base import Dataset, Download, Images, Origin, Pixels, labelled
from fafed.data.datasets.cache import content, find, reading, verified
from fafed.errors import DataError

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
PER_FILE, PER_IMAGE = 10_000, 1 + 3 * 32 * 32
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"
PICKLES = ("data_batch_1", "batches.meta", "cifar-10-batches-py", "cifar-10-python.tar.gz")
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
*TRAIN, TEST = SHA256


def read(folder: Path) -> Images:
    def batches(*names: str) -> tuple[Pixels, Pixels]:
        images = np.empty((len(names), PER_FILE, 3, 32, 32), np.uint8)
        labels = np.empty((len(names), PER_FILE), np.uint8)
        for i, name in enumerate(names):
            rows = np.frombuffer(verified(folder / name, SHA256[name]), np.uint8)
            rows = rows.reshape(PER_FILE, PER_IMAGE)
            labels[i], images[i] = rows[:, 0], rows[:, 1:].reshape(-1, 3, 32, 32)
        return images.reshape(-1, 3, 32, 32), labels.reshape(-1)

    return Images(
        train=labelled(*batches(*TRAIN), MEAN, STD),
        test=labelled(*batches(TEST), MEAN, STD),
        classes=CLASSES,
    )


def unpack(source: Path) -> Iterator[tuple[str, bytes]]:
    """From the binary version, as files or as archive, or from the compact .npz form."""
    if source.is_file():
        return _from_archive(source)
    for folder in (source, source / FOLDER):
        if (folder / TRAIN[0]).is_file():
            return _from_files(folder)
    if (source / ARCHIVE).is_file():
        return _from_archive(source / ARCHIVE)
    if (source / "train.npz").is_file():
        return _from_npz(source)
    if any((source / name).exists() for name in PICKLES):
        raise _pickled(source)
    raise DataError(
        f"no CIFAR-10 in {source}: name a folder with {TRAIN[0]} ... {TEST}, or {ARCHIVE}"
    )


def _from_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in SHA256:
        yield name, content(find(folder, name))


def _from_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Read the known members only. Nothing is extracted, so names in the archive can do no harm."""
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            if folder == "cifar-10-batches-py":
                raise _pickled(path)
            if folder not in ("", FOLDER) or name not in SHA256 or not member.isreg():
                continue
            if member.size != PER_FILE * PER_IMAGE:
                raise DataError(
                    f"{path}: {member.name} has {member.size} bytes, expected "
                    f"{PER_FILE * PER_IMAGE}; get a fresh copy"
                )
            file = archive.extractfile(member)
            assert file is not None  # it is a regular file
            yield name, file.read()


def _from_npz(folder: Path) -> Iterator[tuple[str, bytes]]:
    """`labels` (N,) and `residual` (3, N, 32, 32), both uint8: the planes G, R-G and B-G, each
    differenced along rows and columns, modulo 256."""
    for file, names in {"train.npz": TRAIN, "test.npz": [TEST]}.items():
        path = find(folder, file)
        labels, residual = _arrays(path, len(names) * PER_FILE)
        for i, name in enumerate(names):
            rows = slice(i * PER_FILE, (i + 1) * PER_FILE)
            planes = np.cumsum(residual[:, rows], axis=2, dtype=np.uint8)
            green, red, blue = np.cumsum(planes, axis=3, dtype=np.uint8)
            pixels = np.stack([red + green, green, blue + green], axis=1)
            yield name, np.column_stack([labels[rows], pixels.reshape(PER_FILE, -1)]).tobytes()


def _arrays(path: Path, n: int) -> tuple[Pixels, Pixels]:
    wanted = {"labels": (n,), "residual": (3, n, 32, 32)}
    with reading(path):
        try:
            with np.load(path, allow_pickle=False) as arrays:
                labels, residual = (arrays[name] for name in wanted)
        except (ValueError, KeyError) as error:  # pickled objects, or other names
            raise OSError(str(error)) from error
    for array, (name, shape) in zip((labels, residual), wanted.items(), strict=True):
        if array.shape != shape or array.dtype != np.uint8:
            raise DataError(
                f"{path}: {name} is {array.dtype} {array.shape}, expected uint8 {shape}"
            )
    return labels, residual


def _pickled(source: Path) -> DataError:
    return DataError(
        f"{source} holds the pickled 'python version' of CIFAR-10, which fafed never opens, since "
        f"a pickle can run any code: use the binary version, {ARCHIVE}"
    )


CIFAR10 = Dataset(
    name="cifar-10",
    description="50,000 + 10,000 photographs, 32x32 colour, 10 classes",
    licence="none stated; the authors ask to cite Krizhevsky (2009)",
    read=read,
    origin=Origin(
        files=SHA256,
        downloads=(
            Download(
                ARCHIVE,
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                (
                    f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
                    "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/"
                    + ARCHIVE,
                ),
            ),
        ),
        unpack=unpack,
    ),
)
