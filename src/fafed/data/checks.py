"""Check before the first round that data fit the model and each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch, labels_of
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Examples, Shuffled
from fafed.data.sources.lazy import LazyPart
from fafed.errors import DataError

Usable = Callable[[Any], bool]  # whether the loss on these examples is finite
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


def check_numbers(source: Source, clients: Iterable[int], usable: Usable) -> None:
    """Refuse clients whose examples hold NaN or infinity. An example is accepted if the loss on it
    is finite all the same: some models and losses expect such numbers. Data that is read later is
    checked then."""
    if not isinstance(source, Examples):
        return
    spoilt = _spoilt(source.pool)
    if spoilt is None:
        return
    for client in clients:
        own = source.parts[client]
        for place in spoilt[torch.from_numpy(own).to(spoilt.device)].nonzero().flatten()[:1]:
            row = int(own[place])
            _refuse_spoilt(source.pool, row, usable, f"client {client}", int(place))


def check_measured(
    parts: Mapping[str, Callable[[], Iterable[Batch]]],
    classes: int | None,
    source: Source,
    ignored: int | None,
    usable: Usable,
) -> None:
    """Refuse evaluation data that are not like the clients' data, have wrong labels, or hold NaN or
    infinity that the loss on them shows. Data that is read batch by batch is checked as it is
    read."""
    for name, batches in parts.items():
        if isinstance(batches, LazyPart):
            continue
        found = [batch.data for batch in batches()]
        if not found:
            raise DataError(f"{name}: it has no examples; leave it out, or give it some")
        if isinstance(source, Examples):
            _check_agrees(found[0], source.pool, name)
        every = [own for own in map(labels_of, found) if own is not None]
        for labels in every:
            if classes is not None and (wrong := _wrong(labels, classes)).any():
                raise _label(name, int(labels[wrong][0]), classes)
        first = 0
        for data in found:
            if (spoilt := _spoilt(data)) is not None:
                row = int(spoilt.nonzero()[0])
                _refuse_spoilt(data, row, usable, name, first + row)
            first += len(tree.leaves(data)[0])
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


def _spoilt(data: Any) -> Tensor | None:
    """Which examples hold NaN or infinity; None if there are none."""
    found = None
    for part in tree.leaves(data):
        # a sum is quick and needs no memory; it is not finite if any number is not
        if part.is_floating_point() and not part.sum().isfinite():
            rows = ~part.isfinite().flatten(1).all(1) if part.ndim > 1 else ~part.isfinite()
            found = rows if found is None else found | rows
    return found if found is not None and found.any() else None


def _refuse_spoilt(data: Any, row: int, usable: Usable, who: str, example: int) -> None:
    one = tree.take(data, slice(row, row + 1))
    if usable(one):
        return
    for name, part in _named(one):
        if part.is_floating_point() and not part.isfinite().all():
            value = float(part[~part.isfinite()][0])
            raise DataError(
                f"{who}: the {name} of example {example} hold {value}: clean them, for example "
                "with torch.nan_to_num, or leave the example out",
                fault="not finite",
            )


def _named(data: Any) -> Iterable[tuple[str, Tensor]]:
    if isinstance(data, Mapping):
        return data.items()
    return [("inputs" if i < len(data) - 1 else "targets", part) for i, part in enumerate(data)]


def _wrong(labels: Tensor, classes: int) -> Tensor:
    return ((labels < 0) & (labels != IGNORED)) | (labels >= classes)


def _no_labels(who: str, ignored: int | None) -> DataError:
    return DataError(
        f"{who} has no label but {ignored}, which the loss ignores: leave it out, or give it labels"
    )


def _label(who: str, label: int, classes: int) -> DataError:
    return DataError(
        f"{who} has the label {label}, but the model has {classes} outputs: labels must be 0 to "
        f"{classes - 1}",
        fault="labels",
    )
