"""A Flower federation on this machine, made by the commands of docs/silos.md."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

GUIDE = Path(__file__).parents[2] / "docs" / "silos.md"
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
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
        from fafed.engines.nvflare.kits import free_port

        self.folder = folder
        self.port, self.node_port = free_port(), free_port
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
        return os.environ | QUIET | {"FLWR_HOME": str(self.home), "PATH": path}

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
                f"exec {line}", shell=True, cwd=self.folder, env=self.env,
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
        while "FLWR_READY" not in self.do("flwr supernode list prod && echo FLWR_READY", code=None):
            assert self.processes["superlink"].poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()

    def node(self, name: str, site: str, *, register: bool = True) -> Path:
        (self.folder / f"{name}.toml").write_text(site)
        self.do(self.typed("ssh-keygen", name))
        if register:
            self.do(self.typed("flwr supernode register", name))
        return self.start(name, self.typed("flower-supernode", name))

    def online(self, n: int, seconds: float = 60) -> None:
        """Wait for so many SuperNodes."""
        end = time.monotonic() + seconds
        while (told := self.do("flwr supernode list prod --format json")).count('"online"') < n:
            assert time.monotonic() < end, told

    def family(self, name: str) -> list[psutil.Process]:
        try:
            first = psutil.Process(self.processes[name].pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []

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
