"""Datasets by name, ways to split them among clients, and the user's own data."""

from __future__ import annotations

from fafed.data import leaf
from fafed.data.datasets.base import Dataset, Images, Tables, Text
from fafed.data.datasets.catalogue import DATASETS, Status, get, import_files, load, status
from fafed.data.loading import Files, in_memory
from fafed.data.own import Own, from_file, from_folder, from_function
from fafed.data.partition import PARTITIONS, Partition, counts
from fafed.data.tables import Table

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Files",
    "Images",
    "Own",
    "Partition",
    "Status",
    "Table",
    "Tables",
    "Text",
    "counts",
    "from_file",
    "from_folder",
    "from_function",
    "get",
    "import_files",
    "in_memory",
    "leaf",
    "load",
    "status",
]
