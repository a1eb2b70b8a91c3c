"""docs/paper.md and the README say what studies/paper/results says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fafed.errors import ConfigError
from fafed.experiments.config import Experiment
from fafed.experiments.toml_text import presets
from fafed.report.numbers import Stat
from studies import markdown
from studies.paper import document, driver, figures, tables, verdicts
from studies.paper.__main__ import app
from studies.paper.decisions import Decisions
from studies.paper.findings import Findings
from studies.paper.ledger import Ledger, Missing, Outcome
from studies.paper.protocol import Protocol

REPOSITORY = Path(__file__).parents[3]
STUDY = REPOSITORY / "studies" / "paper"
DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def findings():
    protocol = Protocol.read(STUDY / "configs")
    return Findings(Decisions(protocol, Ledger.read(STUDY / "results")))


@pytest.fixture(scope="module")
def drawn(findings):
    return figures.available(findings)


def test_the_pages_are_those_that_the_records_give(findings, drawn):
    page = (DOCS / "paper.md").read_text("utf-8")
    assert page == document.render(findings, drawn), "python -m studies.paper document"
    appendix = (DOCS / "paper-appendix.md").read_text("utf-8")
    assert appendix == document.render_appendix(findings, drawn), "python -m studies.paper document"
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page + appendix)
    assert sorted(Path(picture).stem for picture in pictures) == sorted(drawn)
    for picture in pictures:
        assert (DOCS / picture).is_file()
    for text, own in ((page, "paper.md"), (appendix, "paper-appendix.md")):
        for link, anchor in re.findall(r"\]\(([\w./-]*)(#[\w-]+)?\)", text):
            assert (DOCS / (link or own)).exists()
            if anchor:
                headings = re.findall(
                    r"^##+ (.+)$", (DOCS / (link or own)).read_text("utf-8"), re.M
                )
                assert anchor[1:] in {_anchor(heading) for heading in headings}, anchor


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_readme_shows_the_same_table(findings, drawn):
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    part = document.readme_part(findings, drawn)
    again = markdown.replace_part(readme, document.README_PART, part)
    assert readme == again, "python -m studies.paper document"
    assert tables.table_2(findings) in readme


def test_other_records_give_another_page(findings, drawn):
    outcomes = dict(findings.decisions.ledger.outcomes)
    finals = findings.finals("fashion-mnist-high", "fafed")
    if not finals:
        pytest.skip("Table 2 has not been run yet")
    for run in finals:
        columns = dict(run.columns) | {"test_accuracy": [0.91] * len(run.columns["round"])}
        outcomes[run.job.key] = Outcome(run.job, columns)
    changed = Findings(Decisions(findings.protocol, Ledger(outcomes.values())))
    text = document.render(changed, drawn)
    assert "0.9100" in text
    assert "0.9100" not in document.render(findings, drawn)


def test_verdicts_follow_the_numbers(findings):
    column = {method: Stat(0.8, 0.0, 3) for method in findings.protocol.methods}
    column |= {"fafed": Stat(0.88, 0.01, 3), "stem": Stat(0.87, 0.02, 3)}
    assert verdicts.standing(findings, column) == (
        "first, 0.0100 ahead of STEM (within the spread over seeds, 0.0200)"
    )
    column["stem"] = Stat(0.9, 0.0, 3)
    assert verdicts.standing(findings, column) == (
        "second, 0.0200 behind STEM (spread over seeds, 0.0100)"
    )
    assert verdicts.standing(findings, {"stem": column["stem"]}) == "not run yet"
    assert verdicts.scale_words({"a-low": column, "a-high": {"stem": column["stem"]}}) == (
        "low: -0.0200 (spread over seeds, 0.0100); high: not run yet"
    )
    assert verdicts.standing(findings, column | {"fedavg": Stat(0.8, None, 1)}) == "not run yet"
    lead = {m: Stat(0.8, 0.001, 3) for m in findings.protocol.methods} | {
        "fafed": Stat(0.81, 0.004, 3)
    }
    assert verdicts.judged(findings, lead) == "**holds** (first, +0.0100)"
    for accuracy, words in ((0.803, "open (first, +0.0030)"), (0.79, "**does not hold** (sixth")):
        assert verdicts.judged(findings, lead | {"fafed": Stat(accuracy, 0.004, 3)}).startswith(
            words
        )
    alone = {m: Stat(s.mean, None, 1) for m, s in lead.items()}
    assert verdicts.judged(findings, alone) == "one seed, no verdict (first, +0.0100)"
    losses = {m: Stat(5.0 - s.mean, 0.001, 3) for m, s in lead.items()}
    place = findings.standing(losses, lower=True)
    assert (place.rank, round(place.lead, 4)) == (1, 0.01)
    assert tables.accuracy(Stat(float("nan"), None, 3)) == "diverged"
    assert tables.settings({"alpha": {"schedule": "power", "kappa": 0.9, "every": "round"}}) == (
        "alpha = 0.9/(1 + round)^0.333"
    )
    assert tables.settings({"eta": {"schedule": "linear", "peak": 0.28, "end": 0.02}}) == (
        "eta = 0.28 falling"
    )


def test_with_nothing_run_the_page_says_so():
    empty = Findings(Decisions(Protocol.read(STUDY / "configs"), Ledger()))
    page = document.render(empty, []) + document.render_appendix(empty, [])
    assert "not run yet" in page
    assert "holds** (" not in page
    assert "open (" not in page
    assert not re.search(r"\d\.\d{4} ±", page)
    assert figures.available(empty) == []


def test_every_committed_record_belongs_to_the_protocol(findings):
    """A setting that was changed after the runs would leave records that nothing refers to."""
    ledger = findings.decisions.ledger
    relevant = driver.needed_records(Decisions(findings.protocol, Ledger(ledger.outcomes.values())))
    assert set(relevant.outcomes) == set(ledger.outcomes)


def test_commands(monkeypatch, tmp_path):
    monkeypatch.chdir(REPOSITORY)
    none = ["--runs", str(tmp_path)]
    shown = CliRunner().invoke(app, ["show", "protocol", *none])
    assert shown.exit_code == 0
    assert "Every method tries the" in shown.stdout
    stages = CliRunner().invoke(app, ["status", *none])
    assert "sensitivity" in stages.stdout
    wrong = CliRunner().invoke(app, ["show", "table-3", *none])
    assert isinstance(wrong.exception, ConfigError)
    wrong = CliRunner().invoke(app, ["figure", "figure-9", *none])
    assert isinstance(wrong.exception, ConfigError)
    results = ["--results", str(tmp_path / "none"), "-o", str(tmp_path)]
    empty = CliRunner().invoke(app, ["figure", "figure-1", *none, *results])
    assert empty.stdout == "figure-1: not run yet\n"


LEVELS = ("-low", "-moderate", "-high")  # the paper's
CHOSEN = sorted(n for n in presets() if n.endswith(LEVELS) and n != "fashion-mnist-high")


@pytest.mark.parametrize("name", CHOSEN)
def test_presets_have_the_settings_that_were_chosen(findings, name):
    """The preset of `make demo` has a search of its own; for text nothing was searched. Other
    presets are not the paper's."""
    decisions, protocol = findings.decisions, findings.protocol
    preset = Experiment.read(name)
    for method in protocol.methods:
        try:
            if name in protocol.table2:
                chosen = decisions.fair(name, method).winner.job.settings
            else:
                chosen = decisions.curve(protocol.chosen_at(name), method).job.settings
        except Missing:
            continue
        found = preset.with_algorithm(method).algorithm.options
        assert found == pytest.approx(chosen, rel=1e-3), method
