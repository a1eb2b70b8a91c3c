"""The life cycle in docs/silos.md, typed as printed, with real processes: stop and restart, a silo
that joins, one that leaves, a backup, and new certificates. One run goes through all of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from guide import ADMIN, Machine, commands
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from nvflare.fuel.flare_api.flare_api import new_secure_session

from fafed.silos.transports.nvflare.certificates import ends
from fafed.silos.transports.nvflare.local_federation import Member, free_port

FIRST = ("north", "south", "west")
ROUNDS, SLOW = 20, "slow_silo:Slow"
HELPERS = Path(__file__).parents[1] / "helpers"


class Federation:
    """Machines with kits: a coordinator, a server, and silos that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.members = folder, {}
        write_data(folder / "data", 4, examples=100)
        content = {"batch_size": 32, "opening_batch_size": 48, "rounds": ROUNDS}
        content |= {"model": {"name": SLOW, "inputs": 6, "outputs": 3}, "name": "hospitals"}
        self.experiment = Experiment.from_dict(experiment(folder / "data", **content))
        self.coordinator = Machine(folder / "coordinator")
        port = f"--host localhost --port {free_port()}"
        self.coordinator.type(f"fafed silos project {port} --silos {','.join(FIRST)} > project.yml")
        self.coordinator.type("nvflare provision -p project.yml -w .")
        (self.coordinator.folder / "hospitals.toml").write_text(self.experiment.to_toml())
        shutil.copytree(self.kits / ADMIN, self.coordinator.folder / ADMIN)
        self.server = self.machine("localhost")
        self.server.type(f"fafed silos server localhost --runs runs --allow {SLOW}")

    @property
    def kits(self) -> Path:
        """The newest folder with kits."""
        return max((self.coordinator.folder / "fafed").glob("prod_*"))

    def machine(self, name: str) -> Machine:
        made = Machine(self.folder / name)
        shutil.copytree(self.kits / name, made.folder / name)
        self.members[name] = Member(made.folder / name)
        return made

    def silo(self, name: str, number: int) -> Machine:
        made = self.machine(name)
        (made.folder / "records").mkdir()
        source = self.folder / "data" / f"client-{number}.npz"
        shutil.copy(source, made.folder / "records" / "records.npz")
        made.type(f"fafed silos site {name} --data records --allow {SLOW}")
        return made

    def start(self, *names: str) -> None:
        for name in names or self.members:
            Machine(self.members[name].kit).type(commands("Stop and restart")[1])

    def stop(self) -> None:
        for member in self.members.values():
            Machine(member.kit).type(commands("Stop and restart")[0])
        end = time.monotonic() + 90
        while any(member._all() for member in self.members.values()):
            assert time.monotonic() < end, "stop_fl.sh does not stop them"
            time.sleep(0.5)

    def begin(self, silos: str, **changes: object) -> tuple[subprocess.Popen, RunDir]:
        """The coordinator's command, under way."""
        found = self.experiment.changed(**changes)
        sets = [part for k, v in changes.items() for part in ("--set", f"{k}={v}")]
        command = [sys.executable, "-m", "fafed", "silos", "run", "hospitals.toml", "--kit", ADMIN]
        command += ["--silos", silos, "--min-silos", "2", "--patience", "30"]
        command += sets
        with (self.folder / "run.txt").open("a") as told:
            process = subprocess.Popen(
                command, cwd=self.coordinator.folder, stdout=told, stderr=subprocess.STDOUT
            )
        return process, RunDir.for_experiment(found, self.server.folder / "runs")

    def until(self, process: subprocess.Popen, place: RunDir, rounds: int) -> list[int]:
        """Stop the command after so many rounds. How many silos there were in each."""
        end = time.monotonic() + 240
        while place.round() < rounds and process.poll() is None:
            assert time.monotonic() < end, (self.folder / "run.txt").read_text()
            time.sleep(0.1)
        if process.poll() is None and rounds < place.experiment().rounds:
            process.send_signal(signal.SIGINT)
        process.wait(120)
        assert place.round() >= rounds, (self.folder / "run.txt").read_text()
        return [record.clients for record in place.records()]

    def connected(self) -> set[str]:
        session = new_secure_session(ADMIN, str(self.coordinator.folder / ADMIN))
        try:
            return {client.name for client in session.get_connected_client_list()}
        finally:
            session.close()

    def end(self) -> None:
        for member in self.members.values():
            (member.kit / "shutdown.fl").touch()
        for member in self.members.values():
            member.kill()


@pytest.mark.hosted
def test_the_life_of_a_federation(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOW_SILO", "0.1")
    monkeypatch.setenv("PYTHONPATH", f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    here, three = Federation(tmp_path), ",".join(FIRST)
    silos = {name: here.silo(name, i) for i, name in enumerate(FIRST)}
    try:
        here.start()
        process, place = here.begin(three)
        here.until(process, place, 3)
        here.stop()
        here.start()
        before = place.round()  # a round in which the silos are stopped may lack some
        process, same = here.begin(three)
        assert same.path == place.path
        assert here.until(process, place, before + 3)[before : before + 3] == [3, 3, 3]

        for line in commands("Add a silo"):
            here.coordinator.type(line)
        silos["east"] = here.silo("east", 3)
        here.start("east")
        four = here.begin(f"{three},east", seed=1, rounds=2)
        assert here.until(*four, 2) == [4, 4]

        for line in commands("Remove a silo"):
            here.coordinator.type(line)
        end = time.monotonic() + 60
        while "west" in here.connected():
            assert time.monotonic() < end
            time.sleep(1)

        here.stop()
        (backup,) = commands("Backup")
        north = silos["north"].folder
        silos["north"].type(backup)
        shutil.rmtree(north / "north")
        with tarfile.open(north / "backup.tgz") as file:
            file.extractall(north, filter="fully_trusted")

        _, again, server = commands("Upgrade")  # pip stays out of a test
        for name, machine in silos.items():
            machine.type(again.replace("north", name))
        here.server.type(server.replace("fl.example.org", "localhost"))

        *made, renew = commands("Certificates end")
        for line in made:
            here.coordinator.type(line)
        assert not (here.kits / "west").exists()
        del here.members["west"], silos["west"]
        old = ends(north / "north")
        for name, machine in {"localhost": here.server, ADMIN: here.coordinator, **silos}.items():
            shutil.copytree(here.kits / name, machine.folder / "new" / name)
            machine.type(renew.replace("north", name))
        assert ends(north / "north") > old
        here.start()
        before = place.round()
        process, same = here.begin(three)
        assert here.until(process, place, ROUNDS)[before:] == [2] * (ROUNDS - before)
        assert process.returncode == 0
    finally:
        here.end()
