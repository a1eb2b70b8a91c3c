"""What the round loop asks of an engine, and what it gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fafed.core.algorithm import Exchange, RoundInfo
from fafed.errors import FafedError


class Engine(Protocol):
    """Deliver an exchange to the clients, return the mean of their messages and the facts."""

    @property
    def population(self) -> int: ...

    def deliver(
        self,
        exchange: Exchange,
        shared: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Reply:
        """Carry the exchange to these clients; local steps step+1 .. step+q are theirs. `opening`:
        this round begins with the algorithm's opening exchanges."""

    def commit(self) -> None:
        """The round is over: what the clients keep of its exchanges is theirs from now on."""

    def rollback(self) -> None:
        """The round failed: the clients are as they were before it."""


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

    mean: Any
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
        mean: tuple[Any, tuple[Tensor, ...]],
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
