"""Messages as integers: exact sums, whatever their order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fafed.core import randomness
from fafed.errors import ConfigError, FafedError
from fafed.privacy import encoding as module
from fafed.privacy.encoding import (
    SILOS,
    BeyondBound,
    Bounds,
    Encoding,
    exponent_of,
    scaled_weights,
)

PLAIN = Encoding()
numbers = st.floats(-1000, 1000, width=32)
vectors = st.integers(1, 6).flatmap(
    lambda d: st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1, max_size=8)
)


@given(vectors, st.randoms(use_true_random=False), st.sampled_from([torch.float32, torch.float64]))
def test_a_sum_does_not_depend_on_its_order(messages, random, dtype):
    def total(order):
        found = torch.zeros(len(messages[0]), dtype=torch.int64)
        for i in order:
            PLAIN.encode("m", torch.tensor(messages[i], dtype=dtype), 0.3, 10, out=found)
        return found

    order = list(range(len(messages)))
    here = total(order)
    random.shuffle(order)
    assert torch.equal(total(order), here)


@given(vectors, st.floats(0.01, 1.0), st.integers(10, 30), st.sampled_from([64, 32]))
def test_a_decoded_sum_is_within_half_a_unit_of_every_summand(messages, weight, exponent, bits):
    """Measured in exact fractions. Stochastic rounding errs by up to a whole unit."""
    how = Encoding(bits=bits)
    total = sum(
        how.encode("m", torch.tensor(m, dtype=torch.float64), weight, exponent, key=i)
        for i, m in enumerate(messages)
    )
    unit = Fraction(how.unit(exponent))
    each = (Fraction(1, 2) if bits == 64 else 1) + Fraction(1, 2**8)  # and the product's rounding
    for column, integer in zip(zip(*messages, strict=True), total.tolist(), strict=True):
        true = sum(Fraction(value) * Fraction(weight) for value in column)
        assert abs(integer * unit - true) <= len(messages) * each * unit


def test_numbers_that_are_whole_units_come_back_exactly():
    values = torch.tensor([0.0, 1.0, -1.0, 1024.0, -1024.0, 2.0**-34])
    found = PLAIN.decode(PLAIN.encode("m", values, 1.0, 10), 10, 1.0, values)
    assert torch.equal(found, values)
    assert PLAIN.encode("m", values, 1.0, 10).tolist() == [0, 2**34, -(2**34), 2**44, -(2**44), 1]


@pytest.mark.parametrize("bits", [64, 32])
def test_as_many_silos_as_promised_fit_without_wrapping(bits):
    """The largest values, all of one sign, and of the other."""
    how, count = Encoding(bits=bits), SILOS[bits]
    for sign in (1.0, -1.0):
        value = torch.tensor([sign * 1024.0], dtype=torch.float64)
        one = how.encode("m", value, 1.0, 10, key=1)
        modulus = 2**bits
        total = int(one) * count % modulus
        ring = np.array([total], np.uint64).view(np.int64)
        found = how.decode(torch.from_numpy(ring), 10, float(count), value)
        assert torch.equal(found, value)
    how.check_silos(count)
    with pytest.raises(ConfigError, match=f"at most {count} clients, got {count + 1}"):
        how.check_silos(count + 1)


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**64 - 1))
def test_masks_leave_no_trace_and_the_sum_is_read_as_signed(value, mask):
    ring = np.array([value], np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        masked = ring + np.uint64(mask)
        found = (masked - np.uint64(mask)).view(np.int64)
    assert PLAIN.signed(torch.from_numpy(found)).item() == value


@given(st.integers(-(2**30), 2**30 - 1))
def test_sums_of_32_bits_are_read_as_signed(value):
    ring = torch.tensor([value % 2**32])
    assert Encoding(bits=32).signed(ring).item() == value


def test_a_stretch_at_a_time_gives_the_same_numbers(monkeypatch):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for how in (PLAIN, Encoding(bits=32)):
        whole = how.encode("m", values, 0.7, 10, key=3)
        with monkeypatch.context() as patch:
            patch.setattr(module, "STRETCH", 64)
            assert torch.equal(how.encode("m", values, 0.7, 10, key=3), whole)


def test_stochastic_rounding_is_unbiased_and_a_function_of_its_key():
    how, n = Encoding(bits=32), 100_000
    value = 0.3 * how.unit(10)
    values = torch.full((n,), value, dtype=torch.float64)
    key = int(randomness.keys("rounding", 0, 1, 2))
    here = how.encode("m", values, 1.0, 10, key=key)
    assert set(here.tolist()) == {0, 1}
    assert abs(float(here.double().mean()) - 0.3) < 5 * math.sqrt(0.21 / n)
    assert torch.equal(how.encode("m", values, 1.0, 10, key=key), here)
    other = how.encode("m", values, 1.0, 10, key=int(randomness.keys("rounding", 0, 1, 3)))
    assert abs(float((other == here).double().mean()) - 0.58) < 0.01  # 0.3^2 + 0.7^2: independent


def test_a_number_beyond_the_bound_names_its_leaf():
    with pytest.raises(BeyondBound, match=r"leaf m is 3\.1e\+05, beyond the bound 2\.6e\+05"):
        PLAIN.encode("m", torch.tensor([1.0, -3.1e5]), 1.0, 18)
    PLAIN.encode("m", torch.tensor([2.0**18, -(2.0**18)]), 1.0, 18)
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(FafedError, match="leaf v is not finite"):
            PLAIN.encode("v", torch.tensor([0.0, wrong]), 1.0, 10)


@given(st.floats(1e-300, 1e300))
def test_exponents_are_the_smallest(value):
    e = exponent_of(value)
    assert 2.0**e >= value > 2.0 ** (e - 1)


def test_powers_of_two_are_their_own_bounds():
    assert [exponent_of(v) for v in (0.5, 1.0, 1.5, 2.0, 1024.0)] == [-1, 0, 1, 1, 10]


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9))
def test_scaled_weights_have_the_same_proportions(weights):
    found = scaled_weights(weights)
    assert 0.5 < max(found) <= 1
    assert all(
        a * weights[0] == b * found[0] or a / found[0] == b / weights[0]
        for a, b in zip(found, weights, strict=True)
    )


def test_bounds_follow_the_size_of_the_messages():
    bounds = Bounds(PLAIN)
    assert bounds.exponent("m") == 10
    assert bounds.exponent("buffer", 1e6) == 23  # 8e6 <= 2^23
    bounds.settle("m", 0.3)
    assert bounds.exponent("m") == 2  # 2.4 <= 4
    bounds.settle("m", 0.0)
    assert bounds.exponent("m") == 2
    bounds.grow("m", 2)
    assert bounds.exponent("m") == 5
    copied = bounds.copy()
    copied.settle("m", 100.0)
    assert bounds.exponent("m") == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 16}, "bits must be 64 or 32, got 16"),
        ({"headroom": 1.0}, "headroom must be at least 2, got 1.0"),
        ({"first_bound": 0.0}, "first_bound must be > 0, got 0.0"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Encoding(**options)
