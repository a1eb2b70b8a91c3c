"""Real silos: a local federation, the kits of server and silos, a run over institutions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fafed.cli.options import ROOT, Changes, Json, Name, Root, interruptible, names_once, print_json

if TYPE_CHECKING:
    from fafed.experiments.config import Experiment

app = typer.Typer(help="Real silos on NVIDIA FLARE: try, set up, run.", no_args_is_help=True)
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="A startup kit of `nvflare provision`.")]
TableFile = Annotated[
    Path | None, typer.Option(help="A TOML file with the rules for .csv and .parquet files.")
]
Fewest = Annotated[
    int | None, typer.Option("--min-silos", min=1, help="Go on with so many; else all must be.")
]
Deadline = Annotated[float, typer.Option(min=1.0, help="Seconds a silo has for an exchange.")]
Start = Annotated[
    float, typer.Option(min=1.0, help="Seconds the silos have to come and load their data.")
]
Absence = Annotated[
    float, typer.Option(min=1.0, help="Seconds that a silo may be unreachable within a round.")
]
Silo = Annotated[str, typer.Argument(metavar="SILO", help="The silo's name.")]
ProjectFile = Annotated[Path, typer.Option("--project", help="Of `nvflare provision`.")]
Which = Annotated[
    str | None, typer.Option(help="Run these algorithms one after another, with [settings].")
]


def need_flare() -> None:
    from fafed.core.extras import require

    require("a federation of silos", "nvflare", "nvflare")


def experiments(name: str, changes: list[str] | None, algorithms: str | None) -> list[Experiment]:
    from fafed.experiments.config import Experiment

    found = Experiment.read(name, changes or ())
    if algorithms is None:
        return [found]
    return [found.with_algorithm(one) for one in names_once("--algorithms", algorithms)]


def listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


@app.command("try")
def try_out(
    experiment: Name,
    silos: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    changes: Changes = None,
    algorithms: Which = None,
    root: Root = ROOT,
    min_silos: Fewest = None,
    deadline: Deadline = 600.0,
    secure: Annotated[
        bool, typer.Option("--secure", help="Secure aggregation: the server sees sums alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment over real silo processes on this machine, with real certificates.

    A named dataset is dealt out to the silos. Your own data must have as many clients as silos.
    """
    need_flare()
    from fafed.errors import FafedError
    from fafed.experiments.rundir import RunDir
    from fafed.silos.transports.nvflare.try_out import attempt, for_silos

    chosen = [for_silos(one, silos) for one in experiments(experiment, changes, algorithms)]
    if secure:
        chosen = [one.changed(privacy=one.privacy | {"secure": True}) for one in chosen]
    places = [RunDir.for_experiment(one, root) for one in chosen]
    for place in filter(RunDir.finished, places):
        if not place.of_silos():
            raise FafedError(
                f"{place.path} is finished, without silos: give this run another folder, with "
                "--runs, to see what a federation makes of it"
            )
        typer.echo(f"already finished: {place.path}", err=True)
    if not all(place.finished() for place in places):
        _shown(
            chosen,
            [place.path.name for place in places],
            as_json,
            lambda on_record: attempt(
                chosen,
                silos,
                root,
                min_silos=min_silos,
                deadline=deadline,
                on_record=on_record,
            ),
        )
    told = [{"run": str(p.path), "last": p.records()[-1].to_dict()} for p in places]
    if as_json:
        print_json(told)
        return
    for place in places:
        last = place.records()[-1]
        measured = "  ".join(last.tested()) or "test not measured"
        typer.echo(f"{place.path}\nround {last.round}: {measured}")


@app.command()
def run(
    experiment: Name,
    kit: Annotated[Path, typer.Option(help="The administrator's startup kit.")],
    silos: Annotated[str, typer.Option(help="The sites' names, in the clients' order: a,b,c.")],
    changes: Changes = None,
    algorithms: Which = None,
    min_silos: Fewest = None,
    deadline: Deadline = 3600.0,
    start: Start = 300.0,
    absence: Absence = 6.0,
    patience: Annotated[float, typer.Option(help="Seconds a lost silo has to return.")] = 60.0,
) -> None:
    """Run an experiment over a federation. Submits its job again until it is finished."""
    need_flare()
    from fafed.silos.transports.nvflare.certificates import warning
    from fafed.silos.transports.nvflare.driver import Driver
    from fafed.silos.transports.nvflare.job import FafedRecipe

    chosen = experiments(experiment, changes, algorithms)
    names = listed(silos)
    fewest = len(names) if min_silos is None else min_silos
    recipe = FafedRecipe(
        chosen, names, min_silos=fewest, deadline=deadline, start=start, absence=absence
    )
    driver = Driver(kit, names, username=kit.absolute().name, min_silos=fewest, patience=patience)
    labels = [one.label for one in chosen]
    if ending := warning(kit):
        typer.secho(f"warning: {ending}", fg="yellow", err=True)
    try:
        _shown(chosen, labels, False, lambda on_record: driver.run(recipe, on_record))
    finally:
        driver.close()
    typer.echo("finished; the run directories are on the server")


