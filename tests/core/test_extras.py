"""A missing package is named with the command that installs it, before anything is computed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fafed.core.extras import require
from fafed.errors import ConfigError


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_what_is_missing_is_named_with_its_cure(module):
    with pytest.raises(ConfigError, match=r'x needs no_such_package.*pip install "fafed\[tune\]"'):
        require("x", "tune", "json", module)


def test_what_is_there_is_not_imported():
    code = "import sys; from fafed.core.extras import require; require('x', 'y', 'wave')"
    code += "; assert 'wave' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("command", "package"), [("tune", "optuna"), ("compare", "plotly")])
def test_commands_look_before_they_compute(command, package, tmp_path):
    """Without its package a command ends at once and leaves nothing behind."""
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)
from fafed.cli import main
sys.argv = ["fafed", {command!r}, "fashion-mnist-high", "--algorithms", "fafed"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"fafed {command} needs {package}" in done.stderr
    assert not list(tmp_path.iterdir())
