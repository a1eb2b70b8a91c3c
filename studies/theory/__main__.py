"""The theory laboratory: what is claimed about the methods, measured.

python -m studies.theory counterexample | drift | rates | metric
python -m studies.theory all -o docs/theory --results studies/theory/results
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fafed.cli import main
from fafed.cli.options import Jobs, Json, print_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from studies.theory.findings import Finding

app = typer.Typer(
    help="Check the theory: a figure and a table per experiment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Output = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where files go.")]
Results = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where JSON files go; beside the figures.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller: seconds instead of minutes.")]
Full = Annotated[bool, typer.Option("--full", help="Larger: longer runs, more seeds.")]

FOLDER = Path("theory")


@app.command()
def counterexample(output: Output = FOLDER, quick: Quick = False, as_json: Json = False) -> None:
    """Naive adaptive FedAvg leaves the optimum, FAFED approaches it; and the limits of both."""
    from studies.theory import counterexample as experiment

    _publish(experiment, experiment.measure(quick), output, as_json)


@app.command()
def drift(output: Output = FOLDER, quick: Quick = False, as_json: Json = False) -> None:
    """The bias of every algorithm on two quadratics, by formula and measured."""
    from studies.theory import drift as experiment

    _publish(experiment, experiment.measure(quick), output, as_json)


@app.command()
def rates(
    output: Output = FOLDER,
    seeds: Annotated[int | None, typer.Option(min=2, help="Runs of each setting.")] = None,
    quick: Quick = False,
    full: Full = False,
    jobs: Jobs = 2,
    as_json: Json = False,
) -> None:
    """Powers of T and N, the cost of an accuracy, and what the adaptive matrix is for."""
    _not_both(quick, full)
    from studies.theory import rates as experiment

    _publish(experiment, _measure_rates(seeds, quick, full, jobs), output, as_json)


@app.command()
def metric(
    output: Output = FOLDER,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = 4,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """The measure M_t of the theory in every step of a run."""
    from studies.theory import metric as experiment

    _publish(experiment, experiment.measure(quick, seeds), output, as_json)


@app.command("all")
def everything(
    output: Output = FOLDER,
    results: Results = None,
    quick: Quick = False,
    full: Full = False,
    jobs: Jobs = 2,
) -> None:
    """All experiments, and one page about them beside the folder."""
    _not_both(quick, full)
    from studies.theory import counterexample, drift, metric, publish, rates

    found: list[tuple[ModuleType, Finding]] = [
        (counterexample, counterexample.measure(quick)),
        (drift, drift.measure(quick)),
        (rates, _measure_rates(None, quick, full, jobs)),
        (metric, metric.measure(quick)),
    ]
    _report(publish.write_page(found, output, results))


def _not_both(quick: bool, full: bool) -> None:
    from fafed.errors import ConfigError

    if quick and full:
        raise ConfigError("--quick and --full exclude each other: leave one out")


def _measure_rates(seeds: int | None, quick: bool, full: bool, jobs: int) -> Finding:
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import Progress

    from studies.theory import rates

    size = rates.QUICK if quick else rates.FULL if full else rates.Size()
    if seeds is not None:
        size = replace(size, seeds=seeds)
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("rates", total=None)

        def watch(count: int) -> Callable[[], None]:
            bars.update(task, total=count)
            return lambda: bars.advance(task)

        return rates.measure(size, jobs, watch)


def _publish(module: ModuleType, finding: Finding, output: Path, as_json: bool) -> None:
    from rich.console import Console

    from studies.theory import publish

    written = publish.write(module, finding, output)
    if as_json:
        print_json(finding.plain())
        return
    console = Console()
    for table in finding.tables.values():
        console.print(table.terminal())
    for claim in finding.claims:
        console.print(f"[bold]{claim.verdict}[/bold]: {claim.says}", highlight=False)
    _report(written)


def _report(written: list[Path]) -> None:
    for path in written:
        typer.echo(f"wrote {path}")


if __name__ == "__main__":
    main(app)