def _shown(
    chosen: Sequence[Experiment],
    labels: Sequence[str],
    quiet: bool,
    go: Callable[[Callable[[int, Any], None]], None],
) -> None:
    from fafed.experiments.progress import Display

    with interruptible(), Display(quiet=quiet) as display:

        def show(index: int, record: Any) -> None:
            found = chosen[index]
            display.update(labels[index], found.rounds, record, found.privacy_options())

        display.update(labels[0], chosen[0].rounds, None)
        go(show)


@app.command()
def project(
    silos: Annotated[str, typer.Option(help="The sites' names: a,b,c.")],
    host: Annotated[str, typer.Option(help="The server's name, as the sites reach it.")],
    port: Annotated[int, typer.Option(help="The one port that the sites must reach.")] = 8002,
) -> None:
    """Print the project file from which `nvflare provision` makes all startup kits."""
    need_flare()
    from fafed.silos.server import FederationConfig
    from fafed.silos.transports.nvflare.local_federation import project as text

    names = FederationConfig.with_defaults(listed(silos)).silos
    typer.echo(text(names, host=host, port=port), nl=False)


@app.command()
def add(silo: Silo, project: ProjectFile = Path("project.yml")) -> None:
    """Add a silo to the project file. The kits that exist stay valid."""
    need_flare()
    from fafed.silos.transports.nvflare.members import add as added

    added(project, silo)
    typer.echo(
        f"{silo} is in {project}. Its kit comes from: nvflare provision -p {project} -w . --force"
    )


@app.command()
def remove(silo: Silo, project: ProjectFile = Path("project.yml")) -> None:
    """Take a silo out of the project file. No kit is made for it any more."""
    need_flare()
    from fafed.silos.transports.nvflare.members import remove as removed

    removed(project, silo)
    typer.echo(
        f"{silo} is out of {project}. The server still accepts its certificate, until: nvflare "
        f"system disable-client {silo} --force --startup-kit KIT_OF_THE_ADMINISTRATOR"
    )


@app.command()
def site(
    kit: Kit,
    allow: Annotated[
        list[str] | None, typer.Option(help="A model or code that may run here.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with this silo's data file.")] = None,
    function: Annotated[str | None, typer.Option(help="Or 'module:function'.")] = None,
    folder: Annotated[Path, typer.Option(help="What the silo keeps.")] = Path("../fafed"),
    table: TableFile = None,
    tell_faults: Annotated[
        bool, typer.Option(help="Tell the server what is wrong with the data, in a few words.")
    ] = True,
) -> None:
    """Set up a silo's kit: its data, its folder, and what may run. Run it on the silo.

    Without options: set up a kit again that has its file already. The file stays as it is.
    """
    from fafed.errors import ConfigError, nearest
    from fafed.models import MODELS
    from fafed.silos.rehearsal import look
    from fafed.silos.site import Site, SiteData
    from fafed.silos.transports.nvflare.kit_files import install, require

    own = kit / "local" / "fafed.toml"
    if data is None and function is None and not allow and own.is_file():
        require(kit, "client")
        Site.read(own)
        typer.echo(f"{install(kit, own.read_text('utf-8'))}")
        return
    if not allow:
        raise ConfigError("give --allow: a model, or code of your own, that may run on this silo")
    if (data is None) == (function is None):
        raise ConfigError("give one of --data and --function: where this silo's examples are")
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data} is not a folder: give the one with this silo's data file")
    for name in allow:
        if ":" not in name and name not in MODELS:
            raise ConfigError(
                f"--allow {name}: there is no such model; {nearest(name, MODELS)}; your own is "
                "'module:name'"
            )
    require(kit, "client")
    rules = _rules(table)
    if data is not None:
        look(SiteData(folder=str(data.absolute()), table=rules))  # a run would fail as this does
    lines = [
        f"folder = {json.dumps(str(folder))}  # states and the audit file; from this file's folder",
        f"allow = {json.dumps(allow)}",
        f"tell_faults = {json.dumps(tell_faults)}  # what is wrong with the data, in a few words",
        "",
        "[data]",
        f"folder = {json.dumps(str(data.absolute()))}"
        if data
        else f"function = {json.dumps(function)}",
        *(["", "[data.table]", *_toml(rules).splitlines()] if rules else []),
        "",
        "[limits]  # what this silo refuses: docs/silos.md lists all of them and their defaults",
    ]
    _keep_old(own)
    path = install(kit, "\n".join(lines) + "\n")
    Site.read(path)
    typer.echo(f"{path}")


