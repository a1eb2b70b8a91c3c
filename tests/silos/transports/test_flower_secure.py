"""Secure aggregation over Flower: pinned keys, and a new process for every message."""

from __future__ import annotations

import pytest
import torch
from silo_tools import final
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir

pytest.importorskip("flwr", reason="needs Flower: pip install 'fafed[flower]'")

from flower_tools import Flower, lines

SILOS = ("north", "south", "west")


@pytest.mark.hosted
@pytest.mark.waits
def test_real_processes_end_with_the_bits_of_the_simulation(tmp_path):
    """Also their shared normalisation, which they find under masks before the first round."""
    write_data(tmp_path / "data", 3, examples=200)
    settings = {"name": "hospitals", "rounds": 1, "engine": "loop", "privacy": {"secure": True}}
    settings |= {"batch_size": 32, "algorithm": {"name": "fedavg", "eta": 0.1}}
    settings |= {"data": {"folder": str(tmp_path / "data"), "normalise": "shared"}}
    flower, here = Flower(tmp_path / "flower"), RunDir(tmp_path / "simulated")
    found = Experiment.from_dict(experiment(tmp_path / "data") | settings)
    (flower.folder / "hospitals.toml").write_text(found.to_toml(), "utf-8")
    execute(found, here)
    for i, name in enumerate(SILOS):
        own = flower.folder / f"records-{name}"
        own.mkdir()
        (tmp_path / "data" / f"client-{i}.npz").rename(own / "records.npz")
    try:
        flower.link()
        flower.nodes(**dict.fromkeys(SILOS, ""))
        keys = [
            f'{name} = "{(flower.folder / f"{name}.pub").read_text().strip()}"' for name in SILOS
        ]
        for name in SILOS:  # read anew for every message
            (flower.folder / f"{name}.toml").write_text(
                f'folder = "kept-{name}"\nallow = ["softmax"]\n'
                f'[data]\nfolder = "{flower.folder / f"records-{name}"}"\n'
                f"[limits]\nrequire_secure = true\n"
                f'[secure]\nname = "{name}"\nkey = "{name}"\n[secure.keys]\n' + "\n".join(keys)
            )
        flower.do(flower.typed("fafed export flower") + " --deadline 300")
        told = flower.do(flower.typed("flwr run"), seconds=600)
        assert "round 1 of 1: 3 silos" in told, told
    finally:
        flower.stop()
    place = RunDir.for_experiment(found, flower.folder / "runs")
    assert torch.equal(final(place), final(here))
    assert place.json("normalisation.json") == here.json("normalisation.json")
    kinds = {line["kind"] for line in lines(place.path) if line["direction"] == "received"}
    assert kinds == {"welcome", "keys", "shares", "masked", "agree", "unmask", "kept"}
