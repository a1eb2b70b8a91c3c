"""Reports: what runs did, as one HTML file, static pictures and a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fafed import files
from fafed.core.run_data import RunData, StudyData
from fafed.report.page import page
from fafed.report.static import figure, write_figures
from fafed.report.tables import Row, rich_table, table

__all__ = ["Row", "RunData", "StudyData", "figure", "rich_table", "table", "write"]


def write(
    runs: Sequence[RunData],
    folder: Path,
    *,
    title: str | None = None,
    target: float | None = None,
    studies: Sequence[StudyData] = (),
    damaged: Mapping[str, str] | None = None,
    said: Sequence[str] = (),
) -> Path:
    """Write report.html and its static pictures into `folder`; returns the path of the page.

    `target` is a value of the metric that curves are ranked by (an accuracy of 85 % is 0.85); the
    report then says what each curve spent to reach it. Without it, one is chosen by a stated rule.
    `damaged` names runs that could not be read, and says why. `said` are further notes.
    """
    document = page(runs, title=title, target=target, studies=studies, damaged=damaged, said=said)
    files.make_folder(folder)
    write_figures(runs, folder)
    path = folder / "report.html"
    files.write(path, [document.encode()])
    return path
