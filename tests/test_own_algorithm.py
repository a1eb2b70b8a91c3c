"""docs/add-an-algorithm.md: its example is the file that runs, and its checks and recipes work."""

from __future__ import annotations

import re
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from small import write_data, write_experiment

import fafed

ROOT = Path(__file__).parent.parent
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


def test_a_registered_name_works_in_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fafed.ALGORITHMS, "fedavgm", None)  # undone after the test
    write_data(tmp_path / "data")
    write_experiment(tmp_path / "plain.toml", tmp_path / "data")
    text = (tmp_path / "plain.toml").read_text("utf-8")
    Path("fedavgm.toml").write_text(text.replace('"fafed"', '"fedavgm"'), "utf-8")
    exec(block('ALGORITHMS["fedavgm"]'), {})
    assert "Record(round=6" in capsys.readouterr().out
