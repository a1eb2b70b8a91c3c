"""Checks that the models share."""

from __future__ import annotations

from fafed.errors import ConfigError


def positive(model: str, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{model}.{name} must be a positive integer, got {value!r}")
