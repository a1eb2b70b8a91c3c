from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import plain_run, run

from fafed import ConfigError
from fafed.report import RunData, figure
from fafed.report.static import apart, write_figures

PNG = b"\x89PNG"


def test_a_single_picture(tmp_path: Path) -> None:
    runs = [run(name, seed, rounds=12) for name in ("fafed", "$x_1$") for seed in range(2)]
    svg = figure(runs, tmp_path / "a.svg", "accuracy", "bytes")
    assert svg.read_text().startswith("<?xml")
    assert figure(runs, tmp_path / "a.png").read_bytes()[:4] == PNG


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    runs = [run(rounds=5)]
    first, second = (figure(runs, tmp_path / name).read_bytes() for name in ("1.svg", "2.svg"))
    assert first == second


def test_all_pictures(tmp_path: Path) -> None:
    written = write_figures([run(rounds=6)], tmp_path)
    names = ["curves-rounds", "curves-gradients", "curves-bytes", "curves-seconds",
             "test-loss-rounds", "clients"]  # fmt: skip
    assert [path.name for path in written] == [f"{n}.{k}" for n in names for k in ("svg", "png")]
    assert all(path.stat().st_size > 1000 for path in written)


@pytest.mark.parametrize(
    "runs",
    [
        [plain_run(0.5)],
        [plain_run(None, None)],
        [plain_run(0.5, 0.6), plain_run(None, None, algorithm="fedavg")],
        [plain_run(0.5, 0.6, algorithm=f"_a rather long name of an algorithm, number {i}")
         for i in range(16)],
    ],
    ids=["one record", "no test", "some without test", "too many for labels"],
)  # fmt: skip
def test_odd_runs_are_drawn(runs: list[RunData], tmp_path: Path) -> None:
    assert figure(runs, tmp_path / "odd.png").read_bytes()[:4] == PNG


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="acuracy"):
        figure([run(rounds=4)], tmp_path / "x.svg", "acuracy")
    with pytest.raises(ConfigError, match="byte"):
        figure([run(rounds=4)], tmp_path / "x.svg", axis="byte")


def test_labels_move_apart_as_little_as_needed() -> None:
    assert apart([0.1, 0.5], gap=0.1) == [0.1, 0.5]
    assert apart([0.5, 0.52], gap=0.1) == [0.5, 0.6]
    assert apart([0.97, 0.98, 0.99], gap=0.1) == pytest.approx([0.8, 0.9, 1.0])
