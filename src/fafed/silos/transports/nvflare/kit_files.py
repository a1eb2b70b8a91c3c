"""The files that fafed writes into a FLARE startup kit.

    local/fafed.toml       on a silo: its data, its folder, what may run (fafed.silos.site)
                           on the server: runs = "FOLDER", measure = "FILE", what may run there
                           (allow), what one silo may do to a run ([bounds], fafed.silos.bounds)
    local/resources.json   FLARE's own: a job may use one class of fafed and no other, and the
                           parent process has a gate (fafed.silos.transports.nvflare.gate)
    local/comm_config.json     FLARE's own: how long it waits on a slow link
    local/authorization.json   on a silo: nobody may send code, read files, or operate it

FLARE's simulator has no kits. There the variable FAFED_SILO names the silos' files, with {name} for
the silo, and FAFED_SERVER names the server's file.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fafed.errors import ConfigError
from fafed.experiments.config import Part, explained
from fafed.silos.bounds import Bounds
from fafed.silos.site import Kit

SERVER_CLASS = "fafed.silos.transports.nvflare.job.FafedController"
SILO_CLASS = "fafed.silos.transports.nvflare.job.FafedExecutor"
GATE = {"id": "fafed_gate", "path": "fafed.silos.transports.nvflare.gate.Gate", "args": {}}
LINK = {
    "streaming_retry_wait": 15.0,  # seconds; shorter than a piece takes, it would be sent twice
    "streaming_ack_interval": 2**20,  # bytes; a slow link must acknowledge within a minute
}
MEMBERS = {"client": "a silo", "servers": "the server", "admin": "an administrator"}
FORBIDDEN = ("byoc", "operate", "shell_commands", "server-predeployed-flwr")  # on a silo


class ServerFile(Part):
    runs: Path = Field(default=Path("fafed-runs"), strict=False)
    measure: str | None = None  # a file with data for evaluation, or "share"
    table: dict[str, Any] = Field(default_factory=dict)  # rules for that file, if it is a table
    allow: list[str] = Field(default_factory=list)  # code beside fafed's own that may run here
    bounds: Bounds = Bounds()


def silo_file(root: Path, name: str) -> Path:
    given = os.environ.get("FAFED_SILO")
    return Path(given.replace("{name}", name)) if given else root / "local" / "fafed.toml"


def server_file(root: Path) -> ServerFile:
    path = Path(os.environ.get("FAFED_SERVER") or root / "local" / "fafed.toml")
    try:
        text = path.read_text("utf-8") if path.is_file() else ""
        found = ServerFile.model_validate(tomllib.loads(text))
    except (OSError, tomllib.TOMLDecodeError) as cause:
        raise ConfigError(f"the server's file {path} cannot be read: {cause}") from cause
    except ValidationError as cause:
        raise ConfigError(f"the server's file {path}: {explained(cause, ServerFile)}") from None
    return found.model_copy(update={"runs": root / found.runs})


def kit_of(root: Path) -> Kit | None:
    """The silo's own certificate; None in FLARE's simulator, which has none."""
    start = root / "startup"
    found = Kit(start / "client.key", start / "client.crt", authority(root))
    return found if all(path.is_file() for path in found) else None


def authority(root: Path) -> Path:
    return root / "startup" / "rootCA.pem"


def require(kit: Path, member: str) -> None:
    """An error if this is no startup kit, or that of another kind of member (see MEMBERS)."""
    found = _resources(kit)
    if member not in found:
        theirs = next((words for key, words in MEMBERS.items() if key in found), "something else")
        raise ConfigError(f"{kit} is the kit of {theirs}: give that of {MEMBERS[member]}")


def _resources(kit: Path) -> dict[str, Any]:
    local = kit / "local"
    for path in (local / "resources.json", local / "resources.json.default"):
        if path.is_file():
            return dict(json.loads(path.read_text("utf-8")))
    raise ConfigError(
        f"{kit} is not a startup kit (it has no local/resources.json.default): give the folder "
        "that `nvflare provision` made for this member"
    )


def install(kit: Path, content: str) -> Path:
    """Put fafed's file into a kit. Allow a job only fafed's class. Let only this user read the
    kit."""
    local = kit / "local"
    found = _resources(kit)
    silo = "client" in found
    found["class_list_enforcement_mode"] = "enforce"
    found["class_allow_list"] = [SILO_CLASS if silo else SERVER_CLASS]
    ours = {GATE["id"]}
    if silo:
        # FLARE would send a site's error log, which may name paths, to the server
        found["allow_log_streaming"] = False
        ours.add("site_log_streamer")
        _forbid(local)
    others = [part for part in found.get("components", []) if part.get("id") not in ours]
    found["components"] = [GATE, *others]
    _keep_inside(found, kit)
    (local / "resources.json").write_text(json.dumps(found, indent=2), "utf-8")
    _configure_link(local)
    path = local / "fafed.toml"
    path.write_text(content, "utf-8")
    close(kit)
    return path


def _configure_link(local: Path) -> None:
    """FLARE's settings for links. Those that are in the file already stay."""
    path = local / "comm_config.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(LINK | found, indent=2), "utf-8")


def outdated(kit: Path) -> str:
    """Why a kit that fafed has configured is not safe to use; "" if it is safe, or not ours."""
    local = kit / "local"
    if not (local / "fafed.toml").is_file():
        return ""
    found = json.loads((local / "resources.json").read_text("utf-8"))
    if GATE in found["components"]:
        return ""
    return (
        f"the kit {kit.name} was set up by an older fafed and listens to other silos: run "
        "`fafed silos site` (on the server `fafed silos server`) on it again, and restart it"
    )


def close(folder: Path) -> None:
    """Let only the owner of a folder read or write it: kits hold private keys."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)


def _forbid(local: Path) -> None:
    """Take rights from the project's administrator. FLARE's defaults allow sending code with a job,
    which would replace the silo's own fafed, and reading files in the silo's kit."""
    default = json.loads((local / "authorization.json.default").read_text("utf-8"))
    rights = ("submit_job", "clone_job", "manage_job", "download_job", "view")
    for role, given in default["permissions"].items():
        allowed = dict.fromkeys(rights, given) if isinstance(given, str) else given
        default["permissions"][role] = allowed | dict.fromkeys(FORBIDDEN, "none")
    (local / "authorization.json").write_text(json.dumps(default, indent=2), "utf-8")


def _keep_inside(found: object, kit: Path) -> None:
    """Keep the server's jobs in its kit. FLARE's default folder is shared by all servers of a
    machine."""
    if isinstance(found, dict):
        for key, value in found.items():
            if isinstance(value, str) and value.startswith("/tmp/nvflare/"):
                found[key] = str(kit.absolute() / value.removeprefix("/tmp/nvflare/"))
            _keep_inside(value, kit)
    elif isinstance(found, list):
        for value in found:
            _keep_inside(value, kit)
