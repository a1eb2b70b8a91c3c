"""Why a silo or the server does not go on with a secure sum. Needs no package beside fafed."""

from __future__ import annotations

from fafed.errors import FafedError


class Refused(FafedError):
    """A silo or the server refuses to go on. The error says why."""


class Over(Refused):
    """A silo has handed over shares for this exchange, so it cannot be made again."""
