from __future__ import annotations

import math

import pytest

from fafed.report.numbers import (
    Stat,
    count,
    decimals,
    duration,
    listing,
    number,
    percent,
    size,
    spread,
)

NBSP = "\u00a0"


def test_std_is_the_sample_one_and_absent_for_one_seed() -> None:
    assert Stat.from_values([1.0, 3.0]) == Stat(2.0, math.sqrt(2), 2)
    assert Stat.from_values([5.0]) == Stat(5.0, None, 1)


def test_one_diverged_seed_spoils_the_mean() -> None:
    stat = Stat.from_values([1.0, math.inf])
    assert math.isnan(stat.mean)
    assert stat.std is None
    assert spread(stat) == "not finite"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12.3456, "12.35"),
        (1234.56, "1,235"),
        (0.0, "0.000"),
        (-0.5, "-0.5000"),
        (1.5e-7, "1.5e-07"),
        (math.nan, "not finite"),
    ],
)
def test_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_percentages_and_spreads() -> None:
    assert percent(0.91234) == f"91.23{NBSP}%"
    assert spread(Stat(0.9123, 0.00345, 3), as_percent=True) == f"91.23 ± 0.34{NBSP}%"
    assert spread(Stat(0.5, 0.01, 2)) == "0.5000 ± 0.0100"
    assert spread(Stat(0.5, None, 1)) == "0.5000"
    assert spread(Stat(2e-6, 1e-7, 2)) == "2e-06 ± 1e-07"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (123_456, "123 kB"),
        (999_999, "1.00 MB"),
        (2.5e9, "2.50 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.50 s"), (59.96, "60.0 s"), (245, "4 min 05 s"), (8000, "2 h 13 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_and_lists() -> None:
    assert [count(3), count(3.25), count(12345.6)] == ["3", "3.2", "12,346"]
    assert [listing([]), listing(["a"]), listing(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert decimals(math.nan) == 3
