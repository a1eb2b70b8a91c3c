"""The TOML text of an experiment: where it is found, how `--set` changes it, how it is written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fafed.errors import ConfigError, nearest
from fafed.files import Json


def presets() -> dict[str, str]:
    """Name -> TOML text of the experiments that ship with fafed."""
    folder = resources.files("fafed.experiments") / "presets"
    files = (f for f in folder.iterdir() if f.name.endswith(".toml"))
    return {f.name.removesuffix(".toml"): f.read_text("utf-8") for f in sorted(files, key=str)}


def located(source: str | Path) -> tuple[str, str]:
    """Where the text comes from, and the text: of a file, or of a preset."""
    path = Path(source)
    if path.is_file():
        try:
            return str(path), path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    known = presets()
    if str(source) in known:
        return f"{source}.toml", known[str(source)]
    raise ConfigError(
        f"there is no experiment {str(source)!r}: neither a file nor a preset; "
        f"{nearest(str(source), known)}"
    )


def apply(content: dict[str, Any], change: str) -> None:
    """Make one change, such as "algorithm.eta=0.1"."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change!r}: write it as key=value, for example algorithm.eta=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    table = content
    *folders, last = key.strip().split(".")
    for folder in folders:
        table = table.setdefault(folder, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {change!r}: {folder!r} is a value, not a table")
    if key.strip() == "algorithm.name" and table.get("name") != value:
        table.clear()  # another algorithm has other settings
        table.update(content.get("settings", {}).get(value, {}))
    table[last] = value


def to_toml(content: Mapping[str, Json], prefix: str = "") -> str:
    """Plain values first, then tables; enough TOML for an experiment."""
    lines = [f"{_key(k)} = {_value(v)}" for k, v in content.items() if not _is_table(k, v, prefix)]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in content.items():
        if isinstance(value, dict) and _is_table(key, value, prefix):
            path = f"{prefix}.{_key(key)}" if prefix else _key(key)
            inner = to_toml(value, path)
            only_tables = all(isinstance(v, dict) for v in value.values()) and value
            text += inner if only_tables else f"\n[{path}]\n{inner}"
    return text


def as_toml(content: Mapping[str, Json]) -> str:
    """One line per entry; tables inside are on one line, too."""
    return "".join(f"{_key(k)} = {_value(v)}\n" for k, v in content.items())


def _is_table(key: str, value: Json, prefix: str) -> bool:
    if not isinstance(value, dict):
        return False
    return prefix == "" or prefix in ("settings", "search")


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _value(value: Json) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
