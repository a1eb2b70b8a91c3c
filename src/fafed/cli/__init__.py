"""The command line. Heavy imports live inside the commands, so that --help is quick."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

app = typer.Typer(
    name="fafed",
    help="Federated optimisation in PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.callback()
def root() -> None:
    """Federated optimisation in PyTorch."""


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms: paper, hyper-parameters, cost."""
    from fafed.catalogue import cards

    found = cards()
    if as_json:
        typer.echo(json.dumps([asdict(card) for card in found], indent=2, default=repr))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Algorithms", caption="vectors up/down: per client and round", expand=False)
    for column in ("name", "paper", "hyper-parameters and defaults"):
        table.add_column(column, overflow="fold")
    for column in ("up", "down", "gradients\nper step"):
        table.add_column(column, justify="right")
    for card in found:
        settings = "\n".join(f"{s.name} = {s.default!r}" for s in card.settings)
        costs = (f"{value:g}" for value in (card.up, card.down, card.gradients))
        paper = card.paper.replace(", http", "\nhttp").replace("https://", "")
        table.add_row(f"[bold]{card.name}[/bold]", paper, settings, *costs, end_section=True)
    Console().print(table)


def main() -> None:
    """Entry point: our own errors become one paragraph and exit code 2."""
    from fafed.errors import FafedError

    try:
        app()
    except FafedError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
