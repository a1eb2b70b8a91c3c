"""Clipping, example by example, and the noise on the sum."""

from __future__ import annotations

import math

import pytest
import torch

from fafed.errors import FafedError
from fafed.privacy import clipping
from fafed.privacy.clipping import add_noise, clipped_sum, keyed_draws
from fafed.privacy.secret import Secret, Stream


def test_a_clipped_sum_is_that_of_a_loop(monkeypatch):
    r = torch.Generator().manual_seed(0)
    rows = torch.randn(11, 5, dtype=torch.float64, generator=r) * torch.arange(11)[:, None]
    due = torch.zeros(5, dtype=torch.float64)
    for row in rows[:7]:
        due += row * min(1.0, 3.0 / float(row.norm())) if row.any() else 0.0
    for size in (2**26, 3 * 5 * 8, 1):
        monkeypatch.setattr(clipping, "CHUNK_BYTES", size)
        found = clipped_sum(lambda some: rows[some], 7, 3.0, torch.zeros(5).double())
        torch.testing.assert_close(found, due, rtol=0, atol=1e-12)


def test_an_example_that_is_not_finite_is_an_error_or_counts_as_zero():
    rows = torch.tensor([[1.0, 0.0], [math.nan, math.inf]])
    found = clipped_sum(lambda some: rows[some], 2, 1.0, torch.zeros(2), strict=False)
    assert found.tolist() == [1.0, 0.0]
    with pytest.raises(FafedError, match="the gradient of an example is not finite"):
        clipped_sum(lambda some: rows[some], 2, 1.0, torch.zeros(2))


def test_no_example_moves_the_sum_by_more_than_the_bound():
    r = torch.Generator().manual_seed(0)
    rows = 100 * torch.randn(6, 4, dtype=torch.float64, generator=r)
    x = torch.zeros(4).double()
    total = clipped_sum(lambda some: rows[some], 6, 0.5, x)
    for i in range(6):
        others = torch.cat([rows[:i], rows[i + 1 :]])
        moved = total - clipped_sum(lambda some, left=others: left[some], 5, 0.5, x)
        assert float(moved.norm()) == pytest.approx(0.5, rel=1e-12)


SOURCES = {"of the seed": keyed_draws, "of a silo": Secret(bytes(range(32))).stream}


@pytest.mark.parametrize("draws", SOURCES.values(), ids=SOURCES)
def test_noise_has_its_mean_and_deviation_and_is_a_function_of_its_key(draws, monkeypatch):
    n, sigma = 400_000, 2.5
    zero = torch.zeros(n, dtype=torch.float64)
    noise = add_noise(zero, sigma, draws("step 1 x"))
    assert not zero.any()
    assert abs(float(noise.mean())) < 5 * sigma / math.sqrt(n)
    assert abs(float(noise.std()) / sigma - 1) < 5 / math.sqrt(2 * n)
    kurtosis = float((noise**4).mean()) / sigma**4
    assert abs(kurtosis - 3) < 5 * math.sqrt(96 / n)
    beyond = [float((noise.abs() > k * sigma).double().mean()) for k in (1, 2, 3)]
    assert beyond == pytest.approx([0.317311, 0.0455, 0.0027], abs=5 * 0.5 / math.sqrt(n))
    assert torch.equal(add_noise(zero, sigma, draws("step 1 x")), noise)
    if draws is keyed_draws:
        monkeypatch.setattr(clipping, "STRETCH", 1000)
        assert torch.equal(add_noise(zero, sigma, draws("step 1 x")), noise)
    for other in ("step 2 x", "step 1 y", "step 11 x"):
        unlike = add_noise(zero, sigma, draws(other))
        correlation = float((noise * unlike).mean()) / sigma**2
        assert abs(correlation) < 5 / math.sqrt(n)


@pytest.mark.parametrize("draws", SOURCES.values(), ids=SOURCES)
def test_neighbouring_numbers_of_the_noise_are_independent(draws):
    noise = add_noise(torch.zeros(400_001, dtype=torch.float64), 1.0, draws("k"))
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 5 / math.sqrt(400_000)


def test_a_silos_noise_uses_the_stream_cipher_of_the_standard():
    """The block of RFC 8439 with a key and a nonce of zeros begins with these bytes."""
    first = int.from_bytes(bytes.fromhex("76b8e0ada0f13d90"), "little")
    assert Stream(bytes(32)).random(1)[0] == (first >> 11) * 2.0**-53


def test_two_silos_never_have_the_same_numbers():
    a, b = Secret(), Secret()
    assert abs(a.uniform("x", 1000) - b.uniform("x", 1000)).min() > 0
    assert (a.uniform("x", 1000) == a.uniform("x", 1000)).all()
    draws = a.uniform("samples", 400_000)
    assert abs(draws.mean() - 0.5) < 5 / math.sqrt(12 * 400_000)
    assert 0 <= draws.min() < draws.max() < 1
