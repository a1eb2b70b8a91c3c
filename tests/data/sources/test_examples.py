"""Draws are a function of (seed, client, step) and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fafed import ConfigError, DataError
from fafed.core import randomness, tree
from fafed.data.sources.base import ClientBatches
from fafed.data.sources.examples import Examples, examples_of
from fafed.data.sources.tensors import as_tensors


def source(sizes=(10, 10, 7), **options):
    ends = np.cumsum(sizes)
    pool = (torch.arange(int(ends[-1])), torch.zeros(int(ends[-1]), dtype=torch.long))
    return Examples(pool, np.split(np.arange(ends[-1]), ends[:-1]), **options)


def rows(s, client, step, steps):
    return s.draw(("round",), client, step, steps).round.rows.tolist()


def test_any_step_can_be_drawn_alone_and_in_any_order():
    whole = rows(source(batch_size=4), 1, 0, 12)
    s = source(batch_size=4)
    for step in (7, 0, 11, 3):
        assert rows(s, 1, step, 1) == [whole[step]]


@given(n=st.integers(1, 12), b=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_every_epoch_shows_every_example_once(n, b, seed):
    s = source((n,), batch_size=b, seed=seed)
    stream = [r for batch in rows(s, 0, 0, 3 * n) for r in batch]
    for epoch in range(3):
        assert sorted(stream[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_clients_draw_from_their_own_examples():
    s = source(batch_size=3)
    assert set(np.ravel(rows(s, 1, 0, 10))) == set(range(10, 20))
    assert set(np.ravel(rows(s, 2, 0, 7))) == set(range(20, 27))


def test_seed_client_and_epoch_matter():
    a, b = source((50, 50), batch_size=50), source((50, 50), batch_size=50, seed=1)
    own = rows(a, 0, 0, 2)
    assert own[0] != own[1]
    assert own[0] != rows(b, 0, 0, 1)[0]
    assert own[0] != [r - 50 for r in rows(a, 1, 0, 1)[0]]


def test_full_batches_come_in_order():
    s = source(batch_size="full", anchor_size="full")
    draws = s.draw(("round", "anchor", "full"), 2, 3, 2)
    assert draws.round.rows.tolist() == [list(range(20, 27))] * 2
    assert draws.anchor.rows.tolist() == draws.full.rows.tolist() == [list(range(20, 27))]


def test_anchor_never_shifts_the_stream():
    plain, with_anchor = source(batch_size=4), source(batch_size=4, anchor_size=8)
    with_anchor.draw(("anchor",), 0, 0, 5)
    assert rows(plain, 0, 0, 5) == rows(with_anchor, 0, 0, 5)
    drawn = with_anchor.draw(("anchor",), 0, 0, 5).anchor.rows[0].tolist()
    assert len(set(drawn)) == 8


def test_an_anchor_is_drawn_anew_in_every_round():
    s = source(batch_size=4, anchor_size=3)
    q, rounds = 5, 200
    drawn = [s.draw(("anchor",), 2, r * q, q).anchor.rows[0].tolist() for r in range(rounds)]
    assert all(len(set(rows)) == 3 for rows in drawn)
    counts = np.bincount(np.concatenate(drawn) - 20)  # the client's rows are 20 to 26
    assert len(counts) == 7
    assert counts.min() > 0.7 * rounds * 3 / 7
    assert (
        drawn[0]
        == source(batch_size=4, anchor_size=3).draw(("anchor",), 2, 0, q).anchor.rows[0].tolist()
    )


def test_keys_of_steps_anchors_and_clients_differ():
    s = source((10, 10), batch_size=4)
    keys = [
        *s.draw(("round",), 0, 0, 5).round.key.tolist(),
        *s.draw(("round",), 1, 0, 5).round.key.tolist(),
        *s.draw(("anchor",), 0, 0, 1).anchor.key.tolist(),
    ]
    assert len(set(keys)) == 11


def test_the_hash_is_pinned():
    """A change here changes every number that anyone has published with fafed."""
    assert int(randomness.keys("epoch", 0, 0, 0)) == PINNED[0]
    assert randomness.permutations(randomness.keys("epoch", 1, 2, 3), 8).tolist() == PINNED[1]
    kept = randomness.keep_mask(torch.tensor(5), torch.Size([8]), 0.5)
    assert kept.tolist() == PINNED[2]


def test_torch_and_numpy_mix_alike():
    for value in (0, 1, 12345678901234567, 2**63 - 1):
        here = randomness._mix(np.uint64(value))
        there = randomness._mix_torch(torch.tensor(value))
        assert int(np.asarray(here).view(np.int64)) == int(there)


def test_batches_are_gathered_when_asked_for():
    s = source(batch_size=4)
    batches = ClientBatches(s.gather, s.draw(("round",), 0, 0, 3))
    assert len(batches) == 3
    assert [b.data[0].tolist() for b in batches] == rows(s, 0, 0, 3)


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i >= 4:
            raise IndexError
        return torch.tensor([float(i), float(i * i)]), i % 2


def test_datasets_become_tensors():
    x, y = as_tensors(Squares(), "client 0")
    assert x.tolist() == [[0, 0], [1, 1], [2, 4], [3, 9]]
    assert y.tolist() == [0, 1, 0, 1]
    pair = TensorDataset(x, y)
    assert as_tensors(pair, "c")[0] is x
    assert as_tensors(Subset(pair, [3, 1]), "c")[1].tolist() == [1, 1]
    assert as_tensors((np.ones((2, 3)), np.zeros(2)), "c")[0].shape == (2, 3)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


class Ragged(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.zeros(i + 1), 0


X, Y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([], "non-empty list"),
        ((X, Y)[0], "non-empty list"),
        ([(X, Y), (X[:0], Y[:0])], "client 1 has no examples"),
        ([(X, Y), (torch.zeros(3, 5), Y)], r"client 0 is \(2,\).*client 1 is \(5,\)"),
        ([(X, Y), (X, Y.float())], "client 1 is.*float32"),
        ([(X, Y[:2])], "client 0 has tensors of 3, 2 rows"),
        ([X], "client 0 must be a Dataset or a tuple"),
        ([(X, "abc")], "no tensor"),
        ([(X, np.array(["no", "yes", "no"]))], "number the values, such as with numpy.unique"),
        ([Endless()], "IterableDataset"),
        ([Ragged()], "do not stack"),
    ],
)
def test_bad_clients_are_named(clients, words):
    with pytest.raises(DataError, match=words):
        examples_of(clients)


@pytest.mark.parametrize("size", [0, -1, 2.5, "all", True])
def test_bad_batch_sizes(size):
    with pytest.raises(ConfigError, match="batch_size must be a positive integer or 'full'"):
        source(batch_size=size)


PINNED = (
    12105749317070991257,
    [1, 0, 2, 3, 7, 4, 6, 5],
    [False, True, True, True, True, True, False, True],
)


def test_draws_are_where_the_data_are():
    here = source(batch_size=4, anchor_size=6).to(torch.device("meta"), torch.float32)
    found = ClientBatches(here.gather, here.draw(("round", "anchor"), 1, 0, 2))
    for batch in (*found, found.anchor):
        assert {leaf.device.type for leaf in tree.leaves(batch[:3])} == {"meta"}
