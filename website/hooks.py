"""What the documentation site has beyond the pages in docs/.

Pages link to files of the repository outside docs/: an example, a study's results, CONTRIBUTING.md.
Such a link works in the repository as it is. On the site it leads to a copy that is made here: a
Markdown file becomes a page, other text a page that shows it, a folder a list of its files.

The references of the command line and of the algorithms are made from the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

log = get_plugin_logger("site")
ROOT = Path(__file__).parents[1]
NAMED = {  # pages with a place of their own in the navigation
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/heart-disease/README.md": "tutorials/four-hospitals.md",
}
FIRST = [*NAMED, "README.md"]  # here links begin, besides the pages in docs/
LARGEST = 64 * 1024  # bytes of a file that is shown; larger ones are copied as they are
KINDS = {".py": "python", ".toml": "toml", ".json": "json"}
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
REMOTE = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
WIDE = {"navigation": "index.md", "toc": "coming-from/"}  # what these pages do without
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"

_from: dict[str, str] = {}  # a page of the site -> the file of the repository that it shows


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the copies, the pages made from code, and the style."""
    _from.clear()
    for file in files.documentation_pages():
        _from[file.src_uri] = f"docs/{file.src_uri}"
    new = [(path, place_of(path)) for path in FIRST]
    for uri, source in list(_from.items()):
        new += linked(source, files.get_file_from_path(uri).content_string)
    while new:
        source, uri = new.pop()
        if files.get_file_from_path(uri) or not (ROOT / source).exists():
            continue  # a missing file: MkDocs warns of the link
        file, more = copy_of(source, uri, config)
        files.append(file)
        new += more
    for uri, text in (
        ("reference/cli.md", command_line()),
        ("reference/algorithms.md", algorithms()),
    ):
        files.append(File.generated(config, uri, content=text))
    style = Path(__file__).with_name("style.css").read_text("utf-8")
    files.append(File.generated(config, "assets/fafed.css", content=style))
    return files


def copy_of(source: str, uri: str, config: MkDocsConfig) -> tuple[File, list[tuple[str, str]]]:
    """The site's copy of a file or folder, and what it links to."""
    path = ROOT / source
    level = InclusionLevel.INCLUDED if source in NAMED else InclusionLevel.NOT_IN_NAV
    more: list[tuple[str, str]] = []
    if not uri.endswith(".md"):
        content: str | bytes = path.read_bytes()
    elif path.is_dir():
        inside = sorted(each for each in path.iterdir() if not each.name.startswith((".", "_")))
        names = [f"{each.relative_to(ROOT)}" for each in inside if each.is_file()]
        lines = [f"- [{Path(name).name}](/{name})" for name in names]
        content = f"{HIDDEN}# {source}\n\nThe files of this folder of the repository:\n\n"
        content += "\n".join(lines) + "\n"
        more = [(name, place_of(name)) for name in names]
    elif path.suffix == ".md":
        content = path.read_text("utf-8")
        more = linked(source, content)
        if source not in NAMED:
            content = HIDDEN + content
    else:
        text = path.read_text("utf-8").rstrip("\n")
        content = f"{HIDDEN}# {source}\n\n````{KINDS.get(path.suffix, 'text')}\n{text}\n````\n"
    _from[uri] = source
    return File.generated(config, uri, content=content, inclusion=level), more


def place_of(source: str) -> str:
    """Where the site has a file of the repository."""
    path = ROOT / source
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source in NAMED:
        return NAMED[source]
    if path.is_dir():
        readme = f"{source}/README.md"
        return place_of(readme) if (ROOT / readme).exists() else f"files/{source}/index.md"
    small = path.exists() and path.stat().st_size <= LARGEST
    shown = small and path.suffix not in (".md", ".ipynb")
    return f"files/{source}.md" if shown else f"files/{source}"


def linked(source: str, text: str) -> Iterator[tuple[str, str]]:
    """The files of the repository outside docs/ that a page links to."""
    for match in LINK.finditer(FENCE.sub("", text)):
        target = resolved(source, match[2])
        if not target.startswith("docs/"):
            yield target, place_of(target)


def resolved(source: str, link: str) -> str:
    """The file of the repository that a link in another one means."""
    if link.startswith("/"):
        return link[1:]
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the site's places, and make room on wide pages."""
    uri = page.file.src_uri
    hidden = [what for what, pages in WIDE.items() if uri.startswith(pages)]
    page.meta.setdefault("hide", hidden)
    source = _from.get(uri)
    if source is None:
        return markdown

    def moved(match: re.Match[str]) -> str:
        target = resolved(source, match[2])
        if source.startswith("docs/") and target.startswith("docs/"):
            return match[0]
        place = posixpath.relpath(place_of(target), posixpath.dirname(uri) or ".")
        return f"{match[1]}{place}{match[3] or ''})"

    kept: list[str] = []

    def hide(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    text = LINK.sub(moved, FENCE.sub(hide, markdown))
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The site must work without a network: nothing on a page comes from elsewhere."""
    for found in REMOTE.findall(output):
        log.warning("%s loads something from another site: %s", page.file.src_uri, found)
    return output


def command_line() -> str:
    """The help of all commands of `fafed`, as a page."""
    import typer.main
    from typer.cli import get_docs_for_click

    from fafed.cli import app

    command = typer.main.get_command(app)
    _whole_sentences(command)
    context = typer.Context(command, info_name="fafed")
    text = get_docs_for_click(obj=command, ctx=context, name="fafed", title="Command line")
    return f"{text.strip()}\n"


def _whole_sentences(command: Any) -> None:
    """In a list of commands each has its first sentence, and not as much as fits into a line."""
    for each in getattr(command, "commands", {}).values():
        each.short_help = (each.help or "").split(". ")[0].strip().rstrip(".") + "."
        _whole_sentences(each)


def algorithms() -> str:
    """The classes of all algorithms, as a page."""
    from fafed.algorithms import ALGORITHMS

    parts = [
        "# Algorithms",
        "[All algorithms](../algorithms.md) has a card for each class: its update in symbols, its "
        "settings and its costs. [Which algorithm](../which-algorithm.md) compares them. The "
        "methods of a class are those of [`fafed.Algorithm`](interface.md).",
    ]
    for kind in ALGORITHMS.values():
        name = kind.__name__
        given = [f.name for f in dataclasses.fields(kind) if f.init]
        values = ",\n".join(f"    {each}={getattr(kind(), each)!r}" for each in given)
        parts += [
            f"## {name}",
            f"```python\nfafed.{name}(\n{values},\n)\n```",
            inspect.getdoc(kind) or "",
            f"[Card](../algorithms.md#{name.lower()})",
        ]
    return "\n\n".join(parts) + "\n"
