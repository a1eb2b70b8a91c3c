"""The paper's experiments, run again.

python -m studies.paper status                  stages, and what is missing of each
python -m studies.paper run                     runs what is missing; can be stopped at any time
python -m studies.paper show table-2            one part of docs/paper.md, in the terminal
python -m studies.paper figure figure-2         one figure
python -m studies.paper document                the two pages, their figures, the README's part
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fafed.cli import main
from fafed.cli.options import Jobs, interruptible

if TYPE_CHECKING:
    from studies.paper.findings import Findings

app = typer.Typer(
    help="Run the paper's experiments again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Configuration = Annotated[Path, typer.Option(help="Folder with protocol.toml and experiments.")]
Results = Annotated[Path, typer.Option(help="Folder of the compact records.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the run directories.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="STAGE", help="Only this stage (repeatable).")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads of each run; all cores / jobs.")]

Docs = Annotated[Path, typer.Option(help="Folder of the documents.")]

DOCS = Path("docs")
STUDY = Path("studies/paper")
CONFIGURATION, RESULTS, RUNS = STUDY / "configs", STUDY / "results", Path("runs/paper")


@app.command()
def run(
    only: Only = None,
    jobs: Jobs = 1,
    workers: Workers = None,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    configuration: Configuration = CONFIGURATION,
) -> None:
    """Run what is missing. It can be stopped at any time; the same command continues."""
    import time

    from studies.paper import driver
    from studies.paper.protocol import Protocol

    def say(line: str) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {line}")

    with interruptible():
        driver.run(
            Protocol.read(configuration),
            runs,
            results,
            only=only or (),
            jobs=jobs,
            workers=workers,
            say=say,
        )


@app.command()
def status(
    runs: Runs = RUNS, results: Results = RESULTS, configuration: Configuration = CONFIGURATION
) -> None:
    """Show the stages and what each of them still needs."""
    from rich.console import Console
    from rich.table import Table

    from studies.paper import driver
    from studies.paper.decisions import Decisions, missing
    from studies.paper.protocol import Protocol

    decisions = Decisions(Protocol.read(configuration), driver.all_records(runs, results))
    table = Table("stage", "decisions", "made", "runs that can be started", title="Stages")
    for name, calls in driver.stages(decisions).items():
        made = sum(not missing([call]) for call in calls)
        table.add_row(name, str(len(calls)), str(made), str(len(missing(calls))))
    Console().print(table)


@app.command()
def show(
    part: Annotated[str, typer.Argument(help="table-1, table-2, equal-cost, tuned, ...")],
    runs: Runs = RUNS,
    results: Results = RESULTS,
    configuration: Configuration = CONFIGURATION,
) -> None:
    """Print one part of docs/paper.md as it is now."""
    from studies.paper import document

    typer.echo(document.section(_findings(configuration, runs, results), part))


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="figure-1 to figure-4, table-2, costs, ...")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR")] = Path(),
    runs: Runs = RUNS,
    results: Results = RESULTS,
    configuration: Configuration = CONFIGURATION,
) -> None:
    """Draw one figure of docs/paper.md as it is now."""
    from fafed.errors import ConfigError, nearest
    from studies.paper import figures

    if name not in figures.FIGURES:
        raise ConfigError(f"there is no figure {name!r}; {nearest(name, figures.FIGURES)}")
    drawn = figures.write(_findings(configuration, runs, results), output, [name])
    typer.echo(f"wrote {output / name}.svg" if drawn else f"{name}: not run yet")


@app.command()
def document(
    runs: Runs = RUNS,
    results: Results = RESULTS,
    configuration: Configuration = CONFIGURATION,
    docs: Docs = DOCS,
    readme: Annotated[Path, typer.Option(help="The file with the marked part.")] = Path(
        "README.md"
    ),
) -> None:
    """Copy new records into the results; write the pages, their figures, the README's part."""
    from studies.paper import document as page
    from studies.paper import driver
    from studies.paper.decisions import Decisions
    from studies.paper.findings import Findings

    decisions = _findings(configuration, runs, results).decisions
    findings = Findings(Decisions(decisions.protocol, driver.needed_records(decisions)))
    findings.decisions.ledger.write(results)
    for path in page.write(findings, docs, readme):
        typer.echo(f"wrote {path}")


def _findings(configuration: Path, runs: Path, results: Path) -> Findings:
    from studies.paper import driver
    from studies.paper.decisions import Decisions
    from studies.paper.findings import Findings
    from studies.paper.protocol import Protocol

    return Findings(Decisions(Protocol.read(configuration), driver.all_records(runs, results)))


if __name__ == "__main__":
    main(app)
