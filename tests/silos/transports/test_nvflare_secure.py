"""Secure aggregation between real processes with real certificates on NVIDIA FLARE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from silo_tools import final
from small import normalised, write_data, write_experiment

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")


@pytest.mark.slow
def test_one_command_ends_with_the_bits_of_the_simulation_and_shows_the_server_no_message(tmp_path):
    write_data(tmp_path / "data", 3)
    model = {"name": "recorded_silo:Net", "inputs": 6, "outputs": 3}
    settings = {"rounds": 2, "engine": "loop", "model": model}
    file = write_experiment(tmp_path / "small.toml", tmp_path / "data", **settings)
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    paths = (str(Path(__file__).parents[2] / "helpers"), os.environ.get("PYTHONPATH", ""))
    own = {"RECORDED": str(recorded), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "fafed", "silos", "try", file, "--runs", tmp_path / "runs"]
    command += ["--silos", "3", "--secure", "--algorithms", "fedavg,scaffold,fafed", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | own
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 3
    for name in ("fedavg", "scaffold", "fafed"):
        found = Experiment.read(file).with_algorithm(name).changed(privacy={"secure": True})
        here = RunDir(tmp_path / "simulated" / name)
        execute(found, here)
        there = RunDir.for_experiment(found, tmp_path / "runs")
        assert torch.equal(final(here), final(there)), name
        for a, b in zip(here.records(), there.records(), strict=True):
            assert a.to_dict() | {"seconds": 0} == b.to_dict() | {"seconds": 0}
        assert "secure aggregation: on, 3 silos" in (there.path / "log.txt").read_text()
    recording = b"|".join(path.read_bytes() for path in recorded.glob("server-*"))
    plain = b"".join(path.read_bytes() for path in recorded.glob("plain-*"))
    clear = b"".join(path.read_bytes() for path in recorded.glob("clear-*"))
    assert b'"masked"' in recording
    leaves = {plain[at : at + 16] for at in range(0, len(plain), 16)} - {bytes(16)}
    assert len(leaves) > 3 * 2 * 3
    assert not [leaf for leaf in leaves if leaf in recording]
    integers = np.frombuffer(clear, np.int64)
    pairs = {integers[at : at + 2].tobytes() for at in np.flatnonzero(abs(integers) > 2**32)}
    assert len(pairs) > 100
    assert not [pair for pair in pairs if pair in recording]


@pytest.mark.hosted
def test_a_shared_normalisation_is_found_under_masks(tmp_path):
    found = normalised(tmp_path, privacy={"secure": True}, rounds=2)
    here, file = RunDir(tmp_path / "simulated"), tmp_path / "small.toml"
    file.write_text(found.to_toml())
    execute(found, here)
    command = [sys.executable, "-m", "fafed", "silos", "try", file, "--runs", tmp_path / "runs"]
    done = subprocess.run(
        [*command, "--silos", "3"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    there = RunDir.for_experiment(found, tmp_path / "runs")
    assert torch.equal(final(here), final(there))
    assert here.json("normalisation.json") == there.json("normalisation.json")
    told = [json.loads(x) for x in (there.path / "audit.jsonl").read_text().splitlines()]
    first = {x["kind"] for x in told if x["round"] == 0 and x["direction"] == "received"}
    assert "masked" in first
    assert "sums" not in first  # of a silo alone


def test_two_silos_are_refused_before_anything_is_started(tmp_path):
    from fafed.errors import ConfigError
    from fafed.silos.transports.nvflare.try_out import attempt, for_silos

    write_data(tmp_path / "data", 2)
    file = write_experiment(tmp_path / "small.toml", tmp_path / "data", privacy={"secure": True})
    with pytest.raises(ConfigError, match="a secure sum needs at least 3 silos, got 2"):
        attempt([for_silos(Experiment.read(file), 2)], 2, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
