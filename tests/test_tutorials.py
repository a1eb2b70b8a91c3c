"""The scripts behind the tutorials and the pages "Coming from ..." run as printed."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "examples" / "tutorials"
OTHERS = ROOT / "examples" / "coming_from"
FAST = ("tables", "pictures", "recordings")
SLOW = ("compare", "privacy")
NEEDS = {"pictures": "PIL", "compare": "plotly", "privacy": "dp_accounting"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(path, monkeypatch):
    """Like `python path`, in this process."""
    monkeypatch.syspath_prepend(str(path.parent))
    for name in ("tables", "job"):
        sys.modules.pop(name, None)
    return runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_tutorial(name, monkeypatch, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    run(TUTORIALS / f"{name}.py", monkeypatch)
    told = capsys.readouterr().out
    if name == "compare":
        assert "SCAFFOLD" in told
        assert Path("report/report.html").is_file()
    elif name == "privacy":
        spent = [float(number) for number in re.findall(r"epsilon (\S+)", told)]
        assert len(spent) == 4
        assert spent == sorted(spent)
        assert spent[-1] <= 8
    else:
        accuracy = float(re.search(r"accuracy ([\d.]+)", told)[1])
        assert accuracy > 0.6, told  # guessing: 1/3


def test_every_tutorial_is_tested():
    assert {path.stem for path in TUTORIALS.glob("*.py")} == {*FAST, *SLOW}


def commands(page):
    """What a page tells to type."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    plain = [block for block in text.split("```")[1::2] if block.startswith("\n")]
    lines = "".join(plain).replace("\\\n", " ").splitlines()
    return [line for line in lines if line]


@pytest.mark.slow
def test_compare_and_tune_as_printed(monkeypatch, capsys):
    """Only `examples` is a copy, with fewer algorithms and seeds."""
    pytest.importorskip("optuna")
    pytest.importorskip("plotly")
    from typer.testing import CliRunner

    from fafed.cli import app

    shutil.copytree(TUTORIALS, "examples/tutorials")
    for line in commands("tutorials/compare-and-tune.md"):
        first, *words = shlex.split(line)
        if first == "pip":
            continue
        if first == "python":
            run(Path(words[0]), monkeypatch)
            continue
        assert first == "fafed"
        fewer = {"3": "1", "fedavg,scaffold,fafed": "fedavg"}
        words = [fewer.get(word, word) for word in words]
        done = CliRunner().invoke(app, [*words, "-j", "1"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert Path("runs/tables/best.toml").is_file()
    assert Path("report/report.html").is_file()


def test_the_small_job_of_other_libraries(monkeypatch, capsys):
    run(OTHERS / "with_fafed.py", monkeypatch)
    accuracy = float(re.search(r"accuracy ([\d.]+)", capsys.readouterr().out)[1])
    assert accuracy > 0.6  # guessing: 1/4


def flowers_python():
    """The interpreter of an environment with Flower's simulation: the benchmark's, or ours."""
    its_own = ROOT / ".bench" / "environments" / "flower"
    if (its_own / "installed.txt").is_file():
        return its_own / "bin" / "python"
    if all(map(importlib.util.find_spec, ("flwr", "ray"))):
        return Path(sys.executable)
    pytest.skip("needs Flower's simulation: python -m studies.performance setup")


@pytest.mark.slow
def test_the_small_job_in_flower_itself(monkeypatch):
    """It learns what ours learns."""
    ours = run(OTHERS / "with_fafed.py", monkeypatch)
    done = subprocess.run(
        [flowers_python(), OTHERS / "with_flower.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    theirs = float(re.search(r"accuracy ([\d.]+)", done.stdout)[1])
    accuracy = ours["job"].accuracy(ours["result"].model)
    assert abs(theirs - accuracy) < 0.02  # of 1000 examples; the batches are drawn differently


def test_the_job_of_the_benchmarks_reads():
    from fafed.experiments.config import Experiment

    found = Experiment.read(OTHERS / "fashion.toml")
    assert found.with_algorithm("fedprox").algorithm.name == "fedprox"
    assert (found.rounds, found.local_epochs, found.participation) == (20, 1, 0.5)


@pytest.mark.slow
def test_the_job_of_the_benchmarks_runs():
    from typer.testing import CliRunner

    from fafed.cli import app

    words = ["run", str(OTHERS / "fashion.toml"), "--set", "rounds=1"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "round 1" in done.output