@app.command()
def check(
    kit: Annotated[
        Path, typer.Argument(metavar="KIT", help="A silo's startup kit, or its fafed.toml.")
    ],
    experiment: Annotated[
        str | None, typer.Argument(metavar="[EXPERIMENT]", help="What the coordinator will run.")
    ] = None,
    changes: Changes = None,
) -> None:
    """Look at a silo before a run: its data, its limits, and what would leave it. Sends nothing."""
    from fafed.cli.silo_check import shown
    from fafed.experiments.config import Experiment

    found = None if experiment is None else Experiment.read(experiment, changes or ())
    for line in shown(kit, found):
        typer.echo(line)


@app.command()
def renew(
    kit: Kit,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A newer kit of the same member.")],
) -> None:
    """Give a kit the certificates of a newer one. Its settings and its folder stay."""
    need_flare()
    from fafed.silos.transports.nvflare.certificates import ends
    from fafed.silos.transports.nvflare.certificates import renew as replaced

    before = replaced(kit, new)
    typer.echo(f"{kit}: certificates until {ends(kit):%Y-%m-%d}; the old ones are in {before}")


@app.command()
def server(
    kit: Kit,
    runs: Annotated[Path | None, typer.Option(help="Folder of the run directories.")] = None,
    measure: Annotated[Path | None, typer.Option(help="A file to measure the model on.")] = None,
    table: TableFile = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Code of your own that may run on the server.")
    ] = None,
) -> None:
    """Set up the server's kit: the folder of runs, the data for evaluation, what may run.

    Without options: set up a kit again that has its file already. The file stays as it is.
    """
    from fafed.errors import ConfigError
    from fafed.silos.transports.nvflare.kit_files import install, require

    own = kit / "local" / "fafed.toml"
    if runs is None and measure is None and table is None and not allow and own.is_file():
        require(kit, "servers")
        typer.echo(f"{install(kit, own.read_text('utf-8'))}")
        return
    if runs is None:
        raise ConfigError("give --runs: the folder for the run directories")
    if measure is not None and not measure.is_file():
        raise ConfigError(f"--measure {measure} is not a file: give one of inputs and targets")
    require(kit, "servers")
    text = f"runs = {json.dumps(str(runs.absolute()))}\nallow = {json.dumps(allow or [])}\n"
    if measure:
        text += f"measure = {json.dumps(str(measure.absolute()))}\n"
    if rules := _rules(table):
        text += f"\n[table]\n{_toml(rules)}"
    _keep_old(own)
    typer.echo(f"{install(kit, text)}")


def _keep_old(own: Path) -> None:
    """A file that is written again may have lines that somebody has added."""
    if own.is_file():
        old = own.with_suffix(".toml.old")
        own.replace(old)
        typer.secho(
            f"warning: the file that was there is {old} now: copy what you have added to it",
            fg="yellow",
            err=True,
        )


def _rules(file: Path | None) -> dict[str, Any]:
    """The rules for tables in a file. An error names it."""
    import tomllib

    from fafed.data import Table
    from fafed.errors import ConfigError

    if file is None:
        return {}
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise ConfigError(f"--table {file} cannot be read: {cause}") from cause
    Table.from_dict(found)
    return found


def _toml(rules: dict[str, Any]) -> str:
    from fafed.experiments.toml_text import as_toml

    return as_toml(rules)


@app.command()
def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit.jsonl.")],
    head: Annotated[
        str | None, typer.Option(help="A hash that this command printed before: still there?")
    ] = None,
) -> None:
    """Check that no line of an audit file was changed or removed. Prints the last line's hash."""
    from fafed.silos.audit import verify

    lines, last = verify(file, head)
    typer.echo(f"{lines} lines, whole; the hash of the last: {last}")
