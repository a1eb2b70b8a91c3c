"""Packages that only some users need: there, or named with the command that installs them."""

from __future__ import annotations

from importlib.util import find_spec

from fafed.errors import ConfigError


def require(what: str, extra: str, *modules: str) -> None:
    """Refuse `what` if one of the modules is missing. It looks, and imports nothing."""
    for module in modules:
        try:
            there = find_spec(module) is not None
        except ModuleNotFoundError:  # not even the package that the module belongs to
            there = False
        if not there:
            package = module.partition(".")[0]
            raise ConfigError(
                f'{what} needs {package}, which is not installed: pip install "fafed[{extra}]"'
            )
