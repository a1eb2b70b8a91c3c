"""Test data of each client: its own, or a share that is held out from its training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fafed.core import randomness, tree
from fafed.data.sources.examples import Columns, Examples, Indices, as_tensors
from fafed.errors import ConfigError, DataError


def held_out_of_each(
    parts: Sequence[Indices], share: float, seed: int
) -> tuple[list[Indices], list[Indices]]:
    """The rows that each client trains on, and those that are held out. Which ones depends on the
    seed and the client. At least one row is held out, and at least one stays."""
    kept, held = [], []
    for client, rows in enumerate(parts):
        n = len(rows)
        if n < 2:
            raise DataError(
                f"client {client} has {n} example: client_test = {share} cannot hold one out and "
                "leave one to train on; give it more, or leave it out"
            )
        order = randomness.permutations(randomness.keys("client test", seed, client), n)
        count = min(n - 1, max(1, int(share * n)))
        kept.append(np.sort(rows[order[count:]]))
        held.append(np.sort(rows[order[:count]]))
    return kept, held


def without_client_test(
    source: Examples, wanted: object, seed: int
) -> tuple[Examples, list[Columns]]:
    """The source to train on, and the test data of each client. `wanted` is None, a share, or one
    data set per client."""
    if wanted is None:
        return source, []
    if isinstance(wanted, float) and 0 < wanted < 1:
        parts, held = held_out_of_each(source.parts, wanted, seed)
        left = Examples(
            source.pool,
            parts,
            batch_size=source.batch_size,
            anchor_size=source.anchor_size,
            seed=source.seed,
        )
        rows = [torch.from_numpy(own) for own in held]
        return left, [tree.take(source.pool, own) for own in rows]
    if not isinstance(wanted, Sequence) or len(wanted) != len(source.examples):
        given = f"{len(wanted)} of them" if isinstance(wanted, Sequence) else repr(wanted)
        raise ConfigError(
            f"client_test must be a share between 0 and 1, or a list with one Dataset or (inputs, "
            f"targets) for each of the {len(source.examples)} clients, got {given}"
        )
    return source, [as_tensors(data, part_name(i)) for i, data in enumerate(wanted)]


def part_name(client: int) -> str:
    return f"client_test of client {client}"
