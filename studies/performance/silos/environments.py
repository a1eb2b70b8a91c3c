"""The FLARE recipe on FLARE's simulator and in its proof-of-concept environment.

    python studies/performance/silos/environments.py [sim] [poc]

Two silos, three rounds of FAFED; each must end with the very numbers of our simulation. Production
(ProdEnv) is what `fafed silos run` and the tests use. Needs fafed[nvflare].
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

SILOS = ["site-1", "site-2"]


def main() -> None:
    from nvflare.recipe import PocEnv, SimEnv

    from fafed.experiments.config import Experiment
    from fafed.experiments.execute import execute
    from fafed.experiments.rundir import RunDir
    from fafed.silos.transports.nvflare.job import FafedRecipe

    folder = Path(tempfile.mkdtemp())
    os.environ["NVFLARE_POC_WORKSPACE"] = str(folder / "poc")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    data = folder / "data"
    data.mkdir()
    draw = np.random.default_rng(0)
    for name in SILOS:
        x = draw.normal(size=(30, 6)).astype(np.float32)
        np.savez(data / f"{name}.npz", inputs=x, targets=draw.integers(0, 3, 30))
    experiment = Experiment.from_dict(
        {
            "name": "environments",
            "rounds": 3,
            "engine": "loop",
            "data": {"folder": str(data)},
            "model": {"name": "softmax", "inputs": 6, "outputs": 3},
            "algorithm": {"name": "fafed", "eta": 0.05},
        }
    )
    execute(experiment, RunDir(folder / "simulated"))
    makers: dict[str, Any] = {
        "sim": lambda: SimEnv(clients=SILOS, num_threads=2, workspace_root=str(folder / "sim")),
        "poc": lambda: PocEnv(clients=SILOS),
    }
    for chosen in sys.argv[1:] or makers:
        place = folder / chosen
        place.mkdir(exist_ok=True)
        for name in SILOS:
            (folder / f"{chosen}-{name}.toml").write_text(
                f'folder = "{chosen}-{name}"\nallow = ["softmax", "{data}"]\n[data]\nshare = true\n'
            )
        (folder / f"{chosen}-server.toml").write_text(f'runs = "{folder}/{chosen}-runs"\n')
        os.environ["FAFED_SILO"] = f"{folder}/{chosen}-{{name}}.toml"
        os.environ["FAFED_SERVER"] = f"{folder}/{chosen}-server.toml"
        FafedRecipe(experiment, SILOS, start=60).execute(makers[chosen]()).get_result()
        here = final(folder / "simulated")
        there = final(RunDir.for_experiment(experiment, folder / f"{chosen}-runs").path)
        assert np.array_equal(here, there), chosen
        print(f"{chosen}: the same numbers")


def final(run: Path) -> Any:
    newest = max((run / "checkpoints").glob("round-*.safetensors"))
    with safe_open(newest, framework="np") as file:
        return file.get_tensor("server.0.x")


if __name__ == "__main__":
    main()
