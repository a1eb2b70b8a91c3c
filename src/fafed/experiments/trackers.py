"""Send the records of a run to TensorBoard, MLflow or Weights & Biases.

    tracker = open_tracker("mlflow:sqlite:///runs.db", "fafed-seed0", config)
    for record in run:
        tracker.record(record)
    tracker.close()

Each tracker gets the flat record with step = round, and the config as the run's parameters. A run
that is resumed goes on under its name in TensorBoard and MLflow. In Weights & Biases it is a second
run of that name. The packages are optional and imported only when asked for.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fafed.core.extras import require
from fafed.core.records import Record
from fafed.core.run_data import flatten, show
from fafed.errors import ConfigError, nearest


class Tracker(Protocol):
    def record(self, record: Record) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in FOLDER/NAME."""

    def __init__(self, folder: str, name: str, config: Mapping[str, object], resumed: bool) -> None:
        _need("tensorboard", "tensorboard")
        tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
        self.writer = tensorboard.SummaryWriter(Path(folder) / name)
        # Not writer.add_hparams: it writes a second event file. TensorBoard then follows only the
        # newer file, but the scalars are in the older one.
        for summary in tensorboard.summary.hparams(_parameters(config), {}):
            self.writer.file_writer.add_summary(summary)

    def record(self, record: Record) -> None:
        for name, value in _numbers(record).items():
            self.writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """A run in the MLflow experiment of the same name, on the server or store at a URI."""

    def __init__(self, uri: str, name: str, config: Mapping[str, object], resumed: bool) -> None:
        _need("mlflow", "mlflow")
        from mlflow import MlflowClient  # type: ignore[import-not-found,unused-ignore]
        from mlflow.entities import (  # type: ignore[import-not-found,unused-ignore]
            Metric,
            Param,
        )

        # The client rather than mlflow.start_run: the user may have an active run.
        self.client, self.metric = MlflowClient(tracking_uri=uri), Metric
        title = str(config.get("name", "fafed"))
        known = self.client.get_experiment_by_name(title)
        experiment = known.experiment_id if known else self.client.create_experiment(title)
        if resumed and (earlier := self._earlier(experiment, name)):
            self.run = earlier
            self.client.update_run(earlier, status="RUNNING")
            return
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        parameters = [Param(key, show(value)) for key, value in _parameters(config).items()]
        for start in range(0, len(parameters), 100):  # the limit of one request
            self.client.log_batch(self.run, params=parameters[start : start + 100])

    def _earlier(self, experiment: str, name: str) -> str | None:
        """The latest run of that name."""
        found = self.client.search_runs([experiment], order_by=["attributes.start_time DESC"])
        return next((run.info.run_id for run in found if run.info.run_name == name), None)

    def record(self, record: Record) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(k, v, now, record.round) for k, v in _numbers(record).items()]
        self.client.log_batch(self.run, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run)


class WandB:
    """A run in a Weights & Biases project; WANDB_MODE=offline keeps it on this machine."""

    def __init__(
        self, project: str, name: str, config: Mapping[str, object], resumed: bool
    ) -> None:
        wandb = _need("wandb", "wandb")
        # create_new: the user may have an active run.
        self.run = wandb.init(project=project, name=name, config=dict(config), reinit="create_new")

    def record(self, record: Record) -> None:
        self.run.log(_numbers(record), step=record.round)

    def close(self) -> None:
        self.run.finish()


Open = Callable[[str, str, Mapping[str, object], bool], Tracker]
TRACKERS: dict[str, tuple[Open, str]] = {
    "tensorboard": (TensorBoard, "DIR"),
    "mlflow": (MLflow, "URI"),
    "wandb": (WandB, "PROJECT"),
}


def open_tracker(
    spec: str, name: str, config: Mapping[str, object], *, resumed: bool = False
) -> Tracker:
    """A tracker for the run `name`: "tensorboard:DIR", "mlflow:URI" or "wandb:PROJECT"."""
    kind, where = check_tracker(spec)
    return TRACKERS[kind][0](where, name, config, resumed)


def check_tracker(spec: str) -> tuple[str, str]:
    """The kind of tracker, and where its records go. What cannot be opened is refused."""
    kind, _, where = spec.partition(":")
    if kind not in TRACKERS:
        raise ConfigError(f"tracker {spec!r} is unknown; {nearest(kind, TRACKERS)}")
    if not where:
        raise ConfigError(f"tracker {spec!r} does not say where: write {kind}:{TRACKERS[kind][1]}")
    require(f"tracker {kind!r}", kind, kind)
    return kind, where


def _need(module: str, extra: str) -> Any:
    require(f"tracker {extra!r}", extra, module)
    return importlib.import_module(module)


def _numbers(record: Record) -> dict[str, float]:
    """The flat record without missing values."""
    return {name: value for name, value in record.flat().items() if value is not None}


def _parameters(config: Mapping[str, object]) -> dict[str, object]:
    """The flat config, with values that every tracker accepts."""
    plain = (bool, int, float, str)
    return {k: v if isinstance(v, plain) else show(v) for k, v in flatten(config).items()}
