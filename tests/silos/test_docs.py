"""docs/silos.md, followed to the letter: three institutions, each with its own folder of data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from silo_tools import final
from small import write_data, write_experiment

import fafed
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from nvflare.fuel.flare_api.flare_api import new_secure_session

from fafed.silos.transports.nvflare.local_federation import Member, free_port

GUIDE = Path(__file__).parents[2] / "docs" / "silos.md"
SILOS = ("north", "south", "west")


def commands() -> list[str]:
    """What the guide tells to type."""
    blocks = GUIDE.read_text("utf-8").split("```")[1::2]
    plain = [block for block in blocks if block.startswith("\n")]
    return [line.split("  #")[0].strip() for block in plain for line in block.splitlines()]


def hostile(kit: Path, job: Path) -> None:
    """Even the administrator can neither send code to a silo nor look into its files."""
    session = new_secure_session(kit.name, str(kit))
    try:
        number = session.submit_job(str(job))
        end = time.monotonic() + 30
        while not (told := session.get_job_meta(number)).get("job_deploy_detail"):
            assert time.monotonic() < end
            time.sleep(0.5)
        refused = [x for x in told["job_deploy_detail"] if "BYOC not permitted" in x]
        assert len(refused) == 3
        for question in (
            lambda: session.cat_target("north", None, "log.txt"),
            lambda: session.ls_target("north", "-l", "local"),
            lambda: session.get_working_directory("north"),
            lambda: session.get_client_env(["north"]),
        ):
            try:
                answer = str(question())
            except Exception as error:
                answer = str(error)
            assert "not authorized" in answer
    finally:
        session.close()


@pytest.mark.waits
def test_three_institutions(tmp_path):
    kits = tmp_path / "fafed" / "prod_00"
    write_data(tmp_path / "hospitals", 3, examples=200)
    settings = {"name": "hospitals", "rounds": 2, "engine": "loop"}
    settings |= {"batch_size": 32, "opening_batch_size": 64}  # what a silo takes by default
    write_experiment(tmp_path / "hospitals.toml", tmp_path / "hospitals", **settings)
    found = Experiment.read(tmp_path / "hospitals.toml")
    execute(found, RunDir(tmp_path / "simulated"))
    for i, name in enumerate(SILOS):
        (tmp_path / name).mkdir()
        shutil.move(tmp_path / "hospitals" / f"client-{i}.npz", tmp_path / name / "records.npz")
    shutil.move(tmp_path / "hospitals" / "test.npz", tmp_path / "test.npz")
    here = {"fl.example.org": "localhost", "/srv/records": str(tmp_path / "north")}
    typed = [line for line in commands() if line.startswith(("fafed", "nvflare", "./startup"))]
    todo = {" ".join(line.split()[:3]): line for line in typed}

    def do(start: str, folder: Path = tmp_path, **changes: str) -> str:
        line = todo[start]
        for old, new in (here | changes).items():
            line = line.replace(old, new)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        told = folder / "told.txt"  # not a pipe: what stays in the background would hold it
        with told.open("w") as out:
            code = subprocess.run(
                line,
                shell=True,
                cwd=folder,
                env=os.environ | {"PATH": path},
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            ).returncode
        assert code == 0, f"{line}\n{told.read_text()}"
        return told.read_text()

    do("fafed silos project", **{"--silos": f"--port {free_port()} --silos"})
    do("nvflare provision -p")
    for name in SILOS:
        do("fafed silos site", kits, north=name, **{str(tmp_path / "north"): str(tmp_path / name)})
    do("fafed silos server", kits, **{"test.npz": str(tmp_path / "test.npz")})
    members = [Member(kits / name) for name in ("localhost", *SILOS)]
    try:
        for member in members:
            do("./startup/start.sh", member.kit)
        shutil.copytree(kits / "admin@fafed.org", tmp_path / "admin@fafed.org")
        shown = do("fafed silos run")
        assert "finished" in shown
        place = RunDir.for_experiment(found, kits / "runs")
        torch.testing.assert_close(
            final(place), final(RunDir(tmp_path / "simulated")), rtol=1e-6, atol=1e-7
        )
        assert place.records()[-1].test["accuracy"] > 0
        wanted = fafed.load(place.path).state_dict()
        for name in SILOS:
            (own,) = (kits / name / "fafed" / "runs").iterdir()
            got = fafed.load(own).state_dict()
            assert all(torch.equal(wanted[key], leaf) for key, leaf in got.items())
        do("fafed export nvflare")
        assert not list((tmp_path / "jobs").rglob("*.py"))  # no code travels
        do("nvflare job submit")
        (tmp_path / "jobs/hospitals/app/custom").mkdir()
        (tmp_path / "jobs/hospitals/app/custom/evil.py").write_text("raise SystemExit")
        hostile(tmp_path / "admin@fafed.org", tmp_path / "jobs/hospitals")
        do("nvflare system disable-client")
    finally:
        for member in members:
            (member.kit / "shutdown.fl").touch()  # what stop_fl.sh does
        for member in members:
            for process in member._all():
                process.kill()
    leaving = (kits / "runs").rglob("audit.jsonl")
    assert not any(str(tmp_path / name) in p.read_text() for p in leaving for name in SILOS)
