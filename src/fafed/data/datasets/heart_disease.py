"""Heart disease (Janosi, Steinbrunn, Pfisterer, Detrano 1989, https://doi.org/10.24432/C52P4X).

Four hospitals with a file each, which the cache keeps as it is: no header, 14 columns of numbers,
`?` where a value is missing. `num` is 0 for a patient without heart disease, and 1 to 4 for a sick
one. A `chol` or `trestbps` of 0 was not measured, either.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from fafed.data.datasets.base import Dataset, Download, Origin, Tables
from fafed.data.datasets.cache import content, find, reading, verified
from fafed.errors import DataError

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
ARCHIVE = "heart+disease.zip"
GAP = "?"
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
HOSPITALS = {  # hospital -> its file and the number of its patients
    "cleveland": ("processed.cleveland.data", 303),
    "hungary": ("processed.hungarian.data", 294),
    "switzerland": ("processed.switzerland.data", 123),
    "long-beach": ("processed.va.data", 200),
}
SHA256 = {
    "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "processed.switzerland.data": (
        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"
    ),
    "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
SIZES = (18_461, 10_263, 4_109, 6_737)


def read(folder: Path) -> Tables:
    sites = {
        hospital: rows(verified(folder / name, SHA256[name]), patients, folder / name)
        for hospital, (name, patients) in HOSPITALS.items()
    }
    return Tables(COLUMNS, sites)


def rows(found: bytes, patients: int, path: Path) -> list[tuple[str, ...]]:
    """The fields of each patient, after checking that the file has the form of the original."""
    try:
        lines = found.decode("ascii").split()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not a text of numbers: {error}; get a fresh copy", fault="unreadable"
        ) from error
    table = [tuple(line.split(",")) for line in lines]
    for number, row in enumerate(table, start=1):
        if len(row) != len(COLUMNS):
            raise DataError(
                f"{path}: row {number} has {len(row)} columns, expected {len(COLUMNS)} "
                f"({', '.join(COLUMNS)}): take the processed file of the hospital, not the raw one",
                fault="columns",
            )
        for name, text in zip(COLUMNS, row, strict=True):
            if not _is_number(text) and (text != GAP or name == "num"):
                raise DataError(
                    f"{path}: row {number} has {text!r} in the column {name}, expected a number"
                    f"{'' if name == 'num' else ' or ?'}; get a fresh copy",
                    fault="unreadable",
                )
    if len(table) != patients:
        raise DataError(
            f"{path} has {len(table)} rows, expected {patients}: it is cut short or another file, "
            "get a fresh copy"
        )
    return table


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def unpack(source: Path) -> Iterator[tuple[str, bytes]]:
    """From the four files in a folder, or from the archive, which is zipped."""
    if source.is_dir() and not any((source / name).is_file() for name in SHA256):
        source = find(source, ARCHIVE, *SHA256)
    for name, patients in HOSPITALS.values():
        found = content(find(source, name)) if source.is_dir() else _member(source, name)
        rows(found, patients, source / name)
        yield name, found


def _member(archive: Path, name: str) -> bytes:
    """Read one file of the archive. Nothing is extracted, so names in it can do no harm."""
    with reading(archive), zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if member.filename.rpartition("/")[2] == name:
                return members.read(member)
    raise DataError(f"{archive} lacks {name}: get a fresh copy of {ARCHIVE}")


HEART_DISEASE = Dataset(
    name="heart-disease",
    description="patients of four hospitals (303 + 294 + 123 + 200), 13 columns, sick or not",
    licence="CC BY 4.0",
    read=read,
    tables=True,
    origin=Origin(
        files=SHA256,
        downloads=tuple(
            Download(name, size, sha256, (f"{URL}/{name}",))
            for (name, sha256), size in zip(SHA256.items(), SIZES, strict=True)
        ),
        unpack=unpack,
    ),
)
