"""Who may speak to a silo and to the server over FLARE, and who may read their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from small import experiment, write_data, write_experiment
from typer.testing import CliRunner

from fafed import ConfigError, FafedError
from fafed.cli import app
from fafed.errors import DataError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import messages
from fafed.silos.messages import EMPTY, ExchangeId, Message
from fafed.silos.server import FederationConfig

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyService

from fafed.silos.transports.nvflare import gate
from fafed.silos.transports.nvflare.endpoint import Endpoint, letters, opened
from fafed.silos.transports.nvflare.gate import Refusals, server_refuses, silo_refuses
from fafed.silos.transports.nvflare.job import policy_in_the_way
from fafed.silos.transports.nvflare.kit_files import install, outdated
from fafed.silos.transports.nvflare.local_federation import project, provision
from fafed.silos.transports.nvflare.try_out import attempt, for_silos

SITE = 'folder = "../kept"\nallow = ["softmax"]\n[data]\nshare = true\n'


@pytest.mark.parametrize(
    ("me", "origin", "heard"),
    [
        ("north", "server", True),
        ("north.job", "server.job", True),
        ("north.job", "north", True),
        ("north", "north.job", True),
        ("north.job", "south.job", False),
        ("north", "south", False),
        ("north", "northern.job", False),
        ("north", "", False),
        ("north", "_admin_1", False),
    ],
)
def test_a_silo_listens_to_the_server_and_to_itself(me, origin, heard):
    assert (silo_refuses(me, origin) == "") == heard


@pytest.mark.parametrize(
    ("neighbour", "origin", "subject", "heard"),
    [
        ("north", "north.job", "fafed:fafed", True),
        ("north.job", "north", "fafed:fafed", True),
        ("server.job", "server.job", "server_command:app_command", True),
        ("server", "server", "server_command:app_command", True),
        ("server", "north.job", "server_command:get_task", True),  # forwarded to the job
        ("south", "server.job", "fafed:fafed", False),
        ("south", "north.job", "fafed:fafed", False),
        ("south", "", "fafed:fafed", False),
        ("server", "north.job", "server_command:app_command", False),
        ("north", "north.job", "server_command:abort", False),
        ("north", "north.job", "server_parent_listener:heartbeat", False),
    ],
)
def test_nobody_speaks_to_the_server_in_another_name(neighbour, origin, subject, heard):
    assert (server_refuses(neighbour, origin, *subject.split(":")) == "") == heard


def told(endpoint, message, origin):
    (letter,) = letters(message, "t")
    packed = letter.packed()
    packed.set_header(MessageHeaderKey.ORIGIN, origin)
    reply = endpoint.take(packed)
    return (
        opened(reply) if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK else None
    )


def settled():
    """Refusals are noted in threads of their own."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "_note" in thread.name:
            thread.join()


def audited(folder: Path) -> list[dict]:
    settled()
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def test_a_silo_takes_letters_of_the_servers_job_alone(tmp_path):
    file = tmp_path / "fafed.toml"
    file.write_text(f'folder = "{tmp_path}"\nallow = []\n[data]\nshare = true\n')
    endpoint = Endpoint(file, "north", "server.job", Refusals("north", file))
    hello = messages.write("hello", ExchangeId("run"), {}, EMPTY)
    for origin in ("south.job", "server", "server.other", ""):
        assert told(endpoint, hello, origin) is None
    lines = audited(tmp_path)
    assert {line["peer"] for line in lines} == {"south.job", "server", "server.other", ""}
    assert {line["direction"] for line in lines} == {"refused"}
    assert told(endpoint, hello, "server.job") is not None


