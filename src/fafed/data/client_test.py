"""Test data of each client: its own, or a share that is held out from its training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fafed.core import randomness
from fafed.data.sources.base import Indices
from fafed.data.sources.examples import Examples
from fafed.data.sources.lazy import Lazy, LazyPart
from fafed.data.sources.tensors import Columns, as_tensors
from fafed.errors import ConfigError, DataError


def held_out_of_each(
    parts: Sequence[Indices], share: float, seed: int
) -> tuple[list[Indices], list[Indices]]:
    """The rows that each client trains on, and those that are held out. Which ones depends on the
    seed and the client. At least one row is held out, and at least one stays."""
    pairs = [held_out_of(rows, share, seed, client) for client, rows in enumerate(parts)]
    return [kept for kept, _ in pairs], [held for _, held in pairs]


def held_out_of(rows: Indices, share: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """The same for one client."""
    n = len(rows)
    if n < 2:
        raise DataError(
            f"client {client} has {n} example: client_test = {share} cannot hold one out and "
            "leave one to train on; give it more, or leave it out"
        )
    order = randomness.permutations(randomness.keys("client test", seed, client), n)
    count = min(n - 1, max(1, int(share * n)))
    return np.sort(rows[order[count:]]), np.sort(rows[order[:count]])


def without_client_test(
    source: Examples | Lazy, wanted: object, seed: int
) -> tuple[Examples | Lazy, list[Columns | LazyPart]]:
    """The source to train on, and the test data of each client. `wanted` is None, a share, or one
    data set per client."""
    if wanted is None:
        return source, []
    if isinstance(wanted, float) and 0 < wanted < 1:
        parts, held = held_out_of_each(source.parts, wanted, seed)
        return source.with_parts(parts), [source.part(own) for own in held]
    if not isinstance(wanted, Sequence) or len(wanted) != len(source.examples):
        given = f"{len(wanted)} of them" if isinstance(wanted, Sequence) else repr(wanted)
        raise ConfigError(
            f"client_test must be a share between 0 and 1, or a list with one Dataset or (inputs, "
            f"targets) for each of the {len(source.examples)} clients, got {given}"
        )
    return source, [
        data if isinstance(data, LazyPart) else as_tensors(data, part_name(i))
        for i, data in enumerate(wanted)
    ]


def part_name(client: int) -> str:
    return f"client_test of client {client}"
