"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, https://arxiv.org/abs/1708.07747).

It is part of fafed. The files are compressed without loss to four fifths of the original size.
images-1.xz to images-7.xz hold 10,000 images each, first the training set, then the test set. Every
image is stored column by column, because vertical neighbours are more alike. labels.xz holds the
70,000 labels.
"""

from __future__ import annotations

import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fafed.data.datasets import idx
from fafed.data.datasets.base import Dataset, Images, Pixels, labelled
from fafed.data.datasets.cache import check, reading
from fafed.errors import DataError

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MEAN, STD = (0.2860,), (0.3529,)
PARTS, PER_PART = 7, 10_000
TRAIN = 60_000

# of the original files, unzipped
SHA256 = {
    "train images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "test images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "test labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def read(folder: Path) -> Images:
    images = np.empty((PARTS * PER_PART, 28, 28), np.uint8)

    def unpack(part: int) -> None:
        columns = _bytes(folder / f"images-{part + 1}.xz", PER_PART * 28 * 28)
        rows = columns.reshape(PER_PART, 28, 28).transpose(0, 2, 1)
        images[part * PER_PART : (part + 1) * PER_PART] = rows

    with ThreadPoolExecutor() as threads:  # xz decodes outside the interpreter's lock
        list(threads.map(unpack, range(PARTS)))
    labels = _bytes(folder / "labels.xz", PARTS * PER_PART)

    sets = {}
    for name, rows in {"train": slice(TRAIN), "test": slice(TRAIN, None)}.items():
        for kind, array in {"images": images[rows], "labels": labels[rows]}.items():
            what = f"{name} {kind} in {folder}"
            check(idx.sha256(array), SHA256[f"{name} {kind}"], what, "install fafed again")
        sets[name] = labelled(images[rows, None], labels[rows], MEAN, STD)
    return Images(sets["train"], sets["test"], CLASSES)


def _bytes(path: Path, size: int) -> Pixels:
    with reading(path):
        content = lzma.decompress(path.read_bytes())
    if len(content) != size:
        raise DataError(f"{path}: expected {size} bytes, found {len(content)}; install fafed again")
    return np.frombuffer(content, np.uint8)


FASHION_MNIST = Dataset(
    name="fashion-mnist",
    description="60,000 + 10,000 images of clothes, 28x28 grey, 10 classes",
    licence="MIT, copyright 2017 Zalando SE",
    read=read,
)
