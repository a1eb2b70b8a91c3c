"""The studies use the library; the library knows nothing of them."""

from __future__ import annotations

import ast
from pathlib import Path

from typer.testing import CliRunner

from fafed.cli import app

SOURCE = Path(__file__).parents[2] / "src"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_library_imports_no_study():
    files = list(SOURCE.rglob("*.py"))
    assert files
    for path in files:
        assert "studies" not in {name.partition(".")[0] for name in imported(path)}, path


def test_studies_are_no_commands_of_the_library():
    for name in ("paper", "theory"):
        result = CliRunner().invoke(app, [name])
        assert result.exit_code == 2
        assert f"No such command '{name}'" in result.output
