"""A federation on this machine from one command: real certificates, real processes, loopback."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from fafed.engines.nvflare.driver import Driver, OnRecord
from fafed.engines.nvflare.job import FafedRecipe
from fafed.engines.nvflare.kits import ADMIN, Local, provision
from fafed.engines.nvflare.local import install
from fafed.errors import ConfigError
from fafed.experiment import Experiment


def fitted(experiment: Experiment, silos: int) -> Experiment:
    """The experiment for so many clients, on the engine whose numbers silos give."""
    content = experiment.to_dict() | {"engine": "loop"}
    if experiment.data.name is not None:
        content["data"] = {**content["data"], "clients": silos}
    return Experiment.of(content, experiment.name)


def allowed(experiments: Sequence[Experiment]) -> list[str]:
    """The code that these experiments need on a silo that takes its share of their data."""
    found: list[str] = []
    for e in experiments:
        found += [e.model.name, e.algorithm.name, e.loss]
        found += [e.data.function or "", e.data.folder or ""]
    return sorted({name for name in found if name})


@contextlib.contextmanager
def federation(
    folder: Path, experiments: Sequence[Experiment], silos: int, runs: Path
) -> Iterator[Local]:
    """A server and silos that share the experiments' own data; stopped in the end.

    What the silos keep stays in the folder; the kits with their certificates are made anew.
    """
    names = [f"silo-{i + 1}" for i in range(silos)]
    shutil.rmtree(folder / "kits", ignore_errors=True)
    kits = provision(folder / "kits", names)
    install(kits / "localhost", f'runs = {_text(runs.absolute())}\nmeasure = "share"\n')
    for name in names:
        kept = (folder / name).absolute()
        install(
            kits / name,
            f"folder = {_text(kept)}\nallow = {json.dumps(allowed(experiments))}\n"
            "[data]\nshare = true\n",
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
    """Run the experiments on a federation of this machine, to the end."""
    fewest = silos if min_silos is None else min_silos
    if not 1 <= fewest <= silos:
        raise ConfigError(f"min_silos must be between 1 and the {silos} silos, got {fewest}")
    folder = runs / experiments[0].name / "silos"
    with federation(folder, experiments, silos, runs) as local:
        recipe = FafedRecipe(
            experiments, list(local.silos), min_silos=fewest, deadline=deadline, start=120.0
        )
        driver = Driver(
            local.kits / ADMIN,
            list(local.silos),
            username=ADMIN,
            min_silos=fewest,
            tick=local.watch,
        )
        try:
            driver.run(recipe, on_record)
        finally:
            driver.close()


def _text(path: Path) -> str:
    return json.dumps(str(path))
