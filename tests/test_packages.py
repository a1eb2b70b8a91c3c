"""What is published: small, and the same version everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import fafed

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def test_fafed_is_small():
    """Data belongs into a package of its own. PyPI keeps every version for ever."""
    files = [path for path in (ROOT / "src").rglob("*") if "__pycache__" not in path.parts]
    sizes = {path.name: path.stat().st_size for path in files if path.is_file()}
    assert max(sizes.values()) < 200_000, max(sizes, key=sizes.__getitem__)
    assert sum(sizes.values()) < 5_000_000


def test_a_clone_needs_no_published_package_of_ours():
    """`pip install -e ".[dev]"` works before anything is published."""
    wanted = [part for extra in ("dev", "report", "all") for part in EXTRAS[extra]]
    assert not [part for part in wanted if "fafed-" in part or "demo" in part]
    assert any(part.startswith("fafed-fashion-mnist") for part in EXTRAS["demo"])


def test_one_version():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert cited
    assert cited[1] == fafed.__version__
    assert f"## {fafed.__version__} " in (ROOT / "CHANGELOG.md").read_text("utf-8")
