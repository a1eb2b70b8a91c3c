"""The folder for downloaded datasets, and the packages that hold one. In the folder a dataset is
complete or absent.

A dataset is first written into a new folder and checked. Then the folder gets its final name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import lzma
import os
import secrets
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from fafed.data.datasets.base import Dataset
from fafed.errors import DataError


def root(folder: str | Path | None = None) -> Path:
    """`folder`, else the environment variable FAFED_DATA, else the user's cache folder."""
    if folder is None:
        folder = os.environ.get("FAFED_DATA") or Path(platformdirs.user_cache_dir("fafed"), "data")
    return Path(folder).expanduser()


def place(dataset: Dataset, folder: str | Path | None = None) -> Path:
    """The folder of the dataset in the cache, whether it exists or not."""
    return root(folder) / dataset.name


def installed(dataset: Dataset) -> Path | None:
    """The folder of the dataset's package, if that is installed."""
    spec = importlib.util.find_spec(dataset.package.module) if dataset.package else None
    return Path(spec.origin).parent if spec and spec.origin else None


def present(dataset: Dataset, folder: str | Path | None = None) -> bool:
    """Whether the cache has the dataset."""
    where = place(dataset, folder)
    return all((where / name).is_file() for name in dataset.origin.files)


def intact(dataset: Dataset, folder: str | Path | None = None) -> bool:
    """Whether the cache has the dataset, undamaged."""
    where = place(dataset, folder)
    return present(dataset, folder) and all(
        sha256_of(content(where / name)) == sha256 for name, sha256 in dataset.origin.files.items()
    )


def verified(path: Path, sha256: str) -> bytes:
    """The content of a file in the cache, after comparing its sha256."""
    found = content(path)
    check(sha256_of(found), sha256, path, f"run `fafed data get {path.parent.name}`")
    return found


def content(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes()


def sha256_of(found: bytes) -> str:
    return hashlib.sha256(found).hexdigest()


def check(found: str, expected: str, what: object, cure: str) -> None:
    if found != expected:
        raise DataError(
            f"{what}: expected sha256 {expected}, found {found}; it is damaged or another "
            f"version: {cure}"
        )


def install(dataset: Dataset, source: Path, folder: str | Path | None) -> Path:
    """Unpack the files in `source`, check them, and put all of them into the cache, or none."""
    origin, target = dataset.origin, place(dataset, folder)
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with writing(new):
            new.mkdir(parents=True)
        missing = set(origin.files)
        for name, unpacked in origin.unpack(source):
            cure = "get a fresh copy; nothing was installed"
            check(sha256_of(unpacked), origin.files[name], f"{name} from {source}", cure)
            with writing(new / name):
                (new / name).write_bytes(unpacked)
            missing.discard(name)
        if missing:
            raise DataError(
                f"{source} lacks {', '.join(sorted(missing))}: get a complete copy of "
                f"{dataset.name}; nothing was installed"
            )
        with writing(target):
            _swap(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target


def _swap(new: Path, target: Path) -> None:
    """Replace `target` by `new`, even if other processes do the same."""
    old = new.with_name(f"{new.name}.old")
    while True:
        try:
            new.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with contextlib.suppress(FileNotFoundError):
            target.rename(old)
            shutil.rmtree(old)


def find(source: Path, *names: str) -> Path:
    """The first of these files that is in the folder."""
    for name in names:
        if (source / name).is_file():
            return source / name
    raise DataError(f"no {' or '.join(names)} in {source}: name the folder that holds it")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of a disk (full, read-only, no permission) into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; nothing was installed. Free some "
            "space, or point FAFED_DATA at a folder that has it and that you may write to"
        ) from error


@contextlib.contextmanager
def reading(path: Path, cure: str = "get a fresh copy of it") -> Iterator[None]:
    """Turn errors about a missing or damaged file into a DataError."""
    damage = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
    try:
        yield
    except (OSError, *damage) as error:
        raise DataError(f"cannot read {path}: {error}; {cure}", fault="unreadable") from error
