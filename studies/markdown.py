"""Markdown for the pages of all studies: tables, marked parts of a file, lines of one width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from fafed.errors import FafedError

WIDTH = 100  # of a line of text; tables, code, headings and pictures stay as they are


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: bool = False) -> str:
    """A table that ends with a new line. `right` aligns all columns but the first to the right."""
    rule = ["---", *(["---:" if right else "---"] * (len(head) - 1))]
    return "".join(map(_row, [head, rule, *rows]))


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def part_names(text: str) -> list[str]:
    """The names of the parts of a page that are marked `<!-- NAME -->` ... `<!-- /NAME -->`."""
    return re.findall(r"<!-- (\S+) -->.*?<!-- /\1 -->", text, flags=re.DOTALL)


def replace_part(text: str, name: str, part: str) -> str:
    """The page with this text, wrapped, between the markers of the part."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begins, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise FafedError(
            f"the page has no part {name!r} to replace: it needs the markers {begin} and {end}"
        )
    return f"{before}{begin}\n{wrap(part)}{end}{after}"


def wrap(text: str, width: int = WIDTH) -> str:
    """Fill paragraphs and list items to lines of this width. Inline code is not broken."""
    blocks: list[str] = []
    for block in text.rstrip("\n").split("\n\n"):
        if blocks and len(re.findall("^```", blocks[-1], flags=re.MULTILINE)) % 2:
            blocks[-1] += f"\n\n{block}"  # a blank line within fenced code
        else:
            blocks.append(block)
    return "\n\n".join(_wrap_block(block, width) for block in blocks) + "\n"


def _wrap_block(block: str, width: int) -> str:
    if re.match(r"[|#!<]|```|    ", block):
        return block
    items = re.split(r"\n(?=- |\d+\. )", block)
    return "\n".join(_wrap_item(item, width) for item in items)


def _wrap_item(item: str, width: int) -> str:
    found = re.match(r"- |\d+\. |", item)
    mark = found[0] if found else ""
    words = " ".join(item.removeprefix(mark).split())
    words = re.sub("`[^`]+`", lambda code: code[0].replace(" ", "\0"), words)
    words = re.sub(r" (?=([-+*>#]|\d+[.)]) )", "\0", words)  # else a line could begin as a list
    lines = textwrap.fill(
        words,
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\0", " ")
