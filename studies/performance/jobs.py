"""The jobs J1 to J9, and how one is written down for the runners."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed import data, models
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Examples
from fafed.data.sources.streams import Streams
from fafed.errors import DataError
from fafed.objectives.module import Model
from studies.performance.runners import harness, large_models

Rows = NDArray[np.int64]
BPTT = 35
SHAPES = {"fashion-mnist": (60_000, (1, 28, 28)), "cifar-10": (50_000, (3, 32, 32))}
VOCABULARY = 33_278  # of WikiText-2


@dataclass(frozen=True)
class Job:
    """FedAvg with all clients in every round."""

    name: str
    title: str
    model: str
    # or "made-up examples ROWS INPUTS", "made-up text TOKENS VOCABULARY", and for the large models
    # "made-up classified (or sentences) ROWS VOCABULARY", "made-up pictures ROWS PIXELS"
    dataset: str
    batch: int
    steps: int  # q
    clients: int = 20
    eta: float = 0.05
    options: dict[str, Any] = field(default_factory=dict)
    rounds: int = 3  # timed, in each repetition
    repeat: int = 3
    least: int = 20  # fewest rows of a client; clients may share rows

    @property
    def text(self) -> bool:
        return self.model == "lstm"

    @property
    def gradients(self) -> int:
        """The number of gradients in a round of FedAvg."""
        return self.clients * self.steps


def _lstm(name: str, width: int, steps: int) -> Job:
    # No dropout: each engine would draw masks of its own.
    options = {"vocabulary": VOCABULARY, "embedding": width, "hidden": width, "dropout": 0.0}
    title = f"WikiText-2, LSTM {width}/{width}"
    return Job(name, title, "lstm", "wikitext-2", 20, steps, 16, 1.0, options, rounds=1, repeat=1)


_J1 = Job("J1", "Fashion-MNIST, CNN", "fashion-cnn", "fashion-mnist", 50, 10, rounds=5)
_J2 = Job("J2", "Fashion-MNIST, CNN", "fashion-cnn", "fashion-mnist", 5, 20, rounds=10)
_J3 = Job(
    "J3", "Fashion-MNIST, MLP 784-200-10", "mlp", "fashion-mnist", 10, 10, 1_000, rounds=4, repeat=2
)
_J4 = Job("J4", "CIFAR-10, CNN", "cifar-cnn", "cifar-10", 100, 5, rounds=2, repeat=2)
_J5 = _lstm("J5", 200, 10)
_J5H = _lstm("J5H", 650, 2)  # memory does not depend on q, and a gradient takes seconds
_J6 = Job(
    "J6", "Fashion-MNIST, softmax", "softmax", "fashion-mnist", 10, 5, 10_000, rounds=4, repeat=2
)


def _large(name: str, title: str, model: str, dataset: str, batch: int, **options: int) -> Job:
    """Two clients and five steps: a round takes seconds. The rate is small: with 0.01 the ResNet's
    loss rises, and float32 itself is far from float64 then."""
    model = large_models.PREFIX + model
    return Job(name, title, model, dataset, batch, 5, 2, 0.001, options, rounds=2, repeat=1)


_J7 = _large("J7", "CIFAR-10, ResNet-18 with GroupNorm", "resnet18_gn", "cifar-10", 16)
_J8 = _large(
    "J8", "BERT-small, 64 tokens", "bert", "made-up classified 400 8000", 16, vocabulary=8000
)
_J9 = _large(
    "J9", "GPT-2 small with LoRA", "gpt2_lora", "made-up sentences 400 8000", 4, vocabulary=8000
)

JOBS = {job.name: job for job in (_J1, _J2, _J3, _J4, _J5, _J5H, _J6, _J7, _J8, _J9)}
LARGE = ("J7", "J8", "J9")
HEAVY = ("J5H", *LARGE)  # only when asked for


@dataclass(frozen=True)
class Written:
    """A job that has been written to a folder."""

    folder: Path
    job: Job
    origin: str  # "real" or "synthetic"


def write(job: Job, folder: Path, rounds: int) -> Written:
    """Write everything that a runner needs. fafed draws the rows of every client and step."""
    folder.mkdir(parents=True, exist_ok=True)
    pool, origin = load(job.dataset)
    if job.text:
        _save(folder, tokens=_passages(pool[0], job))
        parts = np.arange(job.clients * _tokens(job)).reshape(job.clients, -1)
    else:
        size = max(job.least, len(pool[0]) // job.clients)
        first = np.linspace(0, len(pool[0]), job.clients, endpoint=False, dtype=np.int64)
        parts = (first[:, None] + np.arange(size)) % len(pool[0])
        _save(folder, inputs=pool[0].numpy(), targets=pool[1].numpy())
    _save(folder, parts=parts)
    source = open_source(job, folder)
    warm = _drawn(source, job.clients, 0, 1)
    rows = np.stack([_drawn(source, job.clients, r * job.steps, job.steps) for r in range(rounds)])
    if job.text:  # a row is a window of the text
        windows, warm, rows = _windows(warm, rows)
        places = torch.from_numpy(windows)
        inputs, targets = source.tokens[places], source.tokens[places + 1]
        _save(folder, inputs=inputs.numpy(), targets=targets.numpy())
    x0 = Model(build_model(job), torch.nn.functional.cross_entropy).x0
    _save(folder, x0=x0.numpy(), warm=warm, rows=rows)
    about = {"model": job.model, "options": job.options, "eta": job.eta}
    about |= {"rounds": rounds, "clients": job.clients}
    (folder / "task.json").write_text(json.dumps(about))
    ours = {"batch": job.batch, "steps": job.steps}
    (folder / "ours.json").write_text(json.dumps(ours))
    return Written(folder, job, origin)


def build_model(job: Job) -> torch.nn.Module:
    return models.build(job.model, seed=0, **job.options)


def open_source(job: Job, folder: Path) -> Source:
    """fafed's view of the clients' data."""
    return source_of(folder, job.text, job.batch)


def source_of(folder: Path, text: bool, batch: int) -> Source:
    parts = list(harness.array(folder, "parts").numpy())
    if text:
        tokens = harness.array(folder, "tokens")
        return Streams(tokens, parts, batch_size=batch, bptt=BPTT)
    pool = harness.array(folder, "inputs"), harness.array(folder, "targets")
    return Examples(pool, parts, batch_size=batch)


@lru_cache(maxsize=1)
def load(dataset: str) -> tuple[tuple[Tensor, ...], str]:
    """The training data, and whether they are "real" or "synthetic"."""
    if dataset.startswith("made-up"):
        _, kind, count, size = dataset.split()
        if kind == "text":
            return _random_text(int(count), int(size)), "synthetic"
        if kind == "pictures":
            return _random_examples(int(count), (3, int(size), int(size))), "synthetic"
        if kind in ("classified", "sentences"):
            return _random_sentences(int(count), int(size), kind == "classified"), "synthetic"
        return _random_examples(int(count), (int(size),)), "synthetic"
    try:
        loaded = data.load(dataset)
    except DataError:  # it is not on this machine
        if dataset == "wikitext-2":
            return _random_text(2_088_628, VOCABULARY), "synthetic"
        return _random_examples(*SHAPES[dataset]), "synthetic"
    return ((loaded.train,) if isinstance(loaded, data.Text) else loaded.train), "real"


def _random_text(tokens: int, vocabulary: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, vocabulary, (tokens,), generator=_generator()),)


def _random_sentences(rows: int, vocabulary: int, classified: bool) -> tuple[Tensor, ...]:
    """Sentences of 64 tokens. Their targets are classes, or the next token of each."""
    tokens = torch.randint(0, vocabulary, (rows, 65), generator=_generator())
    targets = tokens[:, 0] % 10 if classified else tokens[:, 1:].contiguous()
    return tokens[:, :-1].contiguous(), targets


def _random_examples(rows: int, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = _generator()
    inputs = torch.randn(rows, *shape, generator=generator)
    return inputs, torch.randint(0, 10, (rows,), generator=generator)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _save(folder: Path, **arrays: Any) -> None:
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)


def _drawn(source: Source, clients: int, step: int, steps: int) -> Rows:
    """The rows that fafed's clients draw, of the shape (clients, steps, ...)."""
    draws = (source.draw(("round",), client, step, steps) for client in range(clients))
    return np.stack([d.round.rows.numpy() for d in draws])


# Text: a client owns exactly what it reads in one round. Its recurrent state therefore starts from
# zero in every round, and libraries that keep nothing between rounds compute the same.


def _tokens(job: Job) -> int:
    return job.batch * (job.steps * BPTT + 1)


def _passages(tokens: Tensor, job: Job) -> Tensor:
    return tokens[: job.clients * _tokens(job) + 1]


def _windows(warm: Rows, rows: Rows) -> tuple[Rows, Rows, Rows]:
    """The windows (n, bptt) that occur, and both sets of rows as indices of windows."""
    starts, places = np.unique(
        np.concatenate([warm[..., 0].ravel(), rows[..., 0].ravel()]), return_inverse=True
    )
    count = warm[..., 0].size
    windows = starts[:, None] + np.arange(BPTT)
    return (
        windows,
        places[:count].reshape(warm.shape[:-1]),
        places[count:].reshape(rows.shape[:-1]),
    )
