from __future__ import annotations

import math

import pytest
from report_runs import config, plain_run, record, run
from rich.console import Console

from fafed.report import RunData, rich_table, table
from fafed.report.numbers import Stat
from fafed.report.page import page as write_page
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


def stat(mean: float, std: float | None = 0.1, n: int = 3) -> Stat:
    return Stat(mean, std, n)


@pytest.mark.parametrize(
    ("stats", "higher", "best"),
    [
        ([stat(1.0), stat(2.0)], True, 1),
        ([stat(1.0), stat(2.0)], False, 0),
        ([stat(1.0), stat(1.05)], True, None),  # within the spread
        ([stat(1.0, 2.0), stat(2.0)], True, None),  # within that of the other
        ([stat(1.0), stat(2.0), stat(1.5, 0.6)], True, None),  # and that of the third
        ([stat(1.0, None, 1), stat(2.0, None, 1)], True, None),  # one seed
        ([stat(1.0, None, 1), stat(2.0)], True, None),
        ([None, stat(math.nan), stat(3.0)], False, 2),  # the others diverged
        ([stat(math.nan), stat(3.0, None, 1)], False, None),
        ([stat(math.nan), None], True, None),
        ([stat(1.0)], True, None),
    ],
)
def test_a_winner_is_better_by_more_than_the_spread(
    stats: list[Stat | None], higher: bool, best: int | None
) -> None:
    assert winner(stats, higher) == best


def test_the_terminal_says_whether_a_winner_is_named() -> None:
    once = [plain_run(0.5), plain_run(0.6, algorithm="stem")]
    assert rich_table(once).caption == "one seed: no winner is named"
    twice = [*once, plain_run(0.5, seed=1), plain_run(0.6, algorithm="stem", seed=1)]
    assert "bold: better than all others by more than the spread" in str(rich_table(twice).caption)
    assert rich_table(once[:1]).caption == "one seed"


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


def private(algorithm: str, *epsilons: float | None) -> list[RunData]:
    """A run for each seed, with what it spent."""
    promised: dict[str, object] = {"privacy": {"level": "example", "delta": 1e-5}}
    return [
        RunData(
            f"{algorithm}-{seed}",
            config(algorithm, seed, **(promised if spent is not None else {})),
            [
                record(
                    1,
                    test={"accuracy": 0.5},
                    diagnostics={} if spent is None else {"epsilon": spent},
                )
            ],
        )
        for seed, spent in enumerate(epsilons)
    ]


def test_what_privacy_was_spent_stands_in_the_table() -> None:
    runs = [*private("fedavg", 0.5191, 0.52), *private("fafed", 1.17)]
    assert [row.epsilon for row in table(runs)] == [0.52, 1.17]
    assert "Epsilon" in shown(runs)
    assert "1.17" in shown(runs)
    page = write_page(runs)
    assert '<th scope="col">Epsilon</th>' in page
    assert "the worst client has spent at delta 1e-05. Of a simulation it protects nobody" in page
    assert "not equally private" in page
    assert "not equally private" not in write_page(
        [*private("fedavg", 1.17), *private("fafed", 1.17)]
    )
    some = [*private("fedavg", 0.5), *private("fafed", None)]
    assert [row.epsilon for row in table(some)] == [0.5, None]
    assert "not equally private" in write_page(some)
    open_runs = private("fedavg", None)
    assert "Epsilon" not in shown(open_runs)
    assert '<th scope="col">Epsilon</th>' not in write_page(open_runs)
    assert "worst client" not in write_page(open_runs)


def shown(runs: list[RunData]) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(rich_table(runs))
    return capture.get()
