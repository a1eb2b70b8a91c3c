"""Write an app for `flwr run`: experiments and settings. Its code only imports fafed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from fafed import __version__
from fafed.experiments.config import Experiment
from fafed.experiments.model_options import require_sizes
from fafed.silos.bounds import Bounds
from fafed.silos.server import FederationConfig

# Nothing to install: every institution has fafed, and none of fafed's code travels.
PROJECT = """\
[project]
name = {name}
version = "1.0.0"
description = "An experiment of fafed {version}"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fafed"

[tool.flwr.app.components]
serverapp = "fafed_app.server_app:app"
clientapp = "fafed_app.client_app:app"

[tool.flwr.app.config]
silos = {silos}
min-silos = {min_silos}
deadline = {deadline}
start = {start}
runs = {runs}
measure = {measure}
norm = {norm}
examples = {examples}
failures = {failures}
"""
SERVER = '''\
"""fafed's round loop over these experiments."""

from pathlib import Path

from fafed.silos.transports.flower.app import server

app = server(Path(__file__).parent / "experiments")
'''
CLIENT = '''\
"""fafed's part on a silo."""

from fafed.silos.transports.flower.app import client as app

__all__ = ["app"]
'''


def export(
    experiments: Sequence[Experiment],
    folder: Path,
    silos: Sequence[str],
    *,
    min_silos: int | None = None,
    deadline: float = 3600.0,
    start: float = 300.0,
    runs: str = "runs",
    measure: str | None = None,
) -> Path:
    """Write the app into a folder named after the experiment. Return the folder."""
    for experiment in experiments:
        require_sizes(experiment)
    fewest = FederationConfig.with_defaults(silos, min_silos).min_silos
    first = experiments[0]
    name = re.sub(r"[^a-z0-9]+", "-", first.name.lower()).strip("-")[:32].strip("-") or "fafed"
    place = folder / first.name
    module = place / "fafed_app"
    old = module / "experiments"
    old.mkdir(parents=True, exist_ok=True)
    for path in old.glob("*.toml"):  # of an earlier export
        path.unlink()
    text = PROJECT.format(
        name=json.dumps(name),
        version=__version__,
        silos=json.dumps(",".join(silos)),
        min_silos=fewest,
        deadline=float(deadline),
        start=float(start),
        runs=json.dumps(runs),
        measure=json.dumps(measure or ""),
        **Bounds().model_dump(),
    )
    (place / "pyproject.toml").write_text(text, "utf-8")
    (module / "__init__.py").write_text("", "utf-8")
    (module / "server_app.py").write_text(SERVER, "utf-8")
    (module / "client_app.py").write_text(CLIENT, "utf-8")
    for index, experiment in enumerate(experiments, start=1):
        path = old / f"{index:03d}-{experiment.label}.toml"
        path.write_text(experiment.to_toml(), "utf-8")
    return place
