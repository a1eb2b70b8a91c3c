"""A Flower federation on this machine, made by the commands of docs/silos.md."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from fafed.experiments.rundir import RunDir

GUIDE = Path(__file__).parents[2] / "docs" / "silos.md"
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; Flower's own is 1
    "OMP_NUM_THREADS": "1",
}


def section() -> str:
    return GUIDE.read_text("utf-8").split("\n## Flower\n")[1]


def commands() -> list[str]:
    """What the guide's Flower section tells to type."""
    plain = [b for b in section().split("```")[1::2] if b.startswith("\n")]
    lines = "".join(plain).replace("\\\n", " ").splitlines()
    return [" ".join(line.split("  #")[0].split()) for line in lines if line.strip()]


class Flower:
    """One SuperLink, and SuperNodes that each have a folder of their own."""

    def __init__(self, folder: Path) -> None:
        from fafed.silos.transports.nvflare.local_federation import free_port

        self.folder = folder
        self.port, self.node_port = free_port(), free_port
        self.orders = folder / "orders"  # see flower_silo.py
        self.orders.mkdir(parents=True)
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (self.home / "config.toml").write_text(
            section()
            .split("```toml")[1]
            .split("```")[0]
            .replace("fl.example.org", "localhost")
            .replace(":8000", f":{self.port}")
            .replace("ca.crt", str(folder / "ca.crt"))
        )
        self.processes: dict[str, subprocess.Popen] = {}

    def typed(self, start: str, silo: str = "north") -> str:
        """The guide's command that begins so, for this machine."""
        (line,) = [one for one in commands() if one.startswith(start)]
        here = {"fl.example.org:8000": f"127.0.0.1:{self.port}", "fl.example.org": "localhost"}
        here |= {"--port 8000": f"--port {self.port}", "0.0.0.0": "127.0.0.1", "north": silo}
        here |= {"--port 9094": f"--port {self.node_port()}", "/srv/fafed": str(self.folder)}
        for old, new in here.items():
            if start.startswith("fafed") and old == "north":
                continue
            line = line.replace(old, new)
        return line

    @property
    def env(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        found = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
        code = os.pathsep.join(filter(None, found))
        own = {"FLWR_HOME": str(self.home), "PATH": path, "PYTHONPATH": code}
        return os.environ | QUIET | own | {"FLOWER_ORDERS": str(self.orders)}

    def do(self, line: str, seconds: float = 60, code: int | None = 0) -> str:
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.env, timeout=seconds, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert code is None or done.returncode == code, f"{line}\n{done.stdout}"
        return done.stdout

    def start(self, name: str, line: str) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            self.processes[name] = subprocess.Popen(
                f"exec {line}", shell=True, cwd=self.folder, env=self.env | {"FLOWER_SILO": name},
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        return log

    def link(self) -> None:
        self.do(self.typed("openssl req -x509 -newkey rsa:3072 -nodes -days 3650"))
        self.do(self.typed("openssl req -x509 -newkey rsa:3072 -nodes -days 365 "))
        self.up()

    def up(self) -> None:
        log = self.start("superlink", self.typed("flower-superlink"))
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            assert self.processes["superlink"].poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)

    def nodes(self, **sites: str) -> None:
        """Registered SuperNodes, each with its own file."""
        for name, site in sites.items():
            (self.folder / f"{name}.toml").write_text(site)
            self.do(self.typed("ssh-keygen", name))
        lines = [self.typed("flwr supernode register", name) for name in sites]
        self.do(" & ".join(lines) + " & wait")
        for name in sites:
            self.start(name, self.typed("flower-supernode", name))

    def online(self, n: int, seconds: float = 60) -> None:
        """Wait for so many SuperNodes."""
        end = time.monotonic() + seconds
        while (told := self.do("flwr supernode list prod --format json")).count('"online"') < n:
            assert time.monotonic() < end, told

    def again(self, name: str, seconds: float = 300) -> None:
        """Start a killed SuperNode: refused until Flower knows that the old one is gone."""
        end = time.monotonic() + seconds
        while True:
            log = self.start(name, self.typed("flower-supernode", name))
            size = log.stat().st_size
            while self.processes[name].poll() is None:
                if b"SuperNode ID" in log.read_bytes()[size:]:
                    return
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.2)

    def kill(self, *names: str) -> None:
        """Without a warning: SIGKILL for each of them and the processes they started."""
        for process in [p for name in names for p in self.family(name)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for name in names:
            self.processes[name].wait()

    def family(self, name: str) -> list[psutil.Process]:
        try:
            first = psutil.Process(self.processes[name].pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []

    def client_apps(self, name: str) -> list[psutil.Process]:
        """The processes that compute a silo's answers, but for those that have just ended."""
        found = []
        for process in self.family(name):
            with contextlib.suppress(psutil.Error):
                if any("flwr-clientapp" in word for word in process.cmdline()):
                    found.append(process)
        return found

    def stop(self) -> None:
        """The silos first, else they keep trying to reach the SuperLink."""
        names = sorted(self.processes, key=lambda name: name == "superlink")
        families = {name: self.family(name) for name in names}
        for name in names:
            if name == "superlink":
                psutil.wait_procs([p for n in names[:-1] for p in families[n]], timeout=4)
            self.processes[name].send_signal(signal.SIGTERM)
        _, rest = psutil.wait_procs([p for found in families.values() for p in found], timeout=4)
        for process in rest:
            process.kill()
        for process in self.processes.values():
            process.wait()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The audit file of a run directory or of a silo's folder."""
    file = folder / "audit.jsonl"
    return [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []


def wait(folder: Path, seconds: float = 300, **wanted: Any) -> None:
    """Until the audit file has a line like this."""
    end = time.monotonic() + seconds
    while not any(wanted.items() <= line.items() for line in lines(folder)):
        assert time.monotonic() < end, f"{wanted} did not happen in {folder.name}"
        time.sleep(0.1)


def answered(place: RunDir, silos: tuple[str, ...]) -> dict[int, tuple[int, ...]]:
    """Whose answers a run received in each round, at the last attempt."""
    rounds: dict[tuple[int, str], set[int]] = {}
    for x in lines(place.path):
        if x["round"] and x["kind"] not in ("final", "kept"):
            who = rounds.setdefault((x["round"], x["attempt"]), set())
            if x["kind"] == "answer" and x["direction"] == "received":
                who.add(silos.index(x["peer"]))
    return {round: tuple(sorted(who)) for (round, _), who in rounds.items()}
