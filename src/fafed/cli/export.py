"""Write the model of a run to a file; write an experiment as a FLARE job or a Flower app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fafed.cli.options import ROOT, Changes, Name
from fafed.cli.silos import (
    Absence,
    Deadline,
    Fewest,
    Start,
    Which,
    experiments,
    listed,
    need_flare,
)

app = typer.Typer(
    help="Write a run's model, or an experiment for another engine.",
    no_args_is_help=True,
)


@app.command()
def model(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[Path, typer.Option("-o", help="The file; with --adapter a new folder.")],
    best: Annotated[
        bool, typer.Option("--best", help="The model with the lowest validation loss.")
    ] = False,
    trainable: Annotated[
        bool, typer.Option("--trainable", help="Leave out the frozen parameters.")
    ] = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="The adapter of a PEFT model, for from_pretrained.")
    ] = False,
) -> None:
    """Write the trained model as named tensors in a safetensors file. If the run is not finished,
    this is the model of its newest checkpoint."""
    from fafed.errors import ConfigError
    from fafed.experiments import model_file

    if adapter and trainable:
        raise ConfigError("--adapter and --trainable are two forms of the model: choose one")
    which = "best" if best else "last"
    if not adapter and not trainable:
        round = model_file.copy(run, output, which=which)
        if round is not None:
            typer.echo(f"{output}: round {round}")
            return
    module, facts = model_file.export(run, which=which)
    if adapter:
        model_file.save_adapter(module, output)
    else:
        model_file.save(module, output, trainable_only=trainable, metadata=facts)
    typer.echo(f"{output}: round {facts['round']}")


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
    absence: Absence = 6.0,
) -> None:
    """Write a job for `nvflare job submit`. If you submit it again, the run continues."""
    need_flare()
    from fafed.silos.transports.nvflare.job import FafedRecipe

    chosen = experiments(experiment, changes, algorithms)
    recipe = FafedRecipe(
        chosen,
        listed(silos),
        min_silos=min_silos,
        deadline=deadline,
        start=start,
        absence=absence,
    )
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
