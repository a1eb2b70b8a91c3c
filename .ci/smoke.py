"""What a new user does with an installed fafed, once: `python smoke.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fafed
from fafed.experiments import model_file


def data(n: int, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(n, 8) + shift
    return inputs, (inputs @ WEIGHTS).argmax(1)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


class Noisy(torch.utils.data.Dataset):
    """A dataset with random augmentation."""

    def __init__(self, tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.tensors
        return inputs[i] + 0.1 * torch.randn(8), targets[i]


class Tagger(nn.Module):
    """Takes a mapping and returns its own loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(input_ids)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Share:
    """A metric as an object: the share of right answers."""

    def reset(self) -> None:
        self.right = self.seen = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.right += int((outputs.argmax(1) == targets).sum())
        self.seen += len(targets)

    def compute(self) -> float:
        return self.right / self.seen


torch.manual_seed(0)
WEIGHTS = torch.randn(8, 3)
clients = [data(120, i / 3) for i in range(4)]
test = data(300, 0.0)
fedavg = fafed.FedAvg(eta=0.1)
common = {
    "rounds": 12,
    "local_steps": 5,
    "batch_size": 20,
    "test": test,
    "metrics": {"accuracy": fafed.metrics.accuracy},
}

run = fafed.start(model(), clients, fedavg, folder="mine", **common)
for record in run:
    if record.round == 5:
        break
run = fafed.start(model(), clients, fedavg, folder="mine", **common)  # goes on
for _ in run:
    pass
whole = fafed.train(model(), clients, fedavg, **common)
assert torch.equal(run.x, whole.x)
assert len(run.history) == 12

assert Path("mine/model.safetensors").is_file()
loaded = fafed.load("mine", model=model())
assert torch.equal(loaded(test[0]), run.model(test[0]))
command = [sys.executable, "-m", "fafed", "export", "model", "mine", "-o", "exported.safetensors"]
subprocess.run(command, check=True)
exported = model_file.read("exported.safetensors").tensors
assert all(torch.equal(exported[name], own) for name, own in loaded.state_dict().items())


def interrupt(record: fafed.Record) -> None:
    if record.round == 4:
        os.kill(os.getpid(), signal.SIGINT)


signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
part = fafed.train(model(), clients, fedavg, on_record=interrupt, **common)
assert not part.finished
assert [record.round for record in part.history] == [1, 2, 3, 4]

compared = fafed.compare(
    model(), clients, [fedavg, fafed.SCAFFOLD(eta=0.1)], seeds=(1, 2), folder="compared", **common
)
assert compared.finished
assert len(compared.results) == 4
assert "scaffold" in str(compared)

noisy = [Noisy(tensors) for tensors in clients]
algorithm = fafed.FAFED(eta=0.005, alpha=0.9)
ways = [fafed.train(model(), noisy, algorithm, data_workers=k, **common).x for k in (0, 2)]
assert torch.equal(*ways)

folder = Path("tables")
folder.mkdir()
for name, (inputs, targets) in zip("abc", clients, strict=False):
    rows = np.column_stack([inputs.numpy(), targets.numpy()])
    header = ",".join([*(f"x{i}" for i in range(8)), "target"])
    np.savetxt(folder / f"{name}.csv", rows, "%.9g", ",", header=header, comments="")
from_files = fafed.data.from_folder(folder)
measured = {**common, "metrics": {"share": Share(), "accuracy": fafed.metrics.accuracy}}
tables = fafed.train(model(), from_files.clients, fedavg, weights="examples", **measured)
last = tables.history[-1].test
assert abs(last["share"] - last["accuracy"]) < 1e-6

mappings = [{"input_ids": inputs, "labels": targets} for inputs, targets in clients]
own = {**common, "test": {"input_ids": test[0], "labels": test[1]}}
tagged = fafed.train(Tagger(), mappings, fedavg, loss="model", **own)
torch.testing.assert_close(tagged.x, whole.x, rtol=1e-4, atol=1e-5)

spread = fafed.train(model(), clients, fedavg, client_test=0.2, personalise=3, **common)
assert {"mean", "worst", "std"} <= set(spread.history[-1].clients_test["accuracy"])
for baseline in ("local", "pooled"):
    assert fafed.train(model(), clients, fedavg, baseline=baseline, **common).finished
refused = ""
try:
    fafed.train(model(), clients, fedavg, **{**common, "local_steps": 0})
except fafed.ConfigError as error:
    refused = str(error)
assert "local_steps" in refused
print(whole)
