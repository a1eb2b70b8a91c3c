"""What the round loop asks of an engine, and what it gets back."""

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


class Snapshot(NamedTuple):
    """What is to be saved of an engine between two rounds."""

    states: list[ClientState | None]  # of each client; None if it keeps nothing here
    notes: dict[str, list[int | str]]  # what a server remembers of real silos


class Engine(ABC):
    """Delivers an exchange to the clients; returns the mean of their messages and the facts."""

    ranks: Ranks | None = None  # the processes of the run, if there are several
    undoes: bool = True  # a round that fails leaves the clients as they were

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the back end, or "silos": a resumed run stays on it, so that every digit stays."""

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
        """Carry the exchange to these clients; local steps step+1 .. step+q are theirs. `opening`:
        this round begins with the algorithm's opening exchanges."""

    @abstractmethod
    def commit(self) -> None:
        """The round is over: what the clients keep of its exchanges is theirs from now on."""

    @abstractmethod
    def rollback(self) -> None:
        """The round failed: the clients are as they were before it."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """What to save. On several ranks, rank 0 asks while the others `hand_over`."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Put the clients into this state. On several ranks, `deal` follows."""

    def hand_over(self) -> None:
        """Give rank 0 what this rank's clients keep."""
        raise NotImplementedError(f"{type(self).__name__} runs in one process")

    def deal(self) -> None:
        """Bring every client's state to the rank that hosts it."""
        raise NotImplementedError(f"{type(self).__name__} runs in one process")


class NotFinite(FafedError):
    """A client produced NaN or infinity."""

    def __init__(self, client: int, what: str) -> None:
        super().__init__(f"client {client} produced a non-finite {what}")
        self.client = client
        self.what = what


class StateLost(FafedError):
    """Clients that have lost what they kept: from now on they are as if they had never come."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__(f"clients {list(clients)} have lost what they kept of the run")
        self.clients = tuple(clients)


class Reply(NamedTuple):
    """What came back from one exchange."""

    mean: Tree
    buffers: tuple[Tensor, ...]  # mean of the clients' buffers
    info: RoundInfo
    loss: float | None  # mean over the clients of their mean loss at the points they visited; None
    # if nobody has one: no local steps, or only ignored labels
    gradients: float  # evaluations by all clients, in units of one step's batch
    samples: int
    bytes_up: int
    bytes_down: int
    answered: tuple[int, ...] | None = None  # of the clients asked; None: all of them


@dataclass
class Counts:
    """What an engine counts over the clients that answered."""

    down: int  # bytes to each client
    up: int = 0  # bytes from each client
    loss: float = 0.0  # weighted sum
    evaluations: int = 0
    samples: int = 0
    without_loss: int = 0  # clients all of whose labels were ignored
    without_weight: float = 0.0  # theirs

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
        """What the round loop gets to know; `weights` are those of all clients, and `units` the
        examples in one step's batch if batches differ in size."""
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
