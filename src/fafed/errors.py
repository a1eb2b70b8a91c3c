"""Errors that a user can act on: each names the thing, its value and the cure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class FafedError(Exception):
    """Base of every error that fafed raises on purpose."""


class ConfigError(FafedError, ValueError):
    """A setting is wrong; raised while the run is being built."""


class DataError(FafedError, ValueError):
    """Data is missing, damaged or of the wrong shape."""

    def __init__(self, message: str, *, fault: str = "") -> None:
        """fault: the kind of the error, a key of FAULTS."""
        super().__init__(message)
        if fault and fault not in FAULTS:
            raise KeyError(fault)
        self.fault = fault


# What can be wrong with a client's data, in words that reveal neither a value nor a path. A silo
# may tell the server the key. The server prints these words, never a silo's own.
FAULTS = {
    "folder": "its data folder is not there",
    "files": "its data folder holds no file that can be read, or more than one",
    "unreadable": "its data file is damaged or of another format",
    "empty": "its data file has no examples",
    "target": "its data has no numeric target",
    "arrays": "its data file does not hold numeric inputs and targets",
    "gaps": "its table has missing values",
    "columns": "its table does not have the columns that its own file names",
    "categories": "its table holds a category that its own file does not list",
    "text": "its table holds text where its own file expects a number",
    "not finite": "its inputs or targets hold NaN or infinity",
    "too large": "it has an input that is too large to be normalised",
    "inputs": "its examples have another number of inputs than the model takes",
    "labels": "it has a label that the model has no output for",
}


def without_passwords(text: str) -> str:
    """Hide the password in an address such as mlflow:https://me:secret@host."""
    return re.sub(r"(://[^:/@\s]*):[^/\s]*@", r"\1:***@", text)


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?' if a known name is close, else the list of known names."""
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(choices)}"
