"""The command line, as a real process."""

from __future__ import annotations

import json
import subprocess
import sys

from fafed import ALGORITHMS


def fafed(*arguments):
    command = [sys.executable, "-m", "fafed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_help_does_not_import_torch():
    code = "import sys, fafed.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_algorithms_table():
    done = fafed("algorithms")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ALGORITHMS)


def test_algorithms_json_is_measured_from_the_code():
    cards = {card["name"]: card for card in json.loads(fafed("algorithms", "--json").stdout)}
    assert set(cards) == set(ALGORITHMS)
    assert (cards["fafed"]["up"], cards["fafed"]["down"], cards["fafed"]["gradients"]) == (3, 3, 2)
    assert (cards["fedavg"]["up"], cards["fedavg"]["gradients"]) == (1, 1)
    assert "arxiv.org/abs/2205.02719" in cards["fedams"]["paper"]
    assert "arxiv.org/abs/2003.00295" in cards["fedyogi"]["paper"]
    settings = {s["name"]: s["default"] for s in cards["fafed"]["settings"]}
    assert (settings["eta"], settings["rho"]) == (0.01, 0.01)


def test_unknown_command_fails():
    assert fafed("algorithm").returncode == 2
