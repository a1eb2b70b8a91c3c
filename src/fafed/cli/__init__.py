"""The command line. Slow imports are inside the commands, so that --help is quick."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fafed import __version__
from fafed.cli import data, export, runs, silos
from fafed.cli.lists import algorithms, presets
from fafed.cli.privacy import privacy

app = typer.Typer(
    name="fafed",
    help="Federated optimisation in PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(runs.run)
app.command()(runs.compare)
app.command()(runs.resume)
app.command()(runs.tune)
app.command("runs")(runs.list_runs)
app.command()(runs.report)
app.command()(runs.watch)
app.command()(presets)
app.command()(algorithms)
app.command()(privacy)
app.add_typer(data.app, name="data")
app.add_typer(silos.app, name="silos")
app.add_typer(export.app, name="export")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fafed {__version__}")
        raise typer.Exit


@app.callback()
def _alone(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    from fafed.errors import ConfigError

    size, command = os.environ.get("WORLD_SIZE", "1"), context.invoked_subcommand
    if size != "1" and command not in ("run", "resume"):
        raise ConfigError(
            f"fafed {command} does not run on several ranks (WORLD_SIZE={size}): start it without "
            "torchrun; run and resume are the commands for it"
        )


def main(command: typer.Typer = app) -> None:
    """Run a command line. Exit codes: 0 done, 1 a run diverged, 2 bad input, 130 Ctrl-C, 143
    SIGTERM."""
    from fafed.errors import FafedError

    sys.path.insert(0, str(Path.cwd()))  # "module:function" may name a file in the current folder
    try:
        command()
    except FafedError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(1 if type(error).__name__ == "Diverged" else 2) from error
    except BrokenPipeError:  # the reader of a pipe, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
