"""One bad silo among real processes costs the others neither the run nor a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from silo_tools import final, simulated
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from fafed.silos.transports.nvflare.driver import Driver
from fafed.silos.transports.nvflare.job import FafedRecipe
from fafed.silos.transports.nvflare.local_federation import ADMIN
from fafed.silos.transports.nvflare.try_out import local_federation

pytestmark = pytest.mark.slow


def test_a_bad_silo_s_attacks_end_neither_the_run_nor_its_job(tmp_path, monkeypatch):
    monkeypatch.setenv("BAD_SILO", "silo-3")
    helpers = str(Path(__file__).parents[2] / "helpers")
    monkeypatch.setenv("PYTHONPATH", helpers, prepend=os.pathsep)
    write_data(tmp_path / "data", 3)
    found = Experiment.from_dict(
        experiment(
            tmp_path / "data",
            rounds=8,
            engine="loop",
            eval_every=100,
            model={"name": "bad_silo:Net", "inputs": 6, "outputs": 3},
            algorithm={"name": "fedavg", "eta": 0.05},
        )
    )
    place = RunDir.for_experiment(found, tmp_path / "runs")
    with local_federation(tmp_path / "work", [found], 3, tmp_path / "runs") as local:
        silos = list(local.silos)
        driver = Driver(local.kits / ADMIN, silos, username=ADMIN, min_silos=2, tick=local.watch)
        try:
            driver.run(FafedRecipe(found, silos, min_silos=2, deadline=60, start=120))
        finally:
            driver.close()
    assert [r.clients for r in place.records()] == [3, 2, 2, 2, 2, 2, 2, 3]
    absent = {number: {2} for number in range(2, 8)}
    torch.testing.assert_close(final(place), simulated(found, absent), rtol=1e-6, atol=1e-7)
    lines = [json.loads(x) for x in (place.path / "audit.jsonl").read_text().splitlines()]
    hellos = [x for x in lines if (x["direction"], x["kind"]) == ("sent", "hello")]
    assert len(hellos) == 3  # one job did it all
    log = (place.path / "log.txt").read_text()
    for words in ("the norm of delta", "'silo-3' diverged", "'silo-3' lost", "'silo-3' refused"):
        assert words in log, words
    assert not any(line.startswith("2026-01-01 INFO") for line in log.splitlines())
