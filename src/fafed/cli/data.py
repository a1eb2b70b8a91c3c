"""Datasets: list them, get them, and show how an experiment deals them out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.text import Text

from fafed.cli.options import Changes, Json, Name, print_json

app = typer.Typer(help="Datasets: list, get, import, show.", no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(metavar="NAME", help="A dataset of `fafed data list`.")]


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the datasets that fafed knows, which of them are on this machine, and where."""
    from rich.console import Console
    from rich.table import Table

    from fafed.data import status

    found = status()
    if as_json:
        print_json([asdict(item) for item in found])
        return
    table = Table("name", "what", "licence", title="Datasets")
    table.add_column("here", no_wrap=True)
    for item in found:
        here = f"{item.bytes / 1e6:.0f} MB in\n{item.source}" if item.present else "no"
        table.add_row(item.name, item.description, item.licence, here)
    Console().print(table)


@app.command()
def get(
    name: Dataset,
    mirror: Annotated[
        str | None, typer.Option(help="Address of a folder with the upstream files.")
    ] = None,
) -> None:
    """Download a dataset, check it and keep it in the cache ($FAFED_DATA)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    from fafed.data import get as download

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=None)
        where = download(
            name,
            progress=lambda done, total: bars.update(task, completed=done, total=total),
            mirror=mirror,
        )
    typer.echo(f"{name}: {where}")


@app.command("import")
def import_dataset(
    name: Dataset, folder: Annotated[Path, typer.Argument(metavar="DIR", help="Local files.")]
) -> None:
    """Take a dataset from local files, check it and keep it in the cache."""
    from fafed.data import import_files

    typer.echo(f"{name}: {import_files(name, folder)}")


@app.command()
def show(experiment: Name, changes: Changes = None, as_json: Json = False) -> None:
    """Draw how many examples of each class each client of an experiment has."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fafed.experiments.assemble import shard
    from fafed.experiments.config import Experiment

    found = shard(Experiment.read(experiment, changes or ()))
    sizes = found.source.examples
    if as_json:
        print_json({"examples": sizes, "classes": found.classes, "counts": found.counts})
        return
    if found.counts is None or found.classes is None:
        typer.echo(f"{len(sizes)} clients with {min(sizes):,} to {max(sizes):,} tokens or examples")
        return
    table = Table(title="Examples of each class", box=None, padding=(0, 0, 0, 1))
    for column in ("client", *map(str, range(len(found.classes))), "all"):
        table.add_column(column, justify="right", no_wrap=True)
    largest = max(map(max, found.counts))
    for client, row in enumerate(found.counts):
        cells = [_shaded(n, largest) for n in row]
        table.add_row(str(client), *cells, Text(str(sum(row)), style="bold"))
    console = Console()
    console.print(table)
    console.print("\n" + ", ".join(f"{i} {name}" for i, name in enumerate(found.classes)))


def _shaded(n: int, largest: int) -> Text:
    """A number on a background that is darker for larger numbers."""
    from rich.text import Text

    if n == 0:
        return Text("·", style="dim")
    level = round(40 + 130 * (1 - n / largest))
    return Text(f"{n:>4}", style=f"white on rgb({level // 2},{level},{min(255, level + 60)})")
