from __future__ import annotations

import math

import pytest
from report_runs import config, plain_run, record, run
from rich.console import Console

from fafed.report import RunData, rich_table, table
from fafed.report.numbers import Stat
from fafed.report.tables import winner


def test_a_row_is_the_last_common_round() -> None:
    (row,) = table([plain_run(0.7, 0.6, 0.5), plain_run(0.6, 0.8, seed=1)])
    assert (row.label, row.seeds, row.rounds) == ("fafed", 2, 2)
    assert row.train_loss == Stat(0.5, 0.0, 2)
    assert row.final["accuracy"] == Stat.from_values([0.6, 0.8])
    assert row.best["accuracy"] == Stat.from_values([0.7, 0.8])
    assert row.gradients.mean == 20
    assert (row.bytes_up.mean, row.bytes_down.mean, row.seconds.mean) == (200, 400, 1.0)


def test_one_record_without_test_or_loss() -> None:
    (row,) = table([RunData("run", config(), [record(1, None)])])
    assert (row.train_loss, row.final, row.best) == (None, {}, {})


def test_a_diverged_end_is_shown_and_its_best_round_too() -> None:
    (row,) = table([plain_run(0.5, math.nan)])
    assert math.isnan(row.final["accuracy"].mean)
    assert row.best["accuracy"].mean == 0.5


@pytest.mark.parametrize(
    ("values", "higher", "best"),
    [
        ([1.0, 2.0], True, 1),
        ([1.0, 2.0], False, 0),
        ([None, math.nan, 3.0], False, 2),
        ([math.nan, None], True, None),
        ([1.0], True, None),
    ],
)
def test_winner(values: list[float | None], higher: bool, best: int | None) -> None:
    assert winner(values, higher) == best


def test_the_terminal_table_shows_the_numbers_and_no_markup() -> None:
    runs = [plain_run(0.5, 0.75), plain_run(0.5, 0.6, algorithm="[red]x[/red]")]
    console = Console(width=200, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(rich_table(runs, title="demo"))
    text = capture.get()
    for part in ("demo", "fafed", "[red]x[/red]", "75.00\u00a0%", "training loss of", "200 B"):
        assert part in text


def test_twelve_algorithms_times_five_seeds() -> None:
    runs = [run(f"alg-{a}", seed, rounds=4) for a in range(12) for seed in range(5)]
    rows = table(runs)
    assert [row.seeds for row in rows] == [5] * 12
