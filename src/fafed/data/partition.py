"""Ways to split labelled data among clients: small frozen dataclasses, filled from TOML.

    partition = {kind = "dirichlet", alpha = 0.3}

`split(labels, clients, seed)` returns one sorted array of indices per client. It depends on its
arguments alone. Inside, a split is a vector that gives each sample its owner, so no sample is lost
or given twice (`contiguous`, for text, drops a remainder). An impossible split is refused. No draw
is repeated until it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fafed.core.plugins import check_options
from fafed.errors import ConfigError, nearest

Indices = NDArray[np.int64]

# the class sets of the two groups of silos in the public code of FAFED
GROUPS = {
    "mnist": ((0, 1, 2, 5, 9), (3, 4, 6, 7, 8)),
    "fashion-mnist": ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)),
    "cifar-10": ((9, 1, 2, 3, 4), (5, 6, 7, 8, 0)),
}


class Partition(Protocol):
    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]: ...


@dataclass(frozen=True)
class IID:
    """Every client has the same random mix. Sizes differ by at most one."""

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        labels, rng = _checked(labels, clients, seed)
        owner = np.empty(len(labels), np.int64)
        owner[rng.permutation(len(labels))] = _dealt(len(labels), clients)
        return _parts(owner, clients)


@dataclass(frozen=True)
class Low:
    """A fraction `similarity` is dealt out at random. The rest is sorted by label and cut into
    contiguous pieces (SCAFFOLD, https://arxiv.org/abs/1910.06378). Sizes differ by at most one."""

    similarity: float = 0.95

    def __post_init__(self) -> None:
        _require(self, "similarity", 0 <= self.similarity <= 1, "between 0 and 1: it is a fraction")

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        labels, rng = _checked(labels, clients, seed)
        n, same = len(labels), round(self.similarity * len(labels))
        order = rng.permutation(n)
        alike, rest = order[:same], order[same:]
        owner = np.empty(n, np.int64)
        owner[alike] = _dealt(same, clients)
        pieces = np.bincount(_dealt(n, clients)) - np.bincount(owner[alike], minlength=clients)
        owner[_by_label(rest, labels)] = np.repeat(np.arange(clients), pieces)
        return _parts(owner, clients)


@dataclass(frozen=True)
class Moderate:
    """Every class is dealt out evenly, so all clients hold all classes. Sizes differ by at most
    one."""

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        labels, rng = _checked(labels, clients, seed)
        for label, count in _tally(labels):
            _require_holders(label, count, clients)
        owner = np.empty(len(labels), np.int64)
        order = _by_label(rng.permutation(len(labels)), labels)
        owner[order] = _dealt(len(labels), clients)
        return _parts(owner, clients)


@dataclass(frozen=True)
class Classes:
    """Each client holds exactly `k` classes. The clients that hold a class share it evenly.

    In turn, each client takes the k classes with the fewest clients so far; ties are broken at
    random. So every class has a client, and the numbers of clients per class differ by at most one.
    """

    k: int = 2

    def __post_init__(self) -> None:
        _require(self, "k", _positive(self.k), "an integer >= 1: a client holds at least one")

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        labels, rng = _checked(labels, clients, seed)
        tally = _tally(labels)
        if self.k > len(tally):
            raise ConfigError(
                f"each client should hold {self.k} classes, but the data has only {len(tally)}: "
                "ask for fewer"
            )
        if self.k * clients < len(tally):
            raise ConfigError(
                f"{clients} clients with {self.k} classes each cannot hold all {len(tally)} "
                f"classes: use at least {-(-len(tally) // self.k)} clients, or more classes each"
            )
        holds = np.zeros((clients, len(tally)), bool)
        for client in range(clients):
            fewest = np.lexsort((rng.random(len(tally)), holds.sum(0)))
            holds[client, fewest[: self.k]] = True
        owner = np.empty(len(labels), np.int64)
        for column, (label, count) in enumerate(tally):
            holders = np.flatnonzero(holds[:, column])
            _require_holders(label, count, len(holders))
            members = rng.permutation(np.flatnonzero(labels == label))
            owner[members] = holders[_dealt(count, len(holders))]
        return _parts(owner, clients)


@dataclass(frozen=True)
class High:
    """Disjoint data with `classes_per_client` classes each, in one of two forms.

    "random" draws the classes of each client (see `Classes`). "groups" makes one group of
    consecutive clients for each class set in `groups`, and deals the classes of a set out evenly
    within its group. Every class must be in exactly one set. `groups` may name a dataset, for the
    sets of FAFED's public code. By default the classes are cut in order.
    """

    classes_per_client: int = 5
    form: str = "random"
    groups: str | Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        k = self.classes_per_client
        _require(
            self, "classes_per_client", _positive(k), "an integer >= 1: a client holds at least one"
        )
        _require(self, "form", self.form in ("random", "groups"), "'random' or 'groups'")
        if self.groups is None:
            return
        _require(self, "groups", self.form == "groups", "left out unless form is 'groups'")
        if isinstance(self.groups, str):
            if self.groups not in GROUPS:
                raise ConfigError(
                    f"High.groups names the unknown dataset {self.groups!r}; "
                    f"{nearest(self.groups, GROUPS)}"
                )
            sets: Sequence[Sequence[int]] = GROUPS[self.groups]
        else:
            sets = self.groups
        sets = tuple(tuple(classes) for classes in sets)
        object.__setattr__(self, "groups", sets)  # as a tuple
        flat = [label for classes in sets for label in classes]
        _require(self, "groups", len(set(flat)) == len(flat), "disjoint: a class is in two sets")
        _require(
            self,
            "groups",
            len(sets) > 0 and all(len(classes) == k for classes in sets),
            f"sets of classes_per_client = {k} classes each",
        )

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        if self.form == "random":
            return Classes(self.classes_per_client).split(labels, clients, seed)
        labels, rng = _checked(labels, clients, seed)
        counts = dict(_tally(labels))
        groups = self._groups(list(counts))
        if clients < len(groups):
            raise ConfigError(
                f"{clients} clients cannot make {len(groups)} groups: use at least {len(groups)}"
            )
        owner = np.empty(len(labels), np.int64)
        group_of = np.arange(clients) * len(groups) // clients
        for group, classes in enumerate(groups):
            holders = np.flatnonzero(group_of == group)
            for label in classes:
                _require_holders(label, counts[label], len(holders))
            members = rng.permutation(np.flatnonzero(np.isin(labels, classes)))
            owner[_by_label(members, labels)] = holders[_dealt(len(members), len(holders))]
        return _parts(owner, clients)

    def _groups(self, classes: list[int]) -> Sequence[Sequence[int]]:
        if self.groups is None:
            k = self.classes_per_client
            if len(classes) % k:
                raise ConfigError(
                    f"{len(classes)} classes cannot be cut into sets of classes_per_client = {k}: "
                    "use a divisor, or give High.groups"
                )
            return [classes[i : i + k] for i in range(0, len(classes), k)]
        assert not isinstance(self.groups, str)  # resolved when built
        named = sorted(label for group in self.groups for label in group)
        if named != classes:
            raise ConfigError(
                f"High.groups holds the classes {named}, but the data has {classes}: "
                "each class must be in exactly one set"
            )
        return self.groups


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: each class is divided in proportions drawn from Dirichlet(alpha, ..., alpha)
    (https://arxiv.org/abs/1909.06335). A small alpha gives a strong skew.

    A client with fewer than `min_size` samples gets more, one at a time, from the client that is
    the largest at that moment.
    """

    alpha: float = 0.5
    min_size: int = 1

    def __post_init__(self) -> None:
        _require(self, "alpha", self.alpha > 0 and isfinite(self.alpha), "> 0 and finite")
        _require(self, "min_size", _positive(self.min_size), "an integer >= 1: no client is empty")

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        labels, rng = _checked(labels, clients, seed, self.min_size)
        owner = np.empty(len(labels), np.int64)
        for label, count in _tally(labels):
            sizes = _shares(rng.dirichlet(np.full(clients, self.alpha)), count)
            members = rng.permutation(np.flatnonzero(labels == label))
            owner[members] = np.repeat(np.arange(clients), sizes)
        sizes = np.bincount(owner, minlength=clients)
        while sizes.min() < self.min_size:
            poor, rich = sizes.argmin(), sizes.argmax()
            owner[rng.choice(np.flatnonzero(owner == rich))] = poor
            sizes[poor] += 1
            sizes[rich] -= 1
        return _parts(owner, clients)


@dataclass(frozen=True)
class Quantity:
    """Quantity skew: sizes differ, and every client has the same mix of labels. Sizes are in
    proportion to a draw from Dirichlet(alpha, ..., alpha), or to 1, 2^-exponent, 3^-exponent, ...
    Give one of the two.

    Every client first gets `min_size` samples. Then the rest is divided.
    """

    alpha: float | None = None
    exponent: float | None = None
    min_size: int = 1

    def __post_init__(self) -> None:
        if (self.alpha is None) == (self.exponent is None):
            raise ConfigError(
                f"Quantity needs alpha or exponent, one of the two, got alpha={self.alpha!r} and "
                f"exponent={self.exponent!r}"
            )
        if self.alpha is not None:
            _require(self, "alpha", self.alpha > 0 and isfinite(self.alpha), "> 0 and finite")
        if self.exponent is not None:
            _require(self, "exponent", 0 <= self.exponent <= 100, "between 0 and 100")
        _require(self, "min_size", _positive(self.min_size), "an integer >= 1: no client is empty")

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        labels, rng = _checked(labels, clients, seed, self.min_size)
        if self.alpha is not None:
            weights = rng.dirichlet(np.full(clients, self.alpha))
        else:
            assert self.exponent is not None  # one of the two is given
            weights = np.arange(1, clients + 1, dtype=np.float64) ** -self.exponent
        sizes = self.min_size + _shares(weights, len(labels) - clients * self.min_size)
        owner = rng.permutation(np.repeat(np.arange(clients), sizes))
        return _parts(owner, clients)


@dataclass(frozen=True)
class Contiguous:
    """For text: the stream is cut into `clients` pieces of n // clients tokens each, in order. The
    last n % clients tokens are dropped, so that all pieces have the same length."""

    def split(self, labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
        stream, _ = _checked(labels, clients, seed)
        length = len(stream) // clients
        return list(np.arange(clients * length).reshape(clients, length))


PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "low": Low,
    "moderate": Moderate,
    "high": High,
    "classes": Classes,
    "dirichlet": Dirichlet,
    "quantity": Quantity,
    "contiguous": Contiguous,
}


def build(kind: str, *, dataset: str | None = None, **options: Any) -> Partition:
    """The partition of this kind. With `dataset`, "high" in groups uses that dataset's sets."""
    if kind not in PARTITIONS:
        raise ConfigError(f"no partition is called {kind!r}; {nearest(kind, PARTITIONS)}")
    check_options(PARTITIONS[kind], options, f"partition {kind!r}")
    if kind == "high" and options.get("form") == "groups" and dataset in GROUPS:
        options = {"groups": dataset} | options
    try:
        return PARTITIONS[kind](**options)
    except TypeError as error:  # a text where a number should be
        raise ConfigError(f"partition {kind!r} cannot take {options}: {error}") from error


def counts(labels: ArrayLike, parts: Sequence[Indices], n_classes: int) -> NDArray[np.int64]:
    """How many samples of each class each client holds: (clients, classes)."""
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < n_classes:
        raise ConfigError(
            f"labels run from {labels.min()} to {labels.max()}, outside 0..{n_classes - 1}: "
            f"n_classes must be at least {labels.max() + 1}"
        )
    return np.stack([np.bincount(labels[part], minlength=n_classes) for part in parts])


def _checked(
    labels: ArrayLike, clients: int, seed: int, min_size: int = 1
) -> tuple[NDArray[np.int64], np.random.Generator]:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ConfigError(
            f"labels must be a vector of integers, got {labels.dtype} of shape {labels.shape}"
        )
    if not _positive(clients):
        raise ConfigError(f"clients must be a positive integer, got {clients!r}")
    if clients * min_size > len(labels):
        raise ConfigError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size}, "
            f"but the data has {len(labels)}: use fewer clients or a smaller min_size"
        )
    if not (seed == 0 or _positive(seed)):
        raise ConfigError(f"seed must be an integer >= 0, got {seed!r}")
    return labels.astype(np.int64), np.random.default_rng(seed)


