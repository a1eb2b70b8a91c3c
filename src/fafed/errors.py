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


def without_passwords(text: str) -> str:
    """Hide the password in an address such as mlflow:https://me:secret@host."""
    return re.sub(r"(://[^:/@\s]*):[^/\s]*@", r"\1:***@", text)


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?' if a known name is close, else the list of known names."""
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(choices)}"