def test_a_silo_that_does_not_take_part_says_why_and_does_nothing(tmp_path):
    file = tmp_path / "fafed.toml"
    file.write_text(f'folder = "{tmp_path}"\nallow = []\n[data]\nshare = true\n')
    endpoint = Endpoint(file, "north", "server.job", Refusals("north", file), "its policy")
    at = ExchangeId("run")
    answer = told(endpoint, messages.write("hello", at, {}, EMPTY), "server.job")
    found = messages.read(Message(answer.head, b""), at, {"refused": {}}, 1000)
    assert found.facts == {"why": "its policy"}
    (line,) = audited(tmp_path)
    assert (line["direction"], line["kind"], line["why"]) == ("sent", "refused", "its policy")
    assert "does not take part: its policy" in (tmp_path / "log.txt").read_text()


def test_an_attacker_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "PER_MINUTE", 5)
    file = tmp_path / "fafed.toml"
    file.write_text(f'folder = "{tmp_path}"\nallow = []\n[data]\nshare = true\n')
    refusals = Refusals("north", file)
    for number in range(50):
        refusals("south", "x" * 10_000, f"reason {number}")
    lines = audited(tmp_path)
    assert len(lines) == 4
    assert max(len(line["kind"]) for line in lines) == 200


BAD = ["a\nb", "a: b", "a b", "a'", "\u00e4", "a/b", "x" * 64, "..", "-a"]


@pytest.mark.parametrize("name", BAD)
def test_a_silos_name_is_a_name(name):
    with pytest.raises(ConfigError, match="the silo's name"):
        FederationConfig.with_defaults(["north", name])
    done = CliRunner().invoke(app, ["silos", "project", "--host", "h", "--silos", name])
    assert isinstance(done.exception, ConfigError)


def test_a_silos_name_adds_nothing_to_the_project_file():
    """It became a second administrator."""
    name = "a\n    type: client\n    org: a\n  - name: eve@x.org\n    type: admin\n    org: a"
    with pytest.raises(ConfigError, match="letters, digits"):
        project([name], host="h", port=1)
    for name in ("server", "admin", "h", "a.b", "server.job"):
        with pytest.raises(ConfigError, match="cannot be used with FLARE"):
            project([name], host="h", port=1)
    for host in ("h\n", "h: x", "", "-h", "h" * 64):
        with pytest.raises(ConfigError, match="not a host name"):
            project(["a"], host=host, port=1)
    with pytest.raises(ConfigError, match="port 0"):
        project(["a"], host="h", port=0)
    found = yaml.safe_load(project(["no", "1e3"], host="fl.example.org", port=8002))
    names = [(p["name"], p["type"]) for p in found["participants"]]
    assert names == [
        ("fl.example.org", "server"),
        ("no", "client"),
        ("1e3", "client"),
        ("admin@fafed.org", "admin"),
    ]


