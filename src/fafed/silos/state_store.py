"""The states that a silo keeps between rounds, on its own disk.

A state has a tag: its run, round, exchange and attempt. The silo keeps the newest state and the one
before it. The server names the valid one. So a silo can continue if its last answer was lost, or if
its server went back one round. A file is complete or absent, and checked when read. It has 8 bytes
with the length of a message's head, the head, zeros up to a page, and the body.
"""

from __future__ import annotations

import struct
from pathlib import Path

from fafed import files
from fafed.core import tree
from fafed.engines.base import ClientState
from fafed.errors import FafedError
from fafed.silos import messages, payload
from fafed.silos.messages import ExchangeId, Message, Refused

PAGE = 2**16  # bytes; a multiple of every machine's page, so that a body can be mapped


class Lost(FafedError):
    """The state that the server names is not on this silo. The error says why."""


class Store:
    """The states of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, place: ExchangeId, state: ClientState, base: ExchangeId | None) -> None:
        """Write the state. The first state of a round deletes all older states but `base`, the
        state that it was computed from."""
        message = messages.write("state", place, {}, messages.pack(state))
        path = self._path(place)
        files.make_folder(self.folder, private=True)
        top = struct.pack("<Q", len(message.head)) + message.head
        filler = bytes(-len(top) % PAGE)
        files.write(path, [top, filler, *payload.pieces(message.body)], private=True)
        kept = {path, *([self._path(base)] if base else [])}
        for old in self.folder.glob("round-*.state"):
            if place.exchange == 0 and old not in kept:
                old.unlink(missing_ok=True)

    def load(self, place: ExchangeId, like: ClientState) -> ClientState:
        """The state with this tag. It has the shape of `like`; its hidden part may be missing."""
        path = self._path(place)
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                head = file.read(min(length, messages.HEAD_LIMIT + 1))
                file.read(-file.tell() % PAGE)
                message = Message(head, payload.rest(file))
            names = [row[0] for row in messages.glance(message.head)["tensors"]]
            if not any(name.startswith("hidden") for name in names):
                like = like._replace(hidden=())
            expected = {n: (None, dtype) for n, (_, dtype) in messages.shapes(like).items()}
            kinds: dict[str, messages.Shapes] = {"state": {**expected}}
            found = messages.read(message, place, kinds, message.size, finite=False)
        except FileNotFoundError:
            raise Lost(f"there is no state of round {place.round}") from None
        except (OSError, struct.error, Refused, IndexError, TypeError) as cause:
            raise Lost(f"the state of round {place.round} cannot be used: {cause}") from cause
        return tree.unflatten(like, found.tensors)

    def _path(self, place: ExchangeId) -> Path:
        return self.folder / f"round-{place.round:07d}-{place.attempt}.state"
