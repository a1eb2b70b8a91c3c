"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, https://arxiv.org/abs/1708.07747).

The package fafed-fashion-mnist holds it, compressed without loss to four fifths of the original
size. images-1.xz to images-7.xz hold 10,000 images each, first the training set, then the test set.
Every image is stored column by column, because vertical neighbours are more alike. labels.xz holds
the 70,000 labels. The cache keeps the four IDX files unzipped.
"""

from __future__ import annotations

import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fafed.data.datasets import mnist
from fafed.data.datasets.base import Dataset, Images, Origin, Package, Pixels
from fafed.data.datasets.cache import reading
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
MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
PARTS, PER_PART, TRAIN = 7, 10_000, 60_000
PACKAGE = Package("fafed-fashion-mnist", "fafed_fashion_mnist", "packages/fashion-mnist")
REINSTALL = f"run `pip install --force-reinstall {PACKAGE.distribution}`"


def read(folder: Path) -> Images:
    """From the folder of the package or of the cache."""
    cached = all((folder / name).is_file() for name in SHA256)
    arrays = mnist.unpacked(folder) if cached else decompressed(folder)
    cure = "run `fafed data get fashion-mnist`" if cached else REINSTALL
    return mnist.images(mnist.checked(arrays, SHA256, folder, cure), MEAN, STD, CLASSES)


def decompressed(folder: Path) -> tuple[Pixels, ...]:
    """The arrays of the four IDX files, in their order, from the package's files."""
    images = np.empty((PARTS * PER_PART, 28, 28), np.uint8)

    def unpack(part: int) -> None:
        columns = _bytes(folder / f"images-{part + 1}.xz", PER_PART * 28 * 28)
        rows = columns.reshape(PER_PART, 28, 28).transpose(0, 2, 1)
        images[part * PER_PART : (part + 1) * PER_PART] = rows

    with ThreadPoolExecutor() as threads:  # xz decodes outside the interpreter's lock
        list(threads.map(unpack, range(PARTS)))
    labels = _bytes(folder / "labels.xz", PARTS * PER_PART)
    return images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:]


def _bytes(path: Path, size: int) -> Pixels:
    with reading(path, REINSTALL):
        content = lzma.decompress(path.read_bytes())
    if len(content) != size:
        raise DataError(f"{path}: expected {size} bytes, found {len(content)}; {REINSTALL}")
    return np.frombuffer(content, np.uint8)


FASHION_MNIST = Dataset(
    name="fashion-mnist",
    description="60,000 + 10,000 images of clothes, 28x28 grey, 10 classes",
    licence="MIT, copyright 2017 Zalando SE",
    read=read,
    origin=Origin(
        files=SHA256,
        downloads=mnist.downloads(
            MIRRORS,
            (26_421_880, 29_515, 4_422_102, 5_148),
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        unpack=mnist.unpack,
    ),
    package=PACKAGE,
)
