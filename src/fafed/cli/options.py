"""Options that several commands share."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. algorithm.eta=0.1."),
]
Root = Annotated[Path, typer.Option("--runs", help="Folder of the run directories.")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Runs at the same time.")]
Workers = Annotated[
    int | None,
    typer.Option("-w", "--workers", min=1, help="Threads for the clients; default: one per core."),
]
Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A TOML file or a preset's name.")]

ROOT = Path("runs")
CORES = os.cpu_count() or 1


def names_once(option: str, text: str) -> list[str]:
    """The names in a list with commas. Each may occur once."""
    from fafed.errors import ConfigError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        why = "names one twice" if names else "names none"
        raise ConfigError(f"{option} {text!r} {why}: name each once")
    return names


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends a command with exit code 130, SIGTERM with 143. Every finished round is then on
    disk."""
    came = signal.SIGINT

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = signal.Signals(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # only it gets signals
    signals = [signal.SIGINT, *([] if "WORLD_SIZE" in os.environ else [signal.SIGTERM])]
    before = {number: signal.signal(number, note) for number in signals} if main else {}
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted: what was finished is saved; the same command goes on", err=True)
        raise typer.Exit(128 + came) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(value: object) -> None:
    typer.echo(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not support, by None."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
