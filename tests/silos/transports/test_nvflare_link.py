"""A link of 1 MB/s that breaks again and again: real processes on loopback, one silo behind it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from silo_tools import final
from slow_link import SlowLink
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from fafed.silos.transports.nvflare.driver import Driver
from fafed.silos.transports.nvflare.job import FafedRecipe
from fafed.silos.transports.nvflare.kit_files import install
from fafed.silos.transports.nvflare.local_federation import ADMIN, Local, project, provision

NEAR, FAR = NAMES = ("near", "far")
RATE = 1_000_000  # bytes per second, each way
WHOLE, BROKEN = 15.0, 2.0  # seconds


@pytest.fixture
def federation(tmp_path):
    """Kits of two silos. The one of `far` has another port of the server: that of the link."""
    kits = provision(tmp_path / "kits", NAMES)
    settings = json.loads((kits / "localhost" / "startup" / "fed_server.json").read_text())
    link = SlowLink(int(settings["servers"][0]["service"]["target"].rpartition(":")[2]), RATE)
    text = project(NAMES, host="localhost", port=link.port)
    (tmp_path / "kits" / "project.yml").write_text(text, "utf-8")
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "."]
    subprocess.run([*command, "--force"], cwd=tmp_path / "kits", check=True, capture_output=True)
    shutil.rmtree(kits / FAR)
    shutil.copytree(kits.with_name("prod_01") / FAR, kits / FAR)
    allow = f"allow = {json.dumps(['mlp', str(tmp_path / 'data')])}\n"
    install(kits / "localhost", f'runs = "{tmp_path / "runs"}"\nmeasure = "share"\n{allow}')
    for name, more in {NEAR: "", FAR: f"[link]\nrate = {RATE - 100_000}\n"}.items():
        own = f'folder = "{tmp_path / name}"\n{allow}[data]\nshare = true\n'
        install(kits / name, own + more)
    local = Local(kits, NAMES)
    local.start()
    yield local, link
    local.stop()
    link.down()


@pytest.mark.hosted
def test_a_run_over_a_slow_link_that_breaks_loses_no_round(tmp_path, federation):
    local, link = federation
    write_data(tmp_path / "data", 2, d=1000)
    found = Experiment.from_dict(
        experiment(
            tmp_path / "data",
            rounds=3,
            engine="loop",
            algorithm={"name": "fedavg", "eta": 0.05},
            model={"name": "mlp", "inputs": 1000, "hidden": [2000], "outputs": 3},  # 8 MB
        )
    )
    over, cut_in_transfer = threading.Event(), []

    def break_it():
        while not over.wait(WHOLE):
            before = link.bytes
            link.down()
            over.wait(BROKEN)
            link.up()
            cut_in_transfer.append(before)

    driver = Driver(local.kits / ADMIN, [*NAMES], username=ADMIN, min_silos=2, tick=local.watch)
    breaker = threading.Thread(target=break_it)
    recipe = FafedRecipe(found, NAMES, min_silos=2, deadline=300, start=120, absence=60)
    try:
        breaker.start()
        driver.run(recipe)
    finally:
        over.set()
        breaker.join()
        driver.close()
    place = RunDir.for_experiment(found, tmp_path / "runs")
    assert [record.clients for record in place.records()] == [2, 2, 2]
    lines = [json.loads(x) for x in (place.path / "audit.jsonl").read_text().splitlines()]
    visits = [x for x in lines if (x["kind"], x["peer"]) == ("visit", FAR)]
    assert len(visits) == 3  # no round was made again
    assert len(set(cut_in_transfer)) >= 3
    assert link.bytes > 3 * 2 * 8_000_000
    assert link.bytes < 3 * 2 * 8_000_000 * 1.7  # pieces were repeated, not messages
    simulated = RunDir(tmp_path / "simulated")
    execute(found, simulated)
    torch.testing.assert_close(final(place), final(simulated), rtol=1e-6, atol=1e-7)
