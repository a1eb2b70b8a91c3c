"""docs/silos.md as somebody reads it: its files, and its commands, typed in a folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fafed.cli import app
from fafed.errors import FafedError

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "silos.md"
ADMIN = "admin@fafed.org"


def section(title: str) -> list[tuple[str, str]]:
    """The blocks of a section or step: language and text."""
    text = re.split(r"\n##+ (?:\d\. )?", GUIDE.read_text("utf-8"))
    own = next(part for part in text if part.startswith(title))  # Flower's part comes later
    parts = own.split("```")[1::2]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def commands(title: str) -> list[str]:
    """The lines to type. One that ends with a backslash goes on."""
    blocks = [text.replace("\\\n", " ") for language, text in section(title) if not language]
    return [line.split("  #")[0].strip() for text in blocks for line in text.splitlines()]


def files(title: str) -> dict[str, str]:
    """The files that are printed whole: their first line names them."""
    blocks = [text for language, text in section(title) if language == "toml"]
    return {m[1]: text for text in blocks if (m := re.match(r"# (\S+\.toml):", text))}


class Machine:
    """A folder in which somebody types what the guide says."""

    def __init__(self, folder: Path, **here: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.here = folder, here

    def type(self, line: str, at: str = "") -> str:
        for old, new in self.here.items():
            line = line.replace(old, new)
        folder = self.folder / at
        if line.startswith("fafed "):
            return self._fafed(line, folder)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        told = folder / "told.txt"  # not a pipe: what stays in the background would hold it
        with told.open("w") as out:
            code = subprocess.run(
                line,
                shell=True,
                cwd=folder,
                env=os.environ | {"PATH": path},
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            ).returncode
        assert code == 0, f"{line}\n{told.read_text()}"
        return told.read_text()

    def fails(self, line: str) -> str:
        """Type a command of fafed that ends with an error. Its words."""
        with pytest.raises(FafedError) as error:
            self.type(line)
        return str(error.value)

    def _fafed(self, line: str, folder: Path) -> str:
        """In this process: most of the time of a new one would be its imports."""
        arguments, _, target = line.partition(" > ")
        before = Path.cwd()
        os.chdir(folder)
        try:
            done = CliRunner().invoke(app, shlex.split(arguments)[1:])
            if isinstance(done.exception, FafedError):
                raise done.exception
            assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception}"
            if target:
                Path(target).write_text(done.output, "utf-8")
        finally:
            os.chdir(before)
        return done.output
