"""The user's own code: find the object behind "package.module:name", and check its options."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fafed.errors import ConfigError, nearest


def find(path: str, what: str) -> Any:
    """The object named by "module:name". `what` names the setting in errors."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{what} must look like 'module:name', got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything on import
        raise ConfigError(
            f"{what} {path!r}: module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}); install it, or put its folder on PYTHONPATH"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        public = [known for known in vars(module) if not known.startswith("_")]
        hint = nearest(name, public) if public else "it defines no public name"
        raise ConfigError(f"{what} {path!r}: {module_name} has no {name!r}; {hint}") from None


def check_options(call: Callable[..., object], options: Mapping[str, object], what: str) -> None:
    """Refuse options that `call` does not accept, and calls without a required option."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:  # written in C without a signature: the call itself will check
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [p.name for p in named]
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    for name in options:
        if name not in known:
            raise ConfigError(f"{what} has no option {name!r}; {takes}")
    for p in named:
        if p.default is p.empty and p.name not in options:
            raise ConfigError(f"{what} needs option {p.name!r}; {takes}")