def _positive(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)


def _require(partition: Partition, field: str, fine: bool, what: str) -> None:
    if not fine:
        value = getattr(partition, field)
        raise ConfigError(f"{type(partition).__name__}.{field} must be {what}; got {value!r}")


def _require_holders(label: int, count: int, holders: int) -> None:
    if count < holders:
        raise ConfigError(
            f"class {label} has {count} samples for the {holders} clients that should hold it: "
            "use fewer clients"
        )


def _dealt(n: int, clients: int) -> Indices:
    """The owner of each of n samples, in turn: 0, 1, ..., clients-1, 0, 1, ..."""
    return np.arange(n) % clients


def _by_label(order: Indices, labels: Indices) -> Indices:
    """The same samples, sorted by label. Within a label the order stays."""
    return order[np.argsort(labels[order], kind="stable")]


def _tally(labels: Indices) -> list[tuple[int, int]]:
    """(class, samples) in the order of the classes."""
    classes, sizes = np.unique(labels, return_counts=True)
    return list(zip(classes.tolist(), sizes.tolist(), strict=True))


def _shares(weights: NDArray[np.float64], total: int) -> Indices:
    """Integers in proportion to the weights. Their sum is the total."""
    upto = np.cumsum(weights)
    ends: Indices = np.rint(upto / upto[-1] * total).astype(np.int64)
    return np.diff(ends, prepend=0)


def _parts(owner: Indices, clients: int) -> list[Indices]:
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
