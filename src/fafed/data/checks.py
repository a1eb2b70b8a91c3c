"""Check before the first round that data fit the model and each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch, labels_of
from fafed.data.sources.examples import Examples, Shuffled, Source
from fafed.data.sources.lazy import LazyPart
from fafed.data.sources.reader import has_nan
from fafed.errors import DataError

log = logging.getLogger("fafed")

IGNORED = -100  # the label that torch's cross entropy ignores


def check_labels(
    source: Source, clients: Iterable[int], classes: int | None, ignored: int | None
) -> None:
    """Refuse labels that are not below the number of classes (None: labels are not classes), and
    clients whose labels are all ignored by the loss."""
    if not isinstance(source, Examples):
        return
    labels = labels_of(source.pool)
    if labels is None:
        return
    none = torch.zeros_like(labels, dtype=torch.bool)
    wrong = none if classes is None else _wrong(labels, classes)
    left_out = none if ignored is None else labels == ignored
    for client in clients if wrong.any() or left_out.any() else ():
        own = torch.from_numpy(source.parts[client]).to(labels.device)
        found = labels[own][wrong[own]]
        if classes is not None and len(found):
            raise _label(f"client {client}", int(found[0]), classes)
        if left_out[own].all():
            raise _no_labels(f"client {client}", ignored)


def check_sizes(source: Source) -> None:
    """Warn if a batch is larger than the data of a client."""
    size = getattr(source, "batch_size", None)
    if not isinstance(source, Shuffled) or not isinstance(size, int):
        return
    small = [client for client, n in enumerate(source.examples) if n < size]
    if small:
        log.warning(
            "client %d has %d examples, fewer than batch_size = %d: they repeat within a batch%s",
            small[0],
            source.examples[small[0]],
            size,
            f" (so do those of {len(small) - 1} other clients)" if len(small) > 1 else "",
        )


def check_numbers(source: Source, clients: Iterable[int]) -> None:
    """Refuse NaN in the tensors of these clients. Data that is read later is checked then."""
    if not isinstance(source, Examples):
        return
    for leaf in tree.leaves(source.pool):
        if not has_nan(leaf):
            continue
        for client in clients:
            own = leaf[torch.from_numpy(source.parts[client]).to(leaf.device)]
            if has_nan(own):
                raise DataError(
                    f"client {client} has {int(torch.isnan(own).sum())} NaN in its data: clean it, "
                    "training would only spread it"
                )


def check_measured(
    parts: Mapping[str, Callable[[], Iterable[Batch]]],
    classes: int | None,
    source: Source,
    ignored: int | None,
) -> None:
    """Refuse evaluation data that are not like the clients' data, or have wrong labels. Data
    that is read batch by batch is checked as it is read."""
    for name, batches in parts.items():
        if isinstance(batches, LazyPart):
            continue
        found = [batch.data for batch in batches()]
        if not found:
            raise DataError(f"{name}: it has no examples; leave it out, or give it some")
        if any(has_nan(leaf) for data in found for leaf in tree.leaves(data)):
            raise DataError(f"{name}: it holds NaN; clean it")
        if isinstance(source, Examples):
            _check_agrees(found[0], source.pool, name)
        every = [own for own in map(labels_of, found) if own is not None]
        for labels in every:
            if classes is not None and (wrong := _wrong(labels, classes)).any():
                raise _label(name, int(labels[wrong][0]), classes)
        if every and ignored is not None and all((own == ignored).all() for own in every):
            raise _no_labels(name, ignored)


def _check_agrees(data: Any, clients: Any, name: str) -> None:
    if isinstance(data, Mapping) or isinstance(clients, Mapping):
        names, own_names = (sorted(d) if isinstance(d, Mapping) else [] for d in (data, clients))
        if names != own_names:
            raise DataError(
                f"{name}: it has the names {names}, the clients' data {own_names}; "
                "they need the same"
            )
        data, clients = ([d[n] for n in names] for d in (data, clients))
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


def _wrong(labels: Tensor, classes: int) -> Tensor:
    return ((labels < 0) & (labels != IGNORED)) | (labels >= classes)


def _no_labels(who: str, ignored: int | None) -> DataError:
    return DataError(
        f"{who} has no label but {ignored}, which the loss ignores: leave it out, or give it labels"
    )


def _label(who: str, label: int, classes: int) -> DataError:
    return DataError(
        f"{who} has the label {label}, but the model has {classes} outputs: labels must be 0 to "
        f"{classes - 1}"
    )
