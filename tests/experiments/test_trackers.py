from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fafed
from fafed import ConfigError, Record
from fafed.experiments.trackers import open_tracker

CONFIG = {
    "name": "demo",
    "rounds": 2,
    "algorithm": {"name": "fafed", "eta": 0.1, "milestones": [1, 2]},
}
COSTS: dict[str, Any] = {
    "steps": 5,
    "gradients": 10.0,
    "samples": 100,
    "bytes_up": 40,
    "bytes_down": 80,
}
RECORDS = [
    Record(1, **COSTS, seconds=0.5, clients=2, train_loss=None, diagnostics={"m_norm": 3.0}),
    Record(
        2,
        **COSTS,
        seconds=1.0,
        clients=2,
        train_loss=0.75,
        train={"loss": 0.625},
        test={"accuracy": 0.5},
        diagnostics={"m_norm": 2.0},
    ),
]


def send(spec: str, records: Sequence[Record] = RECORDS, **options: bool) -> None:
    tracker = open_tracker(spec, "fafed-seed0", CONFIG, **options)
    for record in records:
        tracker.record(record)
    tracker.close()


def test_the_clients_loss_and_the_servers_have_two_names() -> None:
    row = RECORDS[1].flat()
    assert (row["train_loss"], row["server_train_loss"]) == (0.75, 0.625)
    assert row["test_accuracy"] == 0.5
    assert set(row) - set(RECORDS[0].flat()) == {"server_train_loss", "test_accuracy"}


def test_an_unknown_tracker_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        open_tracker("mlfow:x", "run", {})


@pytest.mark.parametrize("spec", ["wandb", "wandb:"])
def test_a_tracker_without_a_place_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="write wandb:PROJECT"):
        open_tracker(spec, "run", {})


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_the_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ConfigError, match=rf'pip install "fafed\[{kind}\]"'):
        open_tracker(f"{kind}:somewhere", "run", {})


def test_tensorboard_reads_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason='needs pip install "fafed[tensorboard]"')
    backend = "tensorboard.backend.event_processing.event_accumulator"
    reader = importlib.import_module(backend)
    hparams = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")

    send(f"tensorboard:{tmp_path}")
    events = reader.EventAccumulator(str(tmp_path / "fafed-seed0")).Reload()

    def scalars(name: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in events.Scalars(name)]

    assert scalars("m_norm") == [(1, 3.0), (2, 2.0)]
    assert scalars("train_loss") == [(2, 0.75)]
    assert scalars("server_train_loss") == [(2, 0.625)]
    assert scalars("test_accuracy") == [(2, 0.5)]
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    sent = hparams.HParamsPluginData.FromString(content).session_start_info.hparams
    assert sent["algorithm.eta"].number_value == 0.1
    assert sent["algorithm.milestones"].string_value == "[1, 2]"


@pytest.mark.filterwarnings("default")  # MLflow's own dependencies warn
def test_mlflow_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # artifacts of a database store go to the working directory
    mlflow = pytest.importorskip("mlflow", reason='needs pip install "fafed[mlflow]"')

    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    send(f"mlflow:{uri}")
    send(f"mlflow:{uri}")
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("demo").experiment_id
    runs = client.search_runs([experiment])
    assert len(runs) == 2
    run = runs[0]
    assert run.info.run_name == "fafed-seed0"
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.eta"] == "0.1"
    assert run.data.params["algorithm.milestones"] == "[1, 2]"
    history = client.get_metric_history(run.info.run_id, "m_norm")
    assert [(point.step, point.value) for point in history] == [(1, 3.0), (2, 2.0)]
    assert [p.step for p in client.get_metric_history(run.info.run_id, "train_loss")] == [2]

    send(f"mlflow:{uri}", [replace(RECORDS[1], round=3)], resumed=True)
    assert len(client.search_runs([experiment])) == 2
    run = client.get_run(run.info.run_id)
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "m_norm")
    assert [point.step for point in history] == [1, 2, 3]

    linear = torch.nn.Linear(2, 1)
    shards = [(torch.zeros(4, 2), torch.zeros(4, 1))]
    options = {"algorithm": fafed.FedAvg(eta=0.1), "rounds": 3, "batch_size": 2}
    options |= {"loss": torch.nn.functional.mse_loss}
    run = fafed.start(linear, shards, track=f"mlflow:{uri}", quiet=True, **options)
    next(iter(run))
    assert len(list(run)) == 2  # a second loop goes on
    everything = [e.experiment_id for e in client.search_experiments()]
    (own,) = (r for r in client.search_runs(everything) if r.info.run_name != "fafed-seed0")
    history = client.get_metric_history(own.info.run_id, "train_loss")
    assert [point.step for point in history] == [1, 2, 3]


@pytest.mark.filterwarnings("default")  # as above
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    pytest.importorskip("wandb", reason='needs pip install "fafed[wandb]"')

    send("wandb:demo")
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"test_accuracy" in content
    assert b"m_norm" in content
