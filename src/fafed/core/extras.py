"""Optional packages. An error about a missing one names the command that installs it."""

from __future__ import annotations

from importlib.util import find_spec

from fafed.errors import ConfigError


def require(what: str, extra: str, *modules: str) -> None:
    """Refuse `what` if one of the modules is missing. Nothing is imported."""
    for module in modules:
        try:
            there = find_spec(module) is not None
        except ModuleNotFoundError:  # the module's package is missing, too
            there = False
        if not there:
            package = module.partition(".")[0]
            raise ConfigError(
                f'{what} needs {package}, which is not installed: pip install "fafed[{extra}]"'
            )
