"""How the API reference reads fafed's docstrings (an extension of griffe).

A docstring explains names as `name: text`, with the text's further lines indented. They become a
list. The comment behind a field says what it is.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

import griffe

ENTRY = re.compile(r"^([A-Za-z_][\w, ]*?): (?=\S)")
NAMES = re.compile(r"[a-z_][a-z0-9_]*(, [a-z_][a-z0-9_]*)*")


class Fafed(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            line = linecache.getline(str(attr.filepath), attr.lineno or 0)
            _, mark, comment = line.strip().partition("  # ")
            if mark:
                attr.docstring = griffe.Docstring(comment, parent=attr)


def listed(text: str) -> str:
    """The text with its blocks of `name: text` as lists."""
    lines, found, inside = text.splitlines(), [], False
    for i, line in enumerate(lines):
        match = ENTRY.match(line)
        if match and NAMES.fullmatch(match[1]) and (inside or not before(lines, i)):
            if not inside and found and found[-1]:
                found.append("")
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            found.append(f"- {names}: {line[match.end() :]}")
            inside = True
            continue
        if inside and line and not line.startswith("    "):
            inside = False
            if found[-1]:
                found.append("")
        found.append(line)
    return "\n".join(found)


def before(lines: list[str], i: int) -> str:
    """The line before, if the entry cannot begin after it: an ordinary sentence that goes on."""
    line = lines[i - 1].rstrip() if i else ""
    return "" if not line or line.endswith((".", ":")) or line.startswith("    ") else line
