"""The page: its rows are the committed tables', its links exist, and writing it is repeatable."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fafed import ConfigError
from studies import markdown
from studies.theory import figures, publish
from studies.theory.__main__ import app
from studies.theory.findings import RESULTS, Claim, Finding, Table, shown, span

DOCS = Path(__file__).parents[3] / "docs"
EXPERIMENTS = ("counterexample", "drift", "rates", "metric")


@pytest.fixture(scope="module")
def page():
    return (DOCS / "theory.md").read_text("utf-8")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_committed_row_is_on_the_page(page, name):
    committed = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    for table in committed["tables"].values():
        digits = 8 if table["title"].startswith("The mean model") else 4
        again = Table(table["title"], tuple(table["columns"]), table["rows"], digits=digits)
        for line in again.markdown().splitlines()[2:]:
            assert line in page
    for claim in committed["claims"]:
        words = f"*{claim['says']}* **{claim['verdict'].capitalize()}.**"
        assert words in " ".join(page.split())


def test_the_rates_pass_their_criterion(page):
    committed = json.loads((RESULTS / "rates.json").read_text("utf-8"))
    assert committed["claims"][0]["verdict"] == "holds within limits"
    assert committed["settings"]["seeds"] >= 8
    assert committed["settings"]["horizons"][-1] >= 32768


def test_pictures_exist(page):
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert len(pictures) == 6
    for picture in pictures:
        assert (DOCS / picture).is_file()
        assert (DOCS / picture).with_suffix(".png").is_file()


def test_numbers_of_the_arithmetic(page):
    assert markdown.wrap(publish.by_arithmetic()) in page
    assert "442,368,000" in page  # 1728 q^3 N^2
    assert "62,500 (0.125 per cent)" in page


def test_the_page_is_written_again_byte_for_byte(tmp_path):
    def draw(finding):
        figure, (axis,) = figures.panels(1, 1, (3, 2))
        axis.plot([1, 2], [3, 4])
        figures.label_ends(axis, [("a", 4.0, figures.BLUE), ("b", 4.0, figures.RED)])
        return {"n": figure}

    finding = Finding("n", "A title", "About.", {}, {}, [Claim("A is B.", True, "It is.")])
    module = SimpleNamespace(draw=draw)
    pages = []
    for part in ("a", "b"):
        written = publish.write_page([(module, finding)], tmp_path / part / "lab")
        assert {path.name for path in written} == {"n.json", "n.svg", "n.png", "lab.md"}
        pages.append([path.read_bytes().replace(b"/b/", b"/a/") for path in written])
    assert pages[0] == pages[1]
    text = pages[0][-1].decode()
    assert "![A title](lab/n.svg)" in text
    assert "| [A title](#a-title) | A is B. | holds |" in text
    assert "`python -m studies.theory n`" in text


def test_tables_and_claims_as_text():
    table = Table("T", ("a", "b"), [(1, 0.123456), ("x|y", None), (True, 1234567)], "Note.")
    assert table.markdown().splitlines() == [
        "**T.** Note.",
        "",
        "| a | b |",
        "| --- | --- |",
        "| 1 | 0.1235 |",
        r"| x\|y | — |",
        "| yes | 1,234,567 |",
    ]
    claim = Claim("A is B.", True, "It is.", "Only here.")
    assert claim.markdown() == "- *A is B.* **Holds within limits.** It is. Only here."
    assert Claim("A is B.", False, "It is not.").verdict == "does not hold"
    finding = Finding("n", "N", "", {"x": (1, 2.00000000000001)}, {"t": table}, [claim])
    assert finding.plain()["settings"] == {"x": [1, 2.0]}
    assert (shown(float("nan")), shown(0.0), shown(3.0), shown(1e-9)) == (
        "not finite",
        "0",
        "3",
        "1e-09",
    )
    assert (span([1.0, 2.5]), span([2.0, 2.0])) == ("1 to 2.5", "2")


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["metric", "--quick", "--seeds", "1", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["experiment"] == "metric"
    assert {p.name for p in (tmp_path / "theory").iterdir()} == {
        f"metric.{kind}" for kind in ("json", "md", "png", "svg")
    }
    for command in ("rates", "all"):
        both = CliRunner().invoke(app, [command, "--quick", "--full"])
        assert isinstance(both.exception, ConfigError)


def test_terminal_tables():
    lines = StringIO()
    table = Table("A title", ("name", "value"), [("x", 0.5)], "A note.")
    Console(file=lines, width=60).print(table.terminal())
    assert all(word in lines.getvalue() for word in ("A title", "name", "0.5", "A note."))
