"""The documentation site: its navigation, its links out of docs/, its pages made from code.

`make docs` builds the whole site with warnings as errors. Here are the parts of it that can be
wrong without a warning.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def loaded(name):
    spec = importlib.util.spec_from_file_location(
        f"website_{name}", ROOT / "website" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks():
    return loaded("hooks")


@pytest.fixture(scope="module")
def config():
    from mkdocs.config import load_config

    return load_config(str(ROOT / "mkdocs.yml"))


def in_nav(part):
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [page for each in parts for page in in_nav(each)]


def test_the_navigation_has_every_page_once(config, hooks):
    found = in_nav(config.nav)
    assert len(found) == len(set(found))
    made = {*hooks.NAMED.values(), "reference/cli.md", "reference/algorithms.md"}
    assert set(found) == {str(page.relative_to(DOCS)) for page in PAGES} | made


def test_a_warning_is_an_error():
    """With --quiet MkDocs would not count its warnings."""
    assert "mkdocs build --strict\n" in (ROOT / "Makefile").read_text("utf-8")


def test_nothing_comes_from_another_site(config, hooks):
    assert config.theme["font"] is False
    assert not config.extra_javascript
    assert not config.repo_url  # an address that exists, or none
    assert hooks.REMOTE.search('<link rel="stylesheet" href="https://x.example/a.css">')
    assert hooks.REMOTE.search("<script src=//x.example/a.js></script>")
    assert not hooks.REMOTE.search('<a href="https://x.example">text</a>')


def test_docs_are_markdown_and_pictures():
    kinds = {path.suffix for path in DOCS.rglob("*") if path.is_file()}
    assert kinds == {".md", ".svg", ".png"}
    for path in DOCS.rglob("*"):
        assert path.suffix == ".md" or path.is_dir() or path.stat().st_size < 400_000, path
    for path in (DOCS / "images" / "gallery").iterdir():
        assert path.stat().st_size < 200_000, path


@pytest.mark.parametrize(
    ("source", "link", "place"),
    [
        (
            "docs/data.md",
            "../examples/heart-disease/table.toml",
            "examples/heart-disease/table.toml",
        ),
        ("docs/tutorials/own-data.md", "../data.md", "docs/data.md"),
        ("examples/lora/README.md", "../../docs/silos.md", "docs/silos.md"),
    ],
)
def test_a_link_means_a_file_of_the_repository(hooks, source, link, place):
    assert hooks.resolved(source, link) == place
    assert (ROOT / place).exists()


def test_links_out_of_docs_lead_to_copies(hooks, config, monkeypatch):
    from mkdocs.structure.files import get_files
    from mkdocs.structure.pages import Page

    monkeypatch.setattr(config.plugins, "_current_plugin", "hooks", raising=False)
    files = hooks.on_files(get_files(config), config)
    for uri in (
        "contributing.md",
        "reference/cli.md",
        "files/examples/heart-disease/table.toml.md",
        "files/studies/paper/results/index.md",
        "files/README.md",
    ):
        assert files.get_file_from_path(uri), uri
    page = Page("Data", files.get_file_from_path("data.md"), config)
    text = "[a](../examples/heart-disease/table.toml) [b](evaluation.md#metrics) [c](#files)\n"
    kept = "```\n[d](../examples/heart-disease/table.toml)\n```\n"
    assert hooks.on_page_markdown(text + kept, page, config, files) == (
        "[a](files/examples/heart-disease/table.toml.md) [b](evaluation.md#metrics) [c](#files)\n"
        + kept
    )
    page = Page("Changes", files.get_file_from_path("contributing.md"), config)
    assert hooks.on_page_markdown("[g](docs/glossary.md)", page, config, files) == (
        "[g](glossary.md)"
    )


def test_every_command_and_every_algorithm_is_in_the_reference(hooks):
    import fafed

    commands, classes = hooks.command_line(), hooks.algorithms()
    for name in ("run", "compare", "tune", "silos check", "data get", "export model"):
        assert f"`fafed {name}`" in commands, name
    for kind in fafed.ALGORITHMS.values():
        assert f"## {kind.__name__}\n" in classes
    assert f"fafed.FedAvg(\n    eta={fafed.FedAvg().eta},\n" in classes


def test_docstrings_become_lists():
    api = loaded("api")
    text = "Do it.\n\nmodel: any module.\nclip, decay: the bound\n    on it.\n\nAn end: not a name."
    assert api.listed(text) == (
        "Do it.\n\n- `model`: any module.\n- `clip`, `decay`: the bound\n    on it.\n\n"
        "An end: not a name."
    )
    sentence = "It is said in\nfiles: they are read."
    assert api.listed(sentence) == sentence


def test_the_comment_behind_a_field_says_what_it_is(tmp_path):
    import griffe

    api, path = loaded("api"), tmp_path / "fields.py"
    path.write_text("class Result:\n    x: int  # its vector\n    y: int\n\n\nz: int  # no field\n")
    code = griffe.visit("fields", path, path.read_text(), extensions=griffe.Extensions(api.Fafed()))
    assert code["Result.x"].docstring.value == "its vector"
    assert code["Result.y"].docstring is None
    assert code["z"].docstring is None


SNIPPET = re.compile(r'^--8<-- "([^":]+)(?::(\w+))?"$', re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_on_a_page_is_that_of_a_script(page):
    for path, section in SNIPPET.findall(page.read_text("utf-8")):
        text = (ROOT / path).read_text("utf-8")
        if section:
            inside = text.split(f"[start:{section}]")[1].split(f"[end:{section}]")[0]
            assert len(inside.splitlines()) > 3
