"""The states that the clients of this process keep between exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.tree import Tree
from fafed.engines.base import ClientState
from fafed.errors import FafedError

UNDO_BYTES = 2**30  # states of all clients up to this size are held twice during a round


class Row(NamedTuple):
    """Where a client's state is: alone, or in a row of a group's stacked state. The second saves
    stacking it again."""

    stacked: ClientState
    row: int | None = None

    def state(self) -> ClientState:
        return self.stacked if self.row is None else tree.take(self.stacked, self.row)


class ClientStates:
    """The states after the last finished round, and those of the current round.

    If all states together are large, they are held only once. Then a round changes them in place,
    and a failed round ends the run.
    """

    def __init__(
        self, algorithm: AnyAlgorithm, population: int, x0: Tensor, owed: Tree = ()
    ) -> None:
        """owed: by a client that has not taken part yet."""
        self.algorithm = algorithm
        self.owed = owed
        self.kept: list[Row | None] = [None] * population
        self.pending: dict[int, Row] = {}
        self.undoes = population * tree.nbytes((algorithm.join(x0), owed)) <= UNDO_BYTES
        self.changed = self.spoilt = False

    # One round.

    def keep(self, rows: dict[int, Row]) -> None:
        if self.undoes:
            self.pending |= rows
            return
        self.changed = True
        for client, row in rows.items():
            self.kept[client] = row

    def commit(self) -> None:
        for client, kept in self.pending.items():
            self.kept[client] = kept
        self.pending, self.changed = {}, False

    def rollback(self) -> None:
        self.pending, self.spoilt = {}, self.spoilt or self.changed

    def refuse_spoilt(self) -> None:
        if self.spoilt:
            raise FafedError(
                "a round failed after it had changed the states of some clients, which together "
                f"are larger than {UNDO_BYTES >> 20} MiB and are held only once: go on from a "
                "checkpoint"
            )

    # All clients.

    def read(self) -> list[ClientState | None]:
        """The state of each client; None for a client that has not taken part yet."""
        self.refuse_spoilt()
        return [None if kept is None else kept.state() for kept in self.kept]

    def write(self, states: Sequence[ClientState | None]) -> None:
        self.kept = [None if state is None else Row(state) for state in states]
        self.changed = self.spoilt = False

    # Some clients. A client that has not taken part yet joins at x.

    def of_client(self, client: int, x: Tensor) -> ClientState:
        kept = self._row(client)
        return self._new(x) if kept is None else kept.state()

    def has_hidden(self, client: int) -> bool:
        kept = self._row(client)
        return kept is not None and bool(tree.leaves(kept.stacked.hidden))

    def of_group(self, group: Sequence[int], x: Tensor) -> ClientState:
        """The states of a group, stacked. This is free if the last exchange had the same group."""
        kept = [self._row(client) for client in group]
        first = kept[0]
        if all(k is None for k in kept):
            return tree.map(lambda leaf: leaf.expand(len(group), *leaf.shape), self._new(x))
        if first is not None and all(
            k is not None and k.stacked is first.stacked and k.row == row
            for row, k in enumerate(kept)
        ):
            leaves = tree.leaves(first.stacked)
            if not leaves or len(leaves[0]) == len(group):
                return first.stacked
        return tree.stack([self.of_client(client, x) for client in group])

    def _new(self, x: Tensor) -> ClientState:
        return ClientState(self.algorithm.join(x), (), self.owed)

    def _row(self, client: int) -> Row | None:
        return self.pending.get(client) or self.kept[client]
