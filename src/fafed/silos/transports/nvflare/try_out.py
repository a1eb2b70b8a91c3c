"""Run a local federation with one command: real certificates, real processes, loopback."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from fafed.experiments import assemble, model_options
from fafed.experiments.config import Experiment
from fafed.silos.serve import check_privacy
from fafed.silos.server import FederationConfig
from fafed.silos.site import check_clients
from fafed.silos.transports.nvflare.driver import Driver, OnRecord
from fafed.silos.transports.nvflare.job import FafedRecipe
from fafed.silos.transports.nvflare.kit_files import install
from fafed.silos.transports.nvflare.local_federation import ADMIN, Local, provision


def for_silos(experiment: Experiment, silos: int) -> Experiment:
    """The experiment for this number of clients, on the loop back end, whose numbers silos give.
    The silos' processes run in other folders, so the path of a data folder becomes absolute."""
    content = experiment.to_dict() | {"engine": "loop"}
    if experiment.data.name is not None:
        content["data"] = {**content["data"], "clients": silos}
    if experiment.data.folder is not None:
        folder = Path(experiment.data.folder).expanduser().absolute()
        content["data"] = {**content["data"], "folder": str(folder)}
    made = Experiment.from_dict(content, experiment.name)
    if model_options.missing(made):  # the silos do not see all of the data
        options = assemble.options_from_data(made, assemble.shard(made))
        made = Experiment.from_dict(model_options.with_options(made, options).to_dict(), made.name)
    return made


def allowed(experiments: Sequence[Experiment]) -> list[str]:
    """The code that these experiments need on a silo with a share of their data."""
    found: list[str] = []
    for e in experiments:
        found += [e.model.name, e.algorithm.name, e.loss]
        found += [e.data.function or "", e.data.folder or "", *e.metrics]
    return sorted({name for name in found if name})


@contextlib.contextmanager
def local_federation(
    folder: Path, experiments: Sequence[Experiment], silos: int, runs: Path
) -> Iterator[Local]:
    """A server and silos that share the experiments' own data. They stop at the end.

    The silos' states stay in the folder. The kits with their certificates are new each time.
    """
    names = _names(silos)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    shutil.rmtree(folder / "kits", ignore_errors=True)
    kits = provision(folder / "kits", names)
    allow = f"allow = {json.dumps(allowed(experiments))}\n"
    install(kits / "localhost", f'runs = {_text(runs.absolute())}\nmeasure = "share"\n{allow}')
    for name in names:
        kept = (folder / name).absolute()
        install(
            kits / name,
            f"folder = {_text(kept)}\n{allow}[data]\nshare = true\n"
            f"[secure]\nsilos = {json.dumps(names)}\n",
        )
    local = Local(kits, names)
    try:
        local.start()
        yield local
    finally:
        local.stop()


def attempt(
    experiments: Sequence[Experiment],
    silos: int,
    runs: Path,
    *,
    min_silos: int | None = None,
    deadline: float = 600.0,
    on_record: OnRecord | None = None,
) -> None:
    """Run the experiments to their end on a local federation."""
    federation = FederationConfig.with_defaults(_names(silos), min_silos)
    for experiment in experiments:
        check_privacy(experiment, federation.silos)
        if experiment.data.name is None:  # an error here has all details; a silo tells its kind
            check_clients(assemble.shard(experiment), silos)
    folder = runs / experiments[0].name / "silos"
    with local_federation(folder, experiments, silos, runs) as local:
        recipe = FafedRecipe(
            experiments, federation.silos, min_silos=federation.min_silos, deadline=deadline
        )
        driver = Driver(
            local.kits / ADMIN,
            list(federation.silos),
            username=ADMIN,
            min_silos=federation.min_silos,
            tick=local.watch,
        )
        try:
            driver.run(recipe, on_record)
        finally:
            driver.close()


def _names(silos: int) -> list[str]:
    return [f"silo-{i + 1}" for i in range(silos)]


def _text(path: Path) -> str:
    return json.dumps(str(path))
