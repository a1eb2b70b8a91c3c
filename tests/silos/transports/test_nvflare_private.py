"""Differential privacy of each example between real processes on NVIDIA FLARE, with secure sums."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections import Counter

import pytest
import torch
from silo_tools import final
from small import write_data, write_experiment

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.privacy.accounting import Released
from fafed.silos.private import Ledger

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")


@pytest.mark.hosted
def test_one_command_makes_private_runs_and_every_silo_counts_what_it_has_released(tmp_path):
    write_data(tmp_path / "data", 3, 60)
    noisy = {"level": "example", "noise": 1.0, "clip": 0.5, "delta": 1e-3}
    settings = {"rounds": 2, "engine": "loop", "algorithm": {"name": "fedavg", "eta": 0.1}}
    file = write_experiment(tmp_path / "small.toml", tmp_path / "data", privacy=noisy, **settings)
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "fafed", "silos", "try", file, "--runs", runs, "--secure"]
    done = subprocess.run([*command, "--silos", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "epsilon" in done.stderr
    found = Experiment.read(file)
    found = found.changed(privacy=found.privacy | {"secure": True})
    here, there = RunDir(tmp_path / "simulated"), RunDir.for_experiment(found, runs)
    execute(found, here)
    spent = [[r.diagnostics["epsilon"] for r in place.records()] for place in (here, there)]
    assert spent[0] == spent[1]
    assert (final(here) - final(there)).abs().min() > 0  # the silos' noise is their own
    files = list(runs.glob("**/privacy.json"))
    assert len(files) == 3
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        released = Ledger(path.parent).of_others("")
        assert released == Counter({Released(5 / 60, 1.0, 1): 2 * 3})
    assert torch.isfinite(final(there)).all()
