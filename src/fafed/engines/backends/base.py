"""What a back end is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX
from fafed.data.sources.examples import Source
from fafed.engines.base import Sent
from fafed.engines.mean import Mean
from fafed.engines.states import ClientStates, Row
from fafed.objectives.base import Objective


class CannotRun(Exception):
    """Why a back end cannot run a task."""


class Differs(CannotRun):
    """It computes something else than the loop does."""


class Task(NamedTuple):
    """What is to be computed."""

    algorithm: AnyAlgorithm
    objective: Objective
    source: Source
    weights: Sequence[float]  # of the clients
    steps: int  # local steps of an exchange, q


class Found(NamedTuple):
    """What a group of clients brings back."""

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

    @abstractmethod
    def check(self) -> None:
        """Raise CannotRun if the task is not for this back end."""

    def pays(self) -> bool:
        """Whether it is worth trying where nobody has asked for it by name."""
        return True

    @abstractmethod
    def groups(self, clients: Sequence[int], states: ClientStates) -> list[list[int]]:
        """Who is computed together. Never a function of the number of workers: the digits must
        not be."""

    @abstractmethod
    def work(
        self,
        exchange: Exchange,
        down: HasX,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
        states: ClientStates,
    ) -> Found:
        """Let a group of clients do their part."""
