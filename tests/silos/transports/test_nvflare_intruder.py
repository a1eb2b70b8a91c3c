"""Attacks on a federation of real processes with real certificates on NVIDIA FLARE.

Each of them succeeded before fafed had a gate: a silo read an example of another one, with its
label, and the other one's private key; it posed as the server; it ended the server's job.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from small import experiment, write_data

from fafed.experiments.config import Experiment

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from nvflare.fuel.flare_api.flare_api import new_secure_session

from fafed.silos.transports.nvflare.driver import Driver
from fafed.silos.transports.nvflare.job import FafedRecipe
from fafed.silos.transports.nvflare.local_federation import ADMIN
from fafed.silos.transports.nvflare.try_out import local_federation

pytestmark = pytest.mark.slow
STREAMER = {
    "id": "streamer",
    "path": "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
    "args": {},
}


class Over(Exception):
    """The attacker has told what it got."""


def evil_experiment(folder: Path) -> Experiment:
    return Experiment.from_dict(
        experiment(
            folder,
            rounds=300,  # more than there is time for
            engine="loop",
            eval_every=300,
            model={"name": "evil_silo:Net", "inputs": 6, "outputs": 3},
            algorithm={"name": "fedavg", "eta": 0.02},
        )
    )


def test_a_silo_attacks_the_others(tmp_path, monkeypatch):
    told = tmp_path / "told.json"
    write_data(tmp_path / "data", 2)
    found = evil_experiment(tmp_path / "data")
    (tmp_path / "experiment.json").write_text(json.dumps(found.to_dict()))
    helpers = str(Path(__file__).parents[2] / "helpers")
    monkeypatch.setenv("PYTHONPATH", helpers, prepend=os.pathsep)
    monkeypatch.setenv("EVIL_SILO", "silo-2")
    monkeypatch.setenv("EVIL_TOLD", str(told))
    monkeypatch.setenv("EVIL_EXPERIMENT", str(tmp_path / "experiment.json"))
    work = tmp_path / "work"
    with local_federation(work, [found], 2, tmp_path / "runs") as local:

        def tick():
            local.watch()
            if told.is_file():
                raise Over

        driver = Driver(
            local.kits / ADMIN, list(local.silos), username=ADMIN, min_silos=2, tick=tick
        )
        try:
            with pytest.raises(Over):
                driver.run(FafedRecipe(found, list(local.silos), deadline=60, start=60))
            # a silo of this federation takes no class of FLARE's, as one that sends its logs away
            refused_class(local, found, tmp_path / "job", driver)
        finally:
            driver.close()
        exposed = [p for p in (work, *work.rglob("*")) if p.lstat().st_mode & 0o077]
    assert not [p for p in exposed if not p.is_symlink()]
    got = json.loads(told.read_text())
    assert got["read_an_example"] is None, nearest(tmp_path / "data", got["read_an_example"])
    assert got["read_a_file"] == {"code": "timeout", "text": None}
    assert got["ask_its_job"] == {"code": "timeout"}
    assert got["pose_as_the_server"]["error"] == ""  # it was sent
    assert "__token__" in got["pose_as_the_server"]["token"]
    assert got["end_the_job"]["code"] == "timeout"
    lines = [json.loads(x) for x in (work / "silo-1" / "audit.jsonl").read_text().splitlines()]
    assert {line["run"] for line in lines if line["direction"] != "refused"}.isdisjoint(
        {"evil", "posed"}
    )
    refused = [line for line in lines if line["direction"] == "refused"]
    assert {line["peer"].split(".")[0] for line in refused} == {"silo-2"}
    kinds = {line["kind"] for line in refused}
    assert {"fafed:fafed", "admin:sys.shell", "client_command:check_status"} <= kinds
    said = (local.kits / "localhost" / "log.txt").read_text()
    assert "'silo-2' sent it in the name of 'server'" in said
    assert "only the server may send server_command:app_command" in said


def nearest(data: Path, example: dict) -> str:
    """What an attack has got, for a test that fails."""
    if "inputs" not in example:
        return str(example)
    own = np.load(data / "client-0.npz")
    error = np.abs(own["inputs"] - np.array(example["inputs"], np.float32)).max(1)
    return f"an example of the victim, to {error.min():.1e}, with the label {example['target']}"


def refused_class(local, found: Experiment, folder: Path, driver: Driver) -> None:
    driver.close()
    FafedRecipe(found, list(local.silos)).export(str(folder))
    path = folder / found.name / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["components"].append(STREAMER)
    path.write_text(json.dumps(config))
    session = new_secure_session(ADMIN, str(local.kits / ADMIN))
    try:
        number = session.submit_job(str(folder / found.name))
        until(lambda: "not in allow_list" in refusals(local, number))
        session.abort_job(number)
    finally:
        session.close()


def until(condition) -> None:
    end = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


def refusals(local, number: str) -> str:
    """What the silos say about a job."""
    logs = [member.log.read_text(errors="replace") for member in local.silos.values()]
    return "\n".join(log[log.find(number) :] for log in logs if number in log)


def test_a_silo_with_a_privacy_policy_of_its_own_does_not_take_part(tmp_path):
    write_data(tmp_path / "data", 1)
    found = Experiment.from_dict(experiment(tmp_path / "data", rounds=2, engine="loop"))
    policy = {
        "scopes": [
            {
                "name": "private",
                "task_result_filters": [
                    {"path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"}
                ],
            }
        ],
        "default_scope": "private",
    }
    with local_federation(tmp_path / "work", [found], 1, tmp_path / "runs") as local:
        local.silos["silo-1"].kill()
        path = local.kits / "silo-1" / "local" / "privacy.json"
        path.write_text(json.dumps(policy))
        local.watch()
        FafedRecipe(found, ["silo-1"], deadline=60, start=60).export(str(tmp_path / "job"))
        session = new_secure_session(ADMIN, str(local.kits / ADMIN))
        try:
            until(lambda: session.get_connected_client_list())
            session.submit_job(str(tmp_path / "job" / found.name))
            logs = (tmp_path / "runs").rglob
            until(lambda: any("take part" in path.read_text() for path in logs("log.txt")))
        finally:
            session.close()
    kept = tmp_path / "work" / "silo-1"
    (line,) = [json.loads(x) for x in (kept / "audit.jsonl").read_text().splitlines()]
    assert (line["direction"], line["kind"]) == ("sent", "refused")
    why = "local/privacy.json of this silo has filters or components for this job"
    assert line["why"].startswith(why)
    (server_log,) = (tmp_path / "runs").rglob("log.txt")
    assert f"silo 'silo-1' does not take part: {why}" in server_log.read_text()
