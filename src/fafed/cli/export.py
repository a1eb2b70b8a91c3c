"""Write an experiment as a FLARE job or a Flower app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fafed.cli.options import ROOT, Changes, Name
from fafed.cli.silos import Deadline, Fewest, Start, Which, experiments, listed, need_flare

app = typer.Typer(help="Write an experiment for another engine.", no_args_is_help=True)


@app.command()
def nvflare(
    experiment: Name,
    output: Annotated[Path, typer.Option("-o", help="Folder of the job.")],
    silos: Annotated[str, typer.Option(help="The sites' names, in the clients' order: a,b,c.")],
    changes: Changes = None,
    algorithms: Which = None,
    min_silos: Fewest = None,
    deadline: Deadline = 3600.0,
    start: Start = 300.0,
) -> None:
    """Write a job for `nvflare job submit`. If you submit it again, the run continues."""
    need_flare()
    from fafed.silos.transports.nvflare.job import FafedRecipe

    chosen = experiments(experiment, changes, algorithms)
    recipe = FafedRecipe(chosen, listed(silos), min_silos=min_silos, deadline=deadline, start=start)
    output.mkdir(parents=True, exist_ok=True)
    recipe.export(str(output))
    typer.echo(f"{output / recipe.name}")


@app.command()
def flower(
    experiment: Name,
    output: Annotated[Path, typer.Option("-o", help="Folder of the app.")],
    silos: Annotated[
        str, typer.Option(help="The SuperNodes' names, in the clients' order: a,b,c.")
    ],
    changes: Changes = None,
    algorithms: Which = None,
    min_silos: Fewest = None,
    deadline: Deadline = 3600.0,
    start: Start = 300.0,
    runs: Annotated[Path, typer.Option(help="The server's folder of run directories.")] = ROOT,
    measure: Annotated[
        str | None, typer.Option(help="A file on the server to measure the model on.")
    ] = None,
) -> None:
    """Write an app for `flwr run`. If you run it again, the run continues."""
    from fafed.silos.transports.flower.export import export

    place = export(
        experiments(experiment, changes, algorithms),
        output,
        listed(silos),
        min_silos=min_silos,
        deadline=deadline,
        start=start,
        runs=str(runs),
        measure=measure,
    )
    typer.echo(f"{place}")
