"""Run, resume, compare, tune and report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fafed.cli.options import (
    CORES,
    ROOT,
    Changes,
    Jobs,
    Json,
    Name,
    Root,
    Workers,
    interruptible,
    names_once,
    print_json,
)

if TYPE_CHECKING:
    from fafed.core.run_data import StudyData
    from fafed.engines.ranks import Ranks
    from fafed.experiments.assemble import Prepared
    from fafed.experiments.config import Experiment
    from fafed.experiments.rundir import RunDir

PAPERS_SIX = "fafed,fedams,stem,fedadam,scaffold,fedavg"  # in the colours of docs/paper.md
Track = Annotated[
    str | None, typer.Option(help="Also send records to tensorboard:DIR, mlflow:URI, wandb:NAME.")
]

Timeout = Annotated[
    float, typer.Option(min=1, help="Under torchrun: seconds that a rank waits for the others.")
]

Again = Annotated[
    bool, typer.Option("--again", help="Begin with round 1; what is there is moved aside.")
]


def run(
    experiment: Name,
    changes: Changes = None,
    root: Root = ROOT,
    track: Track = None,
    workers: Workers = None,
    timeout: Timeout = 600.0,
    again: Again = False,
    as_json: Json = False,
) -> None:
    """Run one experiment. An unfinished run is resumed, and a finished run is not repeated."""
    from fafed.experiments.config import Experiment
    from fafed.experiments.rundir import RunDir

    def lead(ranks: Ranks | None) -> None:
        found = Experiment.read(experiment, changes or ())
        _run(found, RunDir.for_experiment(found, root), as_json, track, workers, ranks, again)

    _on_ranks(lead, timeout)


def resume(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    track: Track = None,
    workers: Workers = None,
    timeout: Timeout = 600.0,
    again: Again = False,
    as_json: Json = False,
) -> None:
    """Resume a run from its last checkpoint."""
    from fafed.experiments.rundir import RunDir

    found = RunDir(place)

    def lead(ranks: Ranks | None) -> None:
        _run(found.experiment(), found, as_json, track, workers, ranks, again)

    _on_ranks(lead, timeout)


def _on_ranks(lead: Callable[[Ranks | None], None], timeout: float) -> None:
    """Run in this process. Under torchrun, rank 0 leads and the other ranks take part."""
    if "WORLD_SIZE" not in os.environ:
        lead(None)
        return
    from fafed.engines.ranks import RankFailed, joined
    from fafed.experiments.torchrun import take_part
    from fafed.training.loop import Diverged

    try:
        with joined(timeout) as ranks:
            if ranks.rank == 0:
                lead(ranks)
            else:
                take_part(ranks)
    except (Diverged, RankFailed, KeyboardInterrupt) as error:
        if os.environ["RANK"] == "0":
            raise
        raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1) from error


def _run(
    experiment: Experiment,
    place: RunDir,
    as_json: bool,
    track: str | None,
    workers: int | None,
    ranks: Ranks | None,
    again: bool,
) -> None:
    from fafed.core.records import Record
    from fafed.errors import without_passwords
    from fafed.experiments.assemble import prepare
    from fafed.experiments.execute import execute
    from fafed.experiments.progress import Display, computed_by
    from fafed.experiments.trackers import check_tracker, open_tracker

    if track:
        check_tracker(track)
    if place.finished() and not again:
        silos = ", by real silos" if place.of_silos() else ""
        typer.echo(f"already finished{silos}: {place.path}", err=True)
        if track:
            where = without_passwords(track)
            typer.echo(f"nothing was sent to {where}: records go while a run goes on", err=True)
        if ranks:
            ranks.tell(None)
    else:
        label = place.path.name
        begun = not again and place.begun()
        tracker = open_tracker(track, label, experiment.to_dict(), resumed=begun) if track else None
        with interruptible(), Display(quiet=as_json) as display:

            def show(record: Record) -> None:
                display.update(label, experiment.rounds, record, experiment.privacy_options())
                if tracker:
                    tracker.record(record)

            def made(experiment: Experiment, engine: str | None) -> Prepared:
                found = prepare(experiment, engine, workers=workers)
                display.say(computed_by(found.run.engine))
                return found

            try:
                display.update(label, experiment.rounds, None)
                if ranks:
                    from fafed.experiments.torchrun import lead

                    lead(experiment, place, show, ranks, workers, again=again)
                else:
                    execute(experiment, place, show, made, again=again)
            finally:
                if tracker:
                    tracker.close()
    last = place.records()[-1]
    if as_json:
        print_json({"run": str(place.path), "finished": place.finished(), "last": last.to_dict()})
        return
    typer.echo(f"{place.path}")
    measured = "  ".join(last.tested())
    loss = "none" if last.train_loss is None else f"{last.train_loss:.4f}"
    server = f"  server train loss {last.train['loss']:.4f}" if "loss" in last.train else ""
    typer.echo(f"round {last.round}: train loss {loss}{server}  {measured or 'test not measured'}")


def compare(
    experiment: Name,
    algorithms: Annotated[str, typer.Option(help="Names, separated by commas.")] = PAPERS_SIX,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per algorithm.")] = 1,
    baselines: Annotated[
        str, typer.Option(help="local, pooled or both, with the experiment's own algorithm.")
    ] = "",
    changes: Changes = None,
    root: Root = ROOT,
    jobs: Jobs = CORES,
    output: Annotated[Path | None, typer.Option("-o", help="Folder of the report.")] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy to reach.")] = None,
    as_json: Json = False,
) -> None:
    """Run algorithms x seeds, skip finished runs, and end with a table and a report."""
    from fafed import files
    from fafed.experiments.config import Experiment
    from fafed.experiments.grid import grid, run_all
    from fafed.experiments.progress import Display

    need_report("fafed compare")
    found = Experiment.read(experiment, changes or ())
    plan = grid(found, names_once("--algorithms", algorithms), seeds, _names(baselines))
    folder = output or root / found.name
    files.make_folder(folder)  # before hours of work, not after them
    with interruptible(), Display(quiet=as_json) as display:
        places = run_all(plan, root, jobs, display.tick)
    _report(places, folder, as_json, title=f"Comparison: {found.name}", target=target)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def tune(
    experiment: Name,
    algorithms: Annotated[str, typer.Option(help="Names, separated by commas.")] = PAPERS_SIX,
    rule: Annotated[str, typer.Option(help="train_loss or validation.")] = "train_loss",
    sampler: Annotated[str, typer.Option(help="grid or tpe.")] = "grid",
    trials: Annotated[int | None, typer.Option(min=1, help="At most so many trials.")] = None,
    prune: Annotated[bool, typer.Option(help="Stop trials below the median early.")] = False,
    storage: Annotated[str | None, typer.Option(help="A database address to share.")] = None,
    changes: Changes = None,
    root: Root = ROOT,
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Search the algorithms' grids. Ends with a table, a report and a TOML file of the best."""
    from fafed import files
    from fafed.core.extras import require
    from fafed.errors import ConfigError
    from fafed.experiments.config import Experiment
    from fafed.experiments.rundir import RunDir
    from fafed.report import write

    require("fafed tune", "tune", "optuna")
    need_report("fafed tune")
    from fafed.experiments.tuning import best, space
    from fafed.experiments.tuning import tune as search

    for option, value, allowed in [
        ("--rule", rule, ("train_loss", "validation")),
        ("--sampler", sampler, ("grid", "tpe")),
    ]:
        if value not in allowed:
            raise ConfigError(f"{option} must be {' or '.join(allowed)}, got {value!r}")
    found = Experiment.read(experiment, changes or ())
    names = names_once("--algorithms", algorithms)
    for name in names:  # before the first search, which may take hours
        space(found, name)
        found.with_algorithm(name).check_everyone()
    studies, settings = [], {}
    for name in names:
        with interruptible():
            done = search(
                found,
                name,
                root,
                rule=rule,  # type: ignore[arg-type]
                sampler=sampler,  # type: ignore[arg-type]
                trials=trials,
                prune=prune,
                storage=storage,
                jobs=jobs,
                on_trial=None if as_json else _tell,
            )
        studies.append(done)
        settings[name] = dict(best(done))
    own = found.algorithm.name if found.algorithm.name in settings else next(iter(settings))
    tuned = found.changed(settings={**found.settings, **settings}).with_algorithm(own)
    path = root / found.name / "best.toml"
    files.make_folder(path.parent)
    chosen_by = studies[0].rule
    files.write(path, [f"# Chosen by: {chosen_by}.\n\n{tuned.to_toml()}".encode()])
    runs = [
        RunDir.for_experiment(
            found.with_algorithm(name, **chosen), root / found.name / f"tune-{name}"
        ).data()
        for name, chosen in settings.items()
    ]
    folder = root / found.name / "tuning"
    page = write(runs, folder, title=f"Tuning: {found.name}", studies=studies)
    if as_json:
        print_json({"rule": rule, "best": settings, "toml": str(path), "report": str(page)})
        return
    _study_tables(studies)
    typer.echo(f"chosen by: {chosen_by}\nbest settings: {path}\nreport: {page}")