def open_to_others(folder: Path) -> list[Path]:
    found = [path for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    return [path for path in found if path.stat().st_mode & 0o077]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    before = os.umask(0o022)
    try:
        return provision(tmp_path_factory.mktemp("kits"), ["north"])
    finally:
        os.umask(before)


def test_kits_are_for_their_owner_alone(kits):
    """Also the keys of all participants, which provisioning leaves behind."""
    state = kits.parent / "state" / "cert.json"
    assert "pri_key" in state.read_text()
    assert not open_to_others(kits.parents[1])
    assert os.access(kits / "north/startup/start.sh", os.X_OK)
    before = os.umask(0o022)
    try:
        install(kits / "north", SITE)
    finally:
        os.umask(before)
    assert not open_to_others(kits)


def test_a_job_may_use_one_class_and_no_other(kits):
    for kit, name in (("north", "FafedExecutor"), ("localhost", "FafedController")):
        local = kits / kit / "local"
        content = SITE if kit == "north" else ""
        install(kits / kit, content)
        install(kits / kit, content)  # twice does no harm
        found = json.loads((local / "resources.json").read_text())
        assert found["class_allow_list"] == [f"fafed.silos.transports.nvflare.job.{name}"]
        assert found["class_list_enforcement_mode"] == "enforce"
        ids = [part["id"] for part in found["components"]]
        assert ids[0] == "fafed_gate"
        assert len(set(ids)) == len(ids)
        assert outdated(kits / kit) == ""
        found["components"] = found["components"][1:]
        (local / "resources.json").write_text(json.dumps(found))
        assert f"the kit {kit} was set up by an older fafed" in outdated(kits / kit)


FILTER = {"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars", "args": {}}


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        (None, False),
        ({"scopes": []}, False),
        ({"scopes": [{"name": "a"}], "default_scope": "a"}, False),
        ({"scopes": [{"name": "a", "task_result_filters": [FILTER]}], "default_scope": "a"}, True),
        ({"scopes": [{"name": "a", "task_data_filters": [FILTER]}], "default_scope": "a"}, True),
        ({"scopes": [{"name": "a"}, {"name": "b", "task_data_filters": [FILTER]}]}, True),
        ({"scopes": [{"name": "b"}], "components": [FILTER | {"id": "x"}]}, True),
    ],
)
def test_a_silo_with_a_privacy_policy_of_its_own(tmp_path, monkeypatch, policy, refused):
    """FLARE's own reading of the file decides what applies to the job, here one of the scope b
    if there is one, else of the default."""
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()
    if policy is not None:
        (tmp_path / "local" / "privacy.json").write_text(json.dumps(policy))
    manager = create_privacy_manager(Workspace(str(tmp_path), "north"), names_only=False)
    monkeypatch.setattr(PrivacyService, "manager", manager)
    context = FLContext()
    scope = "b" if policy and any(s["name"] == "b" for s in policy["scopes"]) else ""
    context.set_prop(FLContextKey.JOB_META, {"scope": scope}, private=True)
    why = policy_in_the_way(context)
    assert ("local/privacy.json" in why and "remove them" in why) == refused
    assert bool(why) == refused


def test_a_try_out_finds_a_folder_of_data_as_a_run_does(tmp_path, monkeypatch):
    """The silos' processes have other working directories."""
    monkeypatch.chdir(tmp_path)
    for given, meant in (("hospitals", tmp_path / "hospitals"), ("/srv/x", Path("/srv/x"))):
        found = for_silos(Experiment.from_dict(experiment(Path(given))), 3)
        assert found.data.folder == str(meant)
        assert for_silos(found, 3) == found


def test_data_that_does_not_fit_is_refused_before_anything_is_started(tmp_path):
    """By the silos, the words would be: it failed, and its own log says why."""
    found = Experiment.from_dict(experiment(tmp_path / "hospitals"))
    with pytest.raises(DataError, match="hospitals is not a folder"):
        attempt([for_silos(found, 3)], 3, tmp_path / "runs")
    write_data(tmp_path / "hospitals", 2)
    with pytest.raises(ConfigError, match="data has 2 clients, but there are 3 silos"):
        attempt([for_silos(found, 3)], 3, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_gate_of_a_parent_process_needs_no_torch():
    """Two more processes on each machine would hold it in memory."""
    code = "import sys, fafed.silos.transports.nvflare.gate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_that_was_simulated_is_not_shown_as_one_of_silos(tmp_path):
    """Both have the same folder, because they have the same numbers."""
    write_data(tmp_path / "data", 3)
    file = write_experiment(tmp_path / "small.toml", tmp_path / "data", rounds=1, engine="loop")
    found = for_silos(Experiment.read(file), 3)
    place = RunDir.for_experiment(found, tmp_path / "runs")
    execute(found, place)
    command = ["silos", "try", str(file), "--silos", "3", "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, FafedError)
    assert f"{place.path} is finished, without silos: give this run another folder" in str(
        done.exception
    )
    place.write("silos.json", "{}")
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert done.stderr == f"already finished: {place.path}\n"
    file.write_text(found.to_toml())
    done = CliRunner().invoke(app, ["run", str(file), "--runs", str(tmp_path / "runs")])
    assert done.stderr == f"already finished, by real silos: {place.path}\n"
