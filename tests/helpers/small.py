"""A tiny experiment of one's own data, for tests that run whole experiments."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_data(folder: Path, clients: int = 4, examples: int = 30, d: int = 6) -> None:
    """One .npz per client, and a test set."""
    folder.mkdir(parents=True, exist_ok=True)
    r = np.random.default_rng(0)
    centres = 2 * r.normal(size=(3, d))
    for name in [*(f"client-{i}" for i in range(clients)), "test"]:
        y = r.integers(0, 3, examples)
        x = (centres[y] + r.normal(size=(examples, d))).astype(np.float32)
        np.savez(folder / f"{name}.npz", inputs=x, targets=y)


def experiment(data: Path, **changes: object) -> dict[str, object]:
    return {
        "name": "small",
        "rounds": 6,
        "local_steps": 3,
        "batch_size": 5,
        "eval_every": 2,
        "data": {"folder": str(data)},
        "model": {"name": "softmax", "inputs": 6, "outputs": 3},
        "algorithm": {"name": "fafed", "eta": 0.05},
    } | changes


def write_experiment(path: Path, data: Path, **changes: object) -> Path:
    from fafed.experiments.config import Experiment

    path.write_text(Experiment.from_dict(experiment(data, **changes)).to_toml(), "utf-8")
    return path


def normalised(tmp: Path, **changes):
    """An experiment with a shared normalisation. The clients' inputs have other places and sizes;
    the test set has the first client's."""
    from fafed.experiments.config import Experiment

    write_data(tmp / "data", 3)
    for i, path in enumerate(sorted((tmp / "data").glob("*.npz"))):
        content = dict(np.load(path))
        shift = [5e4, 0.1 * (i % 3), 0, 0, 0, 0]
        content["inputs"] = content["inputs"] * [1e4, 1, 1, 1, 1, 1e-4] + shift
        np.savez(path, **content)
    data = {"folder": str(tmp / "data"), "normalise": "shared"} | changes.pop("data", {})
    settings = {"data": data, "rounds": 4, "engine": "loop"} | changes
    return Experiment.from_dict(experiment(tmp / "data") | settings)
