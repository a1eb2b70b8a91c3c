"""The folders are the architecture: who may import whom, lazy imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fafed

ROOT = Path(fafed.__file__).parent
BELOW = {
    "errors": set(),
    "files": {"errors"},
    "core": {"errors"},
    "algorithms": {"core", "errors"},
    "kernels": {"core", "errors", "files"},
    "objectives": {"kernels", "core", "errors"},
    "data": {"kernels", "core", "errors", "files"},
    "models": {"kernels", "core", "errors"},
    "privacy": {"core", "errors", "files"},
}
BELOW["engines"] = {"objectives", "data", "privacy", *BELOW["data"]}
BELOW["training"] = {"engines", *BELOW["engines"]}
BELOW["experiments"] = {"training", "models", "algorithms", *BELOW["training"]}
BELOW["report"] = {"experiments", *BELOW["experiments"]}
BELOW["silos"] = {"experiments", *BELOW["experiments"]}
BELOW["cli"] = {"silos", "report", *BELOW["silos"]}


def imports(path):
    """The modules of fafed that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if package in ("__init__", "__main__"):  # public names, and the command line
            continue
        for name in imports(path):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if top == "fafed" and other not in {package, "__version__", *BELOW[package]}:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_interface_loads_no_compiler_and_no_reader_of_files():
    code = "import sys, fafed.core.algorithm; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.startswith("fafed.")]
    assert {name.split(".")[1] for name in loaded} == {"core", "errors"}
