"""The interface of an engine, and what it returns to the round loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from torch import Tensor

from fafed.core.algorithm import Exchange, HasX, RoundInfo
from fafed.core.tree import Tree
from fafed.errors import FafedError
from fafed.objectives.base import Objective

if TYPE_CHECKING:
    from fafed.engines.ranks import Ranks


Sent: TypeAlias = "tuple[Tree, tuple[Tensor, ...]]"  # a message, with the client's buffers


class ClientState(NamedTuple):
    """What a client keeps between exchanges."""

    local: Tree
    hidden: Tree  # of a recurrent model
    owed: Tree = ()  # what compression has left out of its messages: `fafed.engines.wire`


class Snapshot(NamedTuple):
    """What a checkpoint saves of an engine between two rounds."""

    states: list[ClientState | None]  # of each client; None if it keeps nothing here
    notes: dict[str, list[int | str]]  # what a server remembers of real silos


class Engine(ABC):
    """Delivers an exchange to the clients. Returns the mean of their messages, and counts."""

    ranks: Ranks | None = None  # the processes of the run, if there are several
    undoes: bool = True  # whether a failed round leaves the clients unchanged
    # where clients count themselves: the largest epsilon that one says it has spent, and the least
    # max_epsilon with which enough of them can make one more round
    epsilon: float = 0.0
    next_epsilon: float = 0.0
    nothing_owed: Tree = ()  # what a client owes that takes part for the first time

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the back end, or "silos". A resumed run uses the same one, so that every
        digit is the same."""

    @property
    def why(self) -> str:
        """Why this back end was chosen."""
        return ""

    @property
    @abstractmethod
    def population(self) -> int: ...

    @property
    @abstractmethod
    def objective(self) -> Objective: ...

    @abstractmethod
    def deliver(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Reply:
        """Carry the exchange to these clients. They make the local steps step+1 .. step+q.
        `opening`: whether this round begins with the algorithm's opening exchanges."""

    @abstractmethod
    def commit(self) -> None:
        """The round has succeeded. The clients keep their new states."""

    @abstractmethod
    def rollback(self) -> None:
        """The round has failed. The clients return to their states before it."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """What to save. On several ranks, rank 0 calls this while the other ranks `hand_over`."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Put the clients into this state. On several ranks, call `deal` next."""

    def close(self) -> None:  # noqa: B027
        """End what works for this engine, such as processes that read data. It can be used again
        afterwards."""

    def hand_over(self) -> None:
        """Send the states of this rank's clients to rank 0."""
        raise NotImplementedError(f"{type(self).__name__} runs in one process")

    def deal(self) -> None:
        """Send every client's state to the rank that hosts the client."""
        raise NotImplementedError(f"{type(self).__name__} runs in one process")


class NotFinite(FafedError):
    """A client produced NaN or infinity."""

    def __init__(self, client: int, what: str) -> None:
        super().__init__(f"client {client} produced a non-finite {what}")
        self.client = client
        self.what = what


class StateLost(FafedError):
    """These clients have lost their states. From now on they count as new clients."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__(f"clients {list(clients)} have lost what they kept of the run")
        self.clients = tuple(clients)


class NobodyAnswered(FafedError):
    """Too few clients have answered. The round counts as one in which nobody did."""


class RoundLost(NobodyAnswered):
    """The round cannot be made again: the server has seen a sum of it, or may have. No client's
    answer counts."""


class Reply(NamedTuple):
    """What came back from one exchange."""

    mean: Tree
    buffers: tuple[Tensor, ...]  # mean of the clients' buffers
    info: RoundInfo
    # Mean over the clients of their mean loss at the points of their steps. None if no client has
    # a loss: there were no local steps, or all labels were ignored.
    loss: float | None
    gradients: float  # evaluations by all clients; the unit is one step's batch
    samples: int
    bytes_up: int
    bytes_down: int
    answered: tuple[int, ...] | None = None  # clients that answered; None: all of them


@dataclass
class Counts:
    """What an engine counts over the clients that answered."""

    down: int  # bytes to each client
    up: int = 0  # bytes from each client
    loss: float = 0.0  # weighted sum
    evaluations: int = 0
    samples: int = 0
    without_loss: int = 0  # clients all of whose labels were ignored
    without_weight: float = 0.0  # the sum of their weights

    def reply(
        self,
        exchange: Exchange,
        mean: Sent,
        clients: Sequence[int],
        weights: Sequence[float],
        *,
        steps: int,
        units: int | None,
    ) -> Reply:
        """The reply for the round loop. `weights` are those of all clients. `units` is the number
        of examples in one step's batch if batches differ in size."""
        message, buffers = mean
        n, weight = len(clients), sum(weights[client] for client in clients)
        steps = steps if "round" in exchange.draw else 0
        heard = steps and n > self.without_loss
        return Reply(
            mean=message,
            buffers=buffers,
            info=RoundInfo(n, len(weights), steps, weight / sum(weights)),
            loss=self.loss / (weight - self.without_weight) if heard else None,
            gradients=self.evaluations if units is None else self.samples / units,
            samples=self.samples,
            bytes_up=n * self.up,
            bytes_down=n * self.down,
        )