def _tell(study: StudyData) -> None:
    values = [t["value"] for t in study.trials if t["value"] is not None]
    if values:
        choose = min if study.direction == "minimize" else max
        typer.echo(f"{study.name}: {len(study.trials)} trials, best {choose(values):.4f}", err=True)


def _study_tables(studies: Sequence[StudyData]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fafed.core.run_data import show

    for study in studies:
        table = Table(*study.parameters, "value", title=study.name)
        finished = [t for t in study.trials if t["value"] is not None]
        ranked = sorted(finished, key=lambda t: t["value"], reverse=study.direction == "maximize")
        for trial in ranked[:5]:
            shown = (show(trial["params"][name]) for name in study.parameters)
            table.add_row(*shown, f"{trial['value']:.4f}")
        Console().print(table)


def list_runs(root: Root = ROOT, as_json: Json = False) -> None:
    """List the runs below the folder of run directories."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fafed.report.chosen import chosen

    found, said = chosen([root], "fafed runs --runs")
    for note in said:
        typer.echo(note, err=True)
    rows = [_row(place) for place in found]
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no runs below {root}; `fafed run fashion-mnist-high` makes one")
        return
    table = Table("round", "state", "train loss", "server train loss", "test", "run", box=None)
    for row in rows:
        rounds = "" if row["damage"] else f"{row['round']}/{row['rounds']}"
        loss, server = (
            "" if row[name] is None else f"{row[name]:.4g}"
            for name in ("train_loss", "server_train_loss")
        )
        test = " ".join(f"{k} {v:.4g}" for k, v in row["test"].items())
        table.add_row(rounds, row["state"], loss, server, test, Text(row["run"]))
        if row["damage"]:
            typer.echo(f"damaged: {row['damage']}", err=True)
    console = Console()  # without wrapping, so that the names of runs can be copied
    wide = console.measure(table, options=console.options.update(width=10_000)).maximum
    Console(width=max(console.width, wide)).print(table)


def _row(place: RunDir) -> dict[str, Any]:
    """A run as `fafed runs` shows it. A damaged run has no numbers."""
    from fafed.errors import FafedError

    names = ("algorithm", "seed", "round", "rounds", "train_loss", "server_train_loss")
    row: dict[str, Any] = dict.fromkeys(names)
    row |= {"run": str(place.path), "state": "damaged", "test": {}, "damage": None}
    try:
        data, records = place.data(), place.records()
    except FafedError as error:
        return row | {"damage": str(error)}
    state = "finished" if data.finished else ("diverged" if data.failure else "stopped")
    last = records[-1] if records else None
    return row | {
        "algorithm": data.config["algorithm"]["name"],
        "seed": data.config["seed"],
        "round": last.round if last else 0,
        "rounds": data.config["rounds"],
        "state": state,
        "train_loss": last.train_loss if last else None,
        "server_train_loss": next((r.train["loss"] for r in reversed(records) if r.train), None),
        "test": next((r.test for r in reversed(records) if r.test), {}),
    }


def report(
    places: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Run directories.")],
    output: Annotated[Path, typer.Option("-o", help="Folder of the report.")] = Path("report"),
    title: Annotated[str | None, typer.Option()] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy to reach.")] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML report and pictures of these runs. Folders are searched for runs."""
    from fafed.errors import ConfigError

    need_report("fafed report")
    from fafed.report.chosen import chosen

    found, said = chosen(places)
    for note in said:
        typer.echo(note, err=True)
    if not found:
        raise ConfigError(
            f"no runs below {', '.join(map(str, places))}: give run directories or folders of them"
        )
    _report(found, output, as_json, title=title, target=target, said=said)


def watch(
    places: Annotated[
        list[Path] | None, typer.Argument(metavar="RUNS...", help="Folders with runs.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0: a free one.")
    ] = 0,
) -> None:
    """Serve the report of runs that go on, on this machine alone. It renews itself."""
    import signal
    import threading

    from fafed.errors import ConfigError

    need_report("fafed watch")
    from fafed.report.watch import serving

    roots = places or [ROOT]
    for root in roots:
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{root} is a file: name a folder with runs")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with serving(roots, port) as address:
        typer.echo(f"{address}  (Ctrl-C ends it; the runs go on)")
        with contextlib.suppress(KeyboardInterrupt):
            stopped.wait()


def need_report(command: str) -> None:
    """Refuse a command before it computes anything if its report cannot be written."""
    from fafed.core.extras import require

    require(command, "report", "plotly", "matplotlib")


def _report(
    places: Sequence[RunDir],
    folder: Path,
    as_json: bool,
    *,
    title: str | None,
    target: float | None,
    said: Sequence[str] = (),
) -> None:
    from rich.console import Console

    from fafed.errors import FafedError
    from fafed.report import rich_table, table, write

    runs, damaged = [], {}
    for place in places:
        try:
            runs.append(place.data())
        except FafedError as error:
            damaged[place.path.name] = str(error)
            typer.echo(f"damaged: {error}", err=True)
    if not runs:
        raise FafedError(f"no run can be shown: {'; '.join(damaged.values())}")
    for run in runs:
        if run.failure is not None:
            typer.echo(f"{run.name}: {run.failure}", err=True)
    page = write(runs, folder, title=title, target=target, damaged=damaged, said=said)
    if as_json:
        rows = [asdict(row) for row in table(runs)]
        print_json({"report": str(page), "rows": rows, "damaged": damaged})
        return
    Console().print(rich_table(runs))
    typer.echo(f"report: {page}")
