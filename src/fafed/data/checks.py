"""Whether data fit a model and each other, told before the first round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fafed.data.batches import Examples, Source
from fafed.errors import DataError

IGNORED = -100  # a label that takes no part in torch's cross entropy


def check_labels(source: Source, clients: Iterable[int], classes: int | None) -> None:
    """Refuse labels for which a model with so many outputs has none; None: they are no classes."""
    if classes is None or not isinstance(source, Examples):
        return
    labels = source.pool[-1]
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= classes)
    for client in clients if wrong.any() else ():
        own = torch.from_numpy(source.parts[client]).to(labels.device)
        found = labels[own][wrong[own]]
        if len(found):
            raise DataError(
                f"client {client} has the label {int(found[0])}, but the model has {classes} "
                f"outputs: labels must be 0 to {classes - 1}"
            )


def check_agrees(data: tuple[Tensor, ...], clients: Any, name: str) -> None:
    """Refuse an evaluation set whose examples are not like the clients'."""
    for part, own in zip(data, clients, strict=False):
        if part.shape[1:] != own.shape[1:] or len(data) != len(clients):
            raise DataError(
                f"{name}: an example is {tuple(part.shape[1:])}, the clients' are "
                f"{tuple(own.shape[1:])}; they need the same shapes"
            )
        if part.dtype != own.dtype and not (part.is_floating_point() and own.is_floating_point()):
            raise DataError(
                f"{name}: it holds {part.dtype}, the clients' data {own.dtype}; convert one of them"
            )
    if not len(data[0]):
        raise DataError(f"{name}: it has no examples; leave it out, or give it some")
