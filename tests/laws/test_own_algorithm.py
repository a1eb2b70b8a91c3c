"""docs/add-an-algorithm.md: its example is the file that runs, and its checks and recipes work."""

from __future__ import annotations

import re
import shlex
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from small import experiment, write_data, write_experiment
from typer.testing import CliRunner

import fafed
from fafed.cli import app
from fafed.errors import ConfigError
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import all_runs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text("utf-8")
EXAMPLE = (ROOT / "examples" / "own_algorithm.py").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(words):
    (found,) = (text for text in BLOCKS if words in text)
    return found


@pytest.fixture(autouse=True)
def beside_the_example(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def test_the_page_shows_the_example_verbatim():
    assert BLOCKS[0] == EXAMPLE
    assert len(EXAMPLE.splitlines()) < 40


def test_the_checks_of_the_page_pass():
    checks: dict[str, object] = {}
    exec(compile(block("def test_vmap_equals_loop"), "test_own_algorithm.py", "exec"), checks)
    tests = [check for name, check in checks.items() if name.startswith("test_")]
    assert len(tests) == 5
    for check in tests:
        check()


def test_sending_less_changes_nothing_but_the_bytes():
    from own_algorithm import FedAvgM

    Down = namedtuple("Down", "x")

    class Frugal(FedAvgM):
        def send(self, shared):
            return Down(shared.x)

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    clients = [(torch.randn(8, 2), torch.randint(0, 2, (8,))) for _ in range(2)]
    plain, frugal = (
        fafed.train(model, clients, algorithm(), rounds=2, batch_size=4, engine="loop")
        for algorithm in (FedAvgM, Frugal)
    )
    assert torch.equal(plain.x, frugal.x)
    assert plain.history[-1].bytes_down == 2 * plain.history[-1].bytes_up
    assert frugal.history[-1].bytes_down == frugal.history[-1].bytes_up


def test_it_works_at_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data")
    own = {"name": "own_algorithm:FedAvgM", "eta": 0.05}
    write_experiment(tmp_path / "experiment.toml", tmp_path / "data", algorithm=own)
    (command,) = re.findall(r"^fafed (compare .*)$", PAGE, re.MULTILINE)
    done = CliRunner().invoke(app, [*shlex.split(command), "--runs", "runs", "-o", "report"])
    assert done.exit_code == 0, done.output
    labels = {place.path.name.partition("-seed")[0] for place in all_runs(tmp_path / "runs")}
    assert labels == {"fedavg", "own_algorithm.FedAvgM"}
    assert "own_algorithm:FedAvgM" in Path("report/report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_algorithm:FedAvgN", "own_algorithm has no 'FedAvgN'; did you mean 'FedAvgM'"),
        ("own_algorithm:Shared", "must be a subclass of fafed.Algorithm"),
        ("own_algorithms:FedAvgM", "cannot be imported"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path, name, words):
    write_data(tmp_path)
    found = Experiment.from_dict(experiment(tmp_path, algorithm={"name": name}))
    with pytest.raises(ConfigError, match=words):
        prepare(found)
