"""The one interface everything meets at.

A federated algorithm is a few pure functions on vectors. The server holds a `Shared` state,
each client a `Local` state. One *exchange* sends something down, maps
`(down, local, batches) -> (local, message)` on every client, and then
`(shared, mean of the messages) -> shared` on the server. The mean is all the server ever sees.

States and messages are `NamedTuple`s whose leaves are all tensors; vectors are flat, in R^d.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from fafed import tree
from fafed.errors import ConfigError, nearest
from fafed.schedules import Schedule


class Batch(NamedTuple):
    """All of xi: a sample, and the key of every other random draw that is made with it."""

    data: Any  # a tuple of tensors, (inputs, targets)
    key: Tensor  # int64 scalar: dropout masks and whatever else the model draws
    fresh: Tensor  # bool scalar: a recurrent model starts from its initial state
    step: bool = True  # False for an anchor or a full pass, which leave no recurrent state behind
    moves_buffers: bool = True  # False for those too, unless a step is made with them

    def for_step(self) -> Batch:
        """An anchor or a full pass with whose gradient a step is made: buffers such as BatchNorm's
        statistics move with it, as they do with a step's own batch."""
        return self._replace(moves_buffers=True)

    def redrawn(self) -> Batch:
        """The same sample with other dropout masks: what the same-sample rule forbids."""
        return self._replace(key=self.key ^ 0x5DEECE66D)


class Batches(Protocol):
    """What one exchange may look at on one client, as far as its `draw` names it."""

    def __iter__(self) -> Iterator[Batch]: ...  # "round": one batch of b per local step
    def __len__(self) -> int: ...  # local steps, q
    @property
    def anchor(self) -> Batch: ...  # "anchor": one of B, drawn apart from the steps' batches
    @property
    def full(self) -> Batch: ...  # "full": the whole shard, in order


Draw = Literal["round", "anchor", "full"]
Grad = Callable[[Tensor, Batch], Tensor]


class Trip(NamedTuple):
    """What everyone knows about one exchange."""

    clients: int  # how many answered, |S|
    population: int  # how many exist, N
    steps: int  # local steps made, q
    share: float  # weight of those who answered, sum of p_i over S: |S|/N if uniform


def everything(shared: Any) -> Any:
    return shared


class Exchange(NamedTuple):
    """One trip to the clients and back."""

    client: Callable[[Grad, Any, Any, Batches], tuple[Any, Any]]
    server: Callable[[Any, Any, Trip], Any]
    send: Callable[[Any], Any] = everything  # the part of the shared state that goes down
    draw: tuple[Draw, ...] = ("round",)


class Algorithm(ABC):
    """A federated algorithm as pure functions; a subclass's fields are its hyper-parameters."""

    @abstractmethod
    def init(self, x: Tensor) -> Any:
        """The server's state before anything happened; it always has a field `x`."""

    def join(self, x: Tensor) -> Any:
        """The local state of a client that has not taken part yet and is given x."""
        return ()

    def opening(self) -> tuple[Exchange, ...]:
        """The exchanges made once, before the first round."""
        return ()

    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of each round."""
        return (Exchange(self.local, self.server, self.send),)

    def send(self, shared: Any) -> Any:
        return shared

    @abstractmethod
    def local(self, grad: Grad, down: Any, local: Any, batches: Batches) -> tuple[Any, Any]: ...

    @abstractmethod
    def server(self, shared: Any, mean: Any, trip: Trip) -> Any: ...

    @property
    def everyone(self) -> bool:
        """Whether all clients must take part in every round."""
        return False

    @property
    def population(self) -> int | None:
        """How many clients there must be; None if any number will do."""
        return None

    @property
    def squares(self) -> tuple[str, ...]:
        """The fields of its messages that hold squares of gradients, and so nothing negative."""
        return ()

    def message_bytes(self, message: Any) -> int:
        """What a message weighs on a wire: less than its vectors if they are compressed."""
        return tree.nbytes(message)

    def regroup(self, shared: Any) -> Any:
        """The shared state for a round whose clients are not those of the last one."""
        return shared

    def fitted(self, sizes: Sequence[int]) -> Self:
        """The same algorithm, told how many numbers each of the model's tensors has."""
        return self

    def diagnostics(self, shared: Any) -> Mapping[str, Tensor]:
        """What is worth seeing of the shared state after a round: name -> scalar."""
        return {}

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{cls.__name__} has no hyper-parameter {name!r}: {nearest(name, known)}"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            if "rule" in f.metadata:
                rule: Rule = f.metadata["rule"]
                value = getattr(self, f.name)
                if not rule.allows(value):
                    raise ConfigError(
                        f"{type(self).__name__}.{f.name} must be {rule}, got {value!r}: "
                        f"{f.metadata['about']}"
                    )


def exchanges_of_round(algorithm: Algorithm, *, opening: bool) -> tuple[Exchange, ...]:
    """The exchanges of one round, in order. The opening ones are made once, at the start of the
    first round in which a client answers: `opening` says whether this is that round."""
    first = algorithm.opening() if opening else ()
    return (*first, *algorithm.exchanges())


# Hyper-parameters: a default, what is allowed, and a line for people.


@dataclasses.dataclass(frozen=True)
class Rule:
    """What values a hyper-parameter may take."""

    text: str
    test: Callable[[Any], bool]
    schedule: bool = False

    def allows(self, value: Any) -> bool:
        if self.schedule and isinstance(value, Schedule):
            return True
        return self.test(value)

    def __str__(self) -> str:
        return self.text + (" or a schedule" if self.schedule else "")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def above(low: float, *, schedule: bool = False) -> Rule:
    return Rule(f"a number > {low:g}", lambda v: _number(v) and v > low, schedule)


def at_least(low: float, *, schedule: bool = False) -> Rule:
    return Rule(f"a number >= {low:g}", lambda v: _number(v) and v >= low, schedule)


def between(low: float, high: float, *, schedule: bool = False) -> Rule:
    return Rule(
        f"a number in [{low:g}, {high:g}]", lambda v: _number(v) and low <= v <= high, schedule
    )


def integer(low: int) -> Rule:
    return Rule(
        f"an integer >= {low}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= low,
    )


def one_of(*choices: str, function: bool = False) -> Rule:
    text = "one of " + ", ".join(map(repr, choices)) + (" or a function" if function else "")
    return Rule(text, lambda v: (isinstance(v, str) and v in choices) or (function and callable(v)))


switch = Rule("True or False", lambda v: isinstance(v, bool))


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.text} or None", lambda v: v is None or rule.test(v), rule.schedule)


def hyper(default: Any, rule: Rule, about: str) -> Any:
    """A dataclass field that checks itself when the algorithm is built."""
    return dataclasses.field(default=default, metadata={"rule": rule, "about": about})


def counter(x: Tensor) -> Tensor:
    """A count of zero that travels with x."""
    return torch.zeros((), dtype=torch.int64, device=x.device)
