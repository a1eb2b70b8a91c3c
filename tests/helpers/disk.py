"""A disk on which only what was synced is sure: what would be there after a power cut.

It watches a folder while a program of this process works in it. The content of a file is sure once
the file was synced, and its name once its folder was.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Disk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}  # inode -> what was synced
        self.folders: dict[int, dict[str, int]] = {}  # inode -> synced names -> inodes
        self.kinds: dict[int, bool] = {}  # inode -> whether it is a folder
        self.top = root.stat().st_ino
        self.kinds[self.top] = True

    def watch(self, monkeypatch: Any, look: Callable[[str], None]) -> None:
        """Call `look` before and after each system call that a power cut could fall beside."""

        def around(name: str, after: Callable[..., None]) -> None:
            real = getattr(os, name)

            def call(*arguments: Any, **options: Any) -> Any:
                look(f"before {name}")
                if name != "fsync":
                    self.forget(Path(arguments[0 if name == "unlink" else -1]))
                found = real(*arguments, **options)
                after(*arguments)
                look(f"after {name}")
                return found

            monkeypatch.setattr(os, name, call)

        around("fsync", self.synced)
        for name in ("replace", "rename", "unlink"):
            around(name, lambda *_: None)

    def synced(self, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not path.is_relative_to(self.root):
            return
        if stat.S_ISDIR(facts.st_mode):
            self.folders[facts.st_ino] = {p.name: p.lstat().st_ino for p in path.iterdir()}
            for inner in path.iterdir():
                self.kinds[inner.lstat().st_ino] = inner.is_dir()
        else:
            self.contents[facts.st_ino] = path.read_bytes()

    def forget(self, gone: Path) -> None:
        """An inode that goes may come back as another file."""
        if gone.is_file():
            inode = gone.stat().st_ino
            if not any(inode in names.values() for names in self.folders.values()):
                self.contents.pop(inode, None)

    def careful(self, target: Path) -> None:
        """After a cut that left nothing that was not synced."""
        self._copy(self.top, target)

    def _copy(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, inner in self.folders.get(inode, {}).items():
            if self.kinds[inner]:
                self._copy(inner, target / name)
            else:
                (target / name).write_bytes(self.contents.get(inner, b""))

    def careless(self, target: Path) -> None:
        """After a cut that left all names, and zeros where content was not synced."""
        for path in [self.root, *sorted(self.root.rglob("*"))]:
            there = target / path.relative_to(self.root)
            if path.is_dir():
                there.mkdir()
            else:
                sure = self.contents.get(path.stat().st_ino, b"")[: path.stat().st_size]
                there.write_bytes(sure + bytes(path.stat().st_size - len(sure)))
