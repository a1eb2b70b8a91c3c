"""Each example is in a batch with the same probability, on its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fafed.data.sources.examples import Examples
from fafed.data.sources.poisson import Poisson
from fafed.errors import FafedError
from fafed.privacy.secret import Secret


def source(n=40, b=8, seed=0, most=40, anchor=None):
    pool = (torch.arange(2 * n).double()[:, None], torch.arange(2 * n))
    parts = [np.arange(n), np.arange(n, 2 * n)]
    base = Examples(pool, parts, batch_size=b, anchor_size=anchor or b, seed=seed)
    return Poisson(base, lambda count, rate: most)


def drawn(own, client, step, steps, kind="round"):
    """The rows of each batch, without those that fill it up."""
    rows = getattr(own.draw((kind,), client, step, steps), kind).rows
    assert rows.shape[-1] == own.cap(0, 0) + 1
    return [set(row[:-1][row[:-1] >= 0].tolist()) for row in rows]


@pytest.mark.parametrize(
    "uniform", [None, Secret(bytes(32)).uniform], ids=["of the seed", "of a silo"]
)
def test_rates_are_binomial(uniform):
    own, steps, n, rate = source(), 4000, 40, 0.2
    own = own if uniform is None else own.drawn_by(uniform)
    batches = drawn(own, 0, 0, steps)
    counts = np.array([[row in batch for row in range(n)] for batch in batches])
    deviation = math.sqrt(rate * (1 - rate) / steps)
    assert (abs(counts.mean(0) - rate) < 5 * deviation).all()
    sizes = counts.sum(1)
    assert abs(sizes.mean() - 8) < 5 * math.sqrt(n * rate * (1 - rate) / steps)
    assert sizes.var() == pytest.approx(n * rate * (1 - rate), rel=0.15)
    together = (counts[:, :-1] & counts[:, 1:]).mean()
    assert together == pytest.approx(rate**2, rel=0.05)  # independent of each other
    again = (counts[:-1] & counts[1:]).mean()
    assert again == pytest.approx(rate**2, rel=0.05)  # and from step to step


def test_a_draw_is_a_function_of_seed_client_and_step():
    own = source()
    assert drawn(own, 1, 5, 3) == drawn(source(), 1, 5, 3) == drawn(own, 1, 4, 4)[1:]
    assert drawn(own, 1, 5, 3) != drawn(source(seed=1), 1, 5, 3)
    assert drawn(own, 0, 5, 1) != [{row - 40 for row in batch} for batch in drawn(own, 1, 5, 1)]
    assert drawn(own, 0, 5, 1) != drawn(own, 0, 5, 1, kind="anchor")


def test_one_example_more_changes_no_other_draw():
    """With the same rate. The rate itself is n's, which is public."""
    small, large = source(n=40, b=8), source(n=40, b=8)
    large.parts[0] = np.append(large.parts[0], 79)
    large.examples = (41, 40)
    large._rate = lambda client, size: small._rate(client, size)
    for a, b in zip(drawn(small, 0, 0, 50), drawn(large, 0, 0, 50), strict=True):
        assert a == b - {79}


def test_a_batch_knows_its_expected_size():
    own = source(anchor=20)
    (batch,) = own.batches(own.draw(("round",), 1, 3, 1))
    data, rows, expected = batch.data
    assert int(expected) == 8
    assert (rows >= 0).all()
    assert torch.equal(data[1], rows)
    batches = own.batches(own.draw(("anchor", "full"), 1, 3, 1))
    assert int(batches.anchor.data.expected) == 20
    assert int(batches.full.data.expected) == 40
    assert set(batches.full.data.rows.tolist()) == set(range(40, 80))
    assert own.rates(0) == {"round": 0.2, "anchor": 0.5, "full": 1.0}


def test_a_client_with_fewer_examples_than_a_batch_gives_all():
    own = source(n=5, b=8, most=5)
    assert own.rates(0)["round"] == 1.0
    (batch,) = own.batches(own.draw(("round",), 0, 0, 1))
    assert batch.data.rows.tolist() == list(range(5))
    assert int(batch.data.expected) == 5


def test_overflow_is_an_error():
    own = source(most=8)
    with pytest.raises(FafedError, match=r"client 0, step .*the batch holds 8"):
        drawn(own, 0, 0, 100)
