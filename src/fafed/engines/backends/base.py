"""The interface of a back end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX
from fafed.data.sources.base import Source
from fafed.engines.answered import AnsweredMean
from fafed.engines.base import Sent
from fafed.engines.mean import Mean
from fafed.engines.states import ClientStates, Row
from fafed.objectives.base import Objective


class CannotRun(Exception):
    """A back end cannot run a task. The message says why."""


class Differs(CannotRun):
    """A back end computes other numbers than the loop."""


class Task(NamedTuple):
    """What a back end computes: the fixed parts of a run."""

    algorithm: AnyAlgorithm
    objective: Objective
    source: Source
    weights: Sequence[float]  # of the clients
    steps: int  # local steps of an exchange, q


class Found(NamedTuple):
    """The results of a group of clients."""

    rows: dict[int, Row]
    mean: Mean[Sent] | None  # of a group; a single client's message is added as it comes
    message: Sent  # of one client, with its buffers: the shape of them all
    loss: float  # weighted sum
    evaluations: int
    samples: int
    without_loss: Sequence[int] = ()  # clients all of whose labels were ignored


class Backend(ABC):
    """Computes an exchange for a group of clients at a time."""

    name: ClassVar[str]

    def __init__(self, task: Task) -> None:
        self.task = task
        self.why = ""  # why it was chosen; `choose` sets it

    @abstractmethod
    def check(self) -> None:
        """Raise CannotRun if this back end does not support the task."""

    def drawback(self) -> str | None:
        """Why "auto" should not try this back end, or None."""
        return None

    @abstractmethod
    def groups(self, clients: Sequence[int], states: ClientStates) -> list[list[int]]:
        """Which clients are computed together. This must not depend on the number of workers,
        because the digits must not."""

    @abstractmethod
    def work(
        self,
        exchange: Exchange,
        down: HasX,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
        states: ClientStates,
        mean: AnsweredMean | None = None,
    ) -> Found:
        """Run a group of clients. Their answers are added to `mean` if it is given."""
