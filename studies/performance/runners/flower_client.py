"""Flower's client. A module of its own, so that an actor keeps task and model between messages."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from studies.performance.runners import harness
from studies.performance.runners import plain_models as models

FOLDER = "BENCHMARK_TASK"  # environment variable: actors inherit it
app = ClientApp()


@lru_cache(maxsize=1)
def prepared() -> tuple[harness.Task, torch.nn.Module]:
    torch.set_num_threads(1)
    task = harness.read(Path(os.environ[FOLDER]))
    return task, models.build(task.model, task.options, task.x0)


@app.train()
def train(message: Message, context: Context) -> Message:
    task, model = prepared()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    models.begin(model)
    optimizer = torch.optim.SGD(models.trained(model).values(), lr=task.eta)
    round = int(message.content["config"]["server-round"]) - 1
    for inputs, targets in task.batches(round, int(context.node_config["partition-id"])):
        optimizer.zero_grad()
        models.loss(model, inputs, targets).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(models.state(model)),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(content=RecordDict(content), reply_to=message)
