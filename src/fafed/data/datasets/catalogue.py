"""The datasets that fafed knows by name: load them, download them, list them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, overload

from fafed.data.datasets import cache
from fafed.data.datasets.base import Dataset, Images, Tables, Text
from fafed.data.datasets.cifar10 import CIFAR10
from fafed.data.datasets.cifar100 import CIFAR100
from fafed.data.datasets.download import Progress, fetch
from fafed.data.datasets.fashion_mnist import FASHION_MNIST
from fafed.data.datasets.heart_disease import HEART_DISEASE
from fafed.data.datasets.mnist import MNIST
from fafed.data.datasets.wikitext2 import WIKITEXT2
from fafed.errors import ConfigError, DataError, nearest

ALL = (FASHION_MNIST, MNIST, CIFAR10, CIFAR100, WIKITEXT2, HEART_DISEASE)
DATASETS = {dataset.name: dataset for dataset in ALL}


@dataclass(frozen=True)
class Status:
    """A dataset's status on this machine."""

    name: str
    description: str
    licence: str
    where: Path
    present: bool
    source: str | None  # "cache", or the name of an installed package
    bytes: int  # on disk


@overload
def load(
    name: Literal["fashion-mnist", "mnist", "cifar-10", "cifar-100"],
    folder: str | Path | None = None,
) -> Images: ...
@overload
def load(name: Literal["wikitext-2"], folder: str | Path | None = None) -> Text: ...
@overload
def load(name: Literal["heart-disease"], folder: str | Path | None = None) -> Tables: ...
@overload
def load(name: str, folder: str | Path | None = None) -> Images | Text | Tables: ...


def load(name: str, folder: str | Path | None = None) -> Images | Text | Tables:
    """A dataset as tensors, or as the text of its tables, checked against its sha256. Never uses
    the network.

    A dataset whose package is installed is read from there: Fashion-MNIST from fafed-fashion-mnist.
    `folder` holds the others: by default FAFED_DATA, else the user's cache folder.
    """
    dataset = _known(name)
    if installed := cache.installed(dataset):
        return dataset.read(installed)
    where = cache.place(dataset, folder)
    if not cache.present(dataset, folder):
        raise DataError(
            f"{name} is not in {where}: {_cure(dataset)}run `fafed data get {name}` to download "
            f"it, or `fafed data import {name} DIR` if you have its files"
        )
    return dataset.read(where)


def get(
    name: str,
    folder: str | Path | None = None,
    *,
    progress: Progress | None = None,
    mirror: str | None = None,
) -> Path:
    """Download a dataset unless its package is installed or the cache has it. Return its folder.

    `progress` is called with (bytes done, bytes in total). `mirror` is the address of a folder with
    the same files. It is tried before the known addresses. A download that stopped continues when
    `get` is called again.
    """
    dataset = _known(name)
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise ConfigError(f"mirror must begin with http:// or https://, got {mirror!r}")
    if installed := cache.installed(dataset):
        return installed
    if cache.intact(dataset, folder):
        return cache.place(dataset, folder)
    waiting = _waiting(dataset, folder)
    total, done = sum(file.size for file in dataset.origin.downloads), 0
    for file in dataset.origin.downloads:

        def report(now: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + now, total)

        if mirror is not None:
            file = replace(file, urls=(f"{mirror.rstrip('/')}/{file.name}", *file.urls))
        fetch(file, waiting / file.name, report)
        done += file.size
    return import_files(name, waiting, folder)


def import_files(name: str, source: str | Path, folder: str | Path | None = None) -> Path:
    """Take a dataset from local files in one of its standard forms. Return its folder.

    MNIST and Fashion-MNIST: the four IDX files, zipped or not. CIFAR-10: the binary version, as
    archive or unpacked, or the compact train.npz and test.npz. CIFAR-100: the archive of the binary
    version. WikiText-2: train.txt, valid.txt, test.txt or wiki.train.tokens and so on. Heart
    disease: processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and
    processed.va.data, or heart+disease.zip.
    """
    dataset, source = _known(name), Path(source).expanduser()
    if dataset.package and cache.installed(dataset):
        raise ConfigError(
            f"{name} is installed with {dataset.package.distribution}: there is nothing to import, "
            "just load it"
        )
    if not source.exists():
        raise DataError(f"{source} does not exist: name the folder that holds the files of {name}")
    where = cache.install(dataset, source, folder)
    shutil.rmtree(_waiting(dataset, folder), ignore_errors=True)
    return where


def status(folder: str | Path | None = None) -> list[Status]:
    """The status of every dataset, from names and sizes of files, without reading them."""
    return [_status(dataset, folder) for dataset in DATASETS.values()]


def _status(dataset: Dataset, folder: str | Path | None) -> Status:
    source = "cache" if cache.present(dataset, folder) else None
    where = cache.place(dataset, folder)
    if dataset.package and (installed := cache.installed(dataset)):
        source, where = dataset.package.distribution, installed
    return Status(
        name=dataset.name,
        description=dataset.description,
        licence=dataset.licence,
        where=where,
        present=source is not None,
        source=source,
        bytes=sum(_sizes(where)),
    )


def _cure(dataset: Dataset) -> str:
    if dataset.package is None:
        return ""
    own, clone = dataset.package.distribution, dataset.package.in_clone
    return f"run `pip install {own}` (in a clone of fafed: `pip install {clone}`) to have it, or "


def _waiting(dataset: Dataset, folder: str | Path | None) -> Path:
    """The folder for downloads until all files are complete."""
    return cache.root(folder) / f"{dataset.name}.download"


def _sizes(folder: Path) -> Iterator[int]:
    return (path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _known(name: str) -> Dataset:
    if name not in DATASETS:
        raise ConfigError(f"no dataset is called {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]
