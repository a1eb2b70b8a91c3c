"""Options that several commands share."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
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


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends a command with exit code 130; every finished round is on disk by then."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted: what was finished is saved; the same command goes on", err=True)
        raise typer.Exit(130) from None


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
