"""MNIST (LeCun, Cortes, Burges 1998). The cache keeps the four IDX files unzipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fafed.data.datasets import idx
from fafed.data.datasets.base import Dataset, Download, Images, Origin, Pixels, labelled
from fafed.data.datasets.cache import check, find

MEAN, STD = (0.1307,), (0.3081,)
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
SHAPES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def read(folder: Path) -> Images:
    arrays = checked(unpacked(folder), SHA256, folder, "run `fafed data get mnist`")
    return images(arrays, MEAN, STD, tuple("0123456789"))


# Fashion-MNIST has files of the same names and shapes.


def unpacked(folder: Path) -> Iterator[Pixels]:
    """The arrays of the four files in the cache, in the order of SHAPES."""
    return (idx.read(folder / name, shape) for name, shape in SHAPES.items())


def checked(
    arrays: Iterable[Pixels], sha256: dict[str, str], folder: Path, cure: str
) -> Iterator[Pixels]:
    """The same arrays, after comparing the sha256 of the file that each of them is."""
    for (name, expected), array in zip(sha256.items(), arrays, strict=True):
        check(idx.sha256(array), expected, f"{name} in {folder}", cure)
        yield array


def images(
    arrays: Iterable[Pixels], mean: Sequence[float], std: Sequence[float], classes: tuple[str, ...]
) -> Images:
    x_train, y_train, x_test, y_test = arrays
    return Images(
        train=labelled(x_train[:, None], y_train, mean, std),
        test=labelled(x_test[:, None], y_test, mean, std),
        classes=classes,
    )


def unpack(source: Path) -> Iterator[tuple[str, bytes]]:
    """From the four IDX files, zipped or not."""
    for name, shape in SHAPES.items():
        path = find(source, f"{name}.gz", name, name.replace("-idx", ".idx"))
        yield name, idx.dump(idx.read(path, shape))


def downloads(
    mirrors: Sequence[str], sizes: Sequence[int], sha256: Sequence[str]
) -> tuple[Download, ...]:
    """The four files, zipped, in the order of SHAPES."""
    return tuple(
        Download(f"{name}.gz", size, expected, tuple(f"{mirror}/{name}.gz" for mirror in mirrors))
        for name, size, expected in zip(SHAPES, sizes, sha256, strict=True)
    )


MNIST = Dataset(
    name="mnist",
    description="60,000 + 10,000 handwritten digits, 28x28 grey, 10 classes",
    licence="CC BY-SA 3.0, copyright Yann LeCun and Corinna Cortes",
    read=read,
    origin=Origin(
        files=SHA256,
        downloads=downloads(
            MIRRORS,
            (9_912_422, 28_881, 1_648_877, 4_542),
            (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        unpack=unpack,
    ),
)
