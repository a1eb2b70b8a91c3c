"""A local federation: FLARE's startup kits and processes on this machine, for try-outs and tests.

FLARE's own `nvflare provision` makes the certificates. The script in each kit starts the server or
the site. A real federation does the same by hand, with one kit per institution: docs/silos.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder

from fafed.errors import ConfigError, FafedError
from fafed.silos.transports.nvflare.kit_files import close

ADMIN = "admin@fafed.org"
LIGHTER = "nvflare.lighter.impl"
BUILDERS: tuple[dict[str, Any], ...] = (
    {"path": "fafed.silos.transports.nvflare.local_federation.PrivateBuilder"},
    {
        "path": f"{LIGHTER}.workspace.WorkspaceBuilder",
        "args": {"template_file": "master_template.yml"},
    },
    {
        "path": f"{LIGHTER}.static_file.StaticFileBuilder",
        "args": {"config_folder": "config", "scheme": "grpc"},
    },
    {"path": f"{LIGHTER}.cert.CertBuilder"},
    {"path": f"{LIGHTER}.signature.SignatureBuilder"},
)
SITE = r"[A-Za-z0-9_-]{1,63}"  # names that FLARE and certificates accept: no dots
HOST = r"(?=.{1,63}$)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"
RESERVED = ("server", "admin")


class PrivateBuilder(Builder):  # type: ignore[misc]
    """Lets only the owner read the keys. `nvflare provision` writes the keys of the certificate
    authority and of all participants to `state/cert.json`, readable for every user of the machine.
    The project file names this builder. It must come first: FLARE finishes its builders in reverse
    order.
    """

    def initialize(self, project: Project, ctx: ProvisionContext) -> None:
        os.umask(0o077)

    def finalize(self, project: Project, ctx: ProvisionContext) -> None:
        close(Path(ctx.get_workspace()))


def project(silos: Iterable[str], *, host: str, port: int, name: str = "fafed") -> str:
    """The project file for `nvflare provision`."""
    clients = [participant(silo, host) for silo in silos]
    if not re.fullmatch(HOST, host):
        raise ConfigError(
            f"the server's name {host!r} is not a host name: take letters, digits, - and ., at "
            "most 63, as in fl.example.org"
        )
    if not 1 <= port <= 65535:
        raise ConfigError(f"port {port} is not between 1 and 65535")
    server = {"name": host, "type": "server", "org": "fafed"}
    admin = {"name": ADMIN, "type": "admin", "org": "fafed", "role": "project_admin"}
    content = {
        "api_version": 3,
        "name": name,
        "description": "A federation that runs fafed",
        "participants": [
            server | {"fed_learn_port": port, "admin_port": port},
            *clients,
            admin,
        ],
        "builders": list(BUILDERS),
    }
    return str(yaml.safe_dump(content, sort_keys=False))


def participant(silo: str, host: str) -> dict[str, str]:
    """A silo's entry in the project file."""
    if not re.fullmatch(SITE, silo) or silo in (*RESERVED, host):
        raise ConfigError(
            f"the silo's name {silo!r} cannot be used with FLARE: take letters, digits, - and "
            f"_, at most 63, and none of {', '.join((*RESERVED, host))}"
        )
    return {"name": silo, "type": "client", "org": re.sub(r"\W", "_", silo)}


def provision(folder: Path, silos: Sequence[str], *, host: str = "localhost") -> Path:
    """Make certificates and kits for a server and these silos. Return the folder of the kits."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "project.yml").write_text(project(silos, host=host, port=free_port()), "utf-8")
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "."]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    kits = folder / "fafed" / "prod_00"
    if done.returncode or not (kits / host / "startup").is_dir():
        raise FafedError(f"nvflare provision failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    close(folder)
    return kits


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Member:
    """A server or a site as a process of its own, started from its kit."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit.absolute()
        self.log = self.kit / "console.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # the kit's script calls python3, and the user's own modules are in the current folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        modules = f"{Path.cwd()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        command = ["bash", str(self.kit / "startup" / "sub_start.sh"), "--once"]
        self.log.touch(mode=0o600)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"PATH": path, "PYTHONPATH": modules},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach them: we stop them in order
                umask=0o077,
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def jobs(self) -> list[psutil.Process]:
        """The processes of the jobs that run here."""
        return [p for p in self._all() if self.process and p.pid != self.process.pid]

    def kill(self) -> None:
        """Kill all processes of this kit with SIGKILL, the jobs' too. Repeat until none is left: a
        process may have started a job just before its end."""
        while found := self._all():
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=5)
        if self.process:
            self.process.wait()

    def stop(self, seconds: float = 5.0) -> None:
        if self.alive and self.process:
            self.process.send_signal(signal.SIGTERM)
        psutil.wait_procs(self._all(), timeout=seconds)
        self.kill()

    def _all(self) -> list[psutil.Process]:
        """All processes of this kit, also those whose parent has died."""
        return [process for process in psutil.process_iter() if self._ours(process)]

    def _ours(self, process: psutil.Process) -> bool:
        """In this member's session, or with the kit as an argument: a job has its own session.

        The session also has the children that do not yet run the program they are started for.
        """
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            same = self.process is not None and os.getsid(process.pid) == self.process.pid
            return same or str(self.kit) in process.cmdline()
        except (psutil.Error, OSError):
            return False


class Local:
    """All members of a federation on this machine. A member that dies is started again."""

    def __init__(self, kits: Path, silos: Sequence[str], host: str = "localhost") -> None:
        self.kits = kits
        self.server = Member(kits / host)
        self.silos = {name: Member(kits / name) for name in silos}
        self.restarts = 0

    @property
    def members(self) -> list[Member]:
        return [self.server, *self.silos.values()]

    def start(self) -> None:
        for member in self.members:
            member.start()

    def watch(self) -> None:
        """Restart members that have died, as a service manager does."""
        for member in self.members:
            if not member.alive:
                self.restarts += 1
                if self.restarts > 20:
                    tail = member.log.read_text("utf-8", errors="replace")[-2000:]
                    raise FafedError(f"{member.kit.name} does not stay up; its log ends:\n{tail}")
                member.start()

    def stop(self) -> None:
        for member in [*self.silos.values(), self.server]:
            if member.alive and member.process:
                member.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        for member in self.members:
            member.stop()
