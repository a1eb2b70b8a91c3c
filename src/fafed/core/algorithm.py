"""The interface of an algorithm.

A federated algorithm is a few pure functions on vectors. The server holds a `Shared` state, and
each client a `Local` state. One *exchange* sends something down, computes
`(down, local, batches) -> (local, message)` on every client, and then
`(shared, mean of the messages) -> shared` on the server. The server sees only the mean.

States and messages are `NamedTuple`s whose leaves are all tensors. Vectors are flat, in R^d.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batches, Draw
from fafed.core.codes import Code
from fafed.core.gradient import Grad
from fafed.core.hyper import Rule
from fafed.core.plain import plain
from fafed.core.schedules import Schedule
from fafed.core.tree import Tree
from fafed.core.words import cure
from fafed.errors import ConfigError


class RoundInfo(NamedTuple):
    """Facts about one exchange that the server and all clients know."""

    clients: int  # how many answered, |S|
    population: int  # how many exist, N
    steps: int  # local steps made, q
    share: float  # weight of the clients that answered, sum of p_i over S: |S|/N if uniform


def everything(shared: Shared) -> Shared:
    return shared


class Exchange(NamedTuple):
    """One message down to the clients and one message back."""

    client: Callable[[Grad, Any, Any, Batches], tuple[Tree, Tree]]
    server: Callable[[Any, Any, RoundInfo], HasX]
    send: Callable[[Any], HasX] = everything  # the part of the shared state that goes down
    draw: tuple[Draw, ...] = ("round",)


class HasX(Protocol):
    """Every state of the server, and everything it sends down, has the model's vector."""

    @property
    def x(self) -> Tensor: ...


Shared = TypeVar("Shared", bound=HasX)  # the server's state
Down = TypeVar("Down", bound=HasX)  # what it sends to the clients
Local = TypeVar("Local", bound=Tree)  # a client's state
Message = TypeVar("Message", bound=Tree)  # what a client sends back


class Algorithm(ABC, Generic[Shared, Down, Local, Message]):
    """A federated algorithm as pure functions. A subclass's fields are its hyper-parameters."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]  # every subclass has them
    filled_from_run: ClassVar[tuple[str, ...]] = ()  # settings that are 0 until `bind_run`

    @abstractmethod
    def init(self, x: Tensor) -> Shared:
        """The server's first state. It always has a field `x`."""

    def join(self, x: Tensor) -> Local:
        """The local state of a client that takes part for the first time and receives x."""
        return cast(Local, ())

    def opening(self) -> tuple[Exchange, ...]:
        """The exchanges made once, before the first round."""
        return ()

    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of each round."""
        return (Exchange(self.local, self.server, self.send),)

    def send(self, shared: Shared) -> Down:
        """The part of the server's state that goes down."""
        return cast(Down, shared)

    @abstractmethod
    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        """What a client does with what came down: its new local state, and its message."""

    @abstractmethod
    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        """The server's new state, from the mean of the clients' messages."""

    @property
    def requires_all_clients(self) -> bool:
        """Whether all clients must take part in every round."""
        return False

    @property
    def absence_cure(self) -> str:
        """The setting that lets clients be absent, if there is one: "wire='full'"."""
        return ""

    @property
    def population(self) -> int | None:
        """How many clients there must be; None: any number."""
        return None

    @property
    def squares(self) -> tuple[str, ...]:
        """The fields of its messages that hold squares of gradients, which are never negative."""
        return ()

    @property
    def products(self) -> tuple[str, ...]:
        """The fields of its messages that hold products of gradients: they grow as squares do, but
        may be negative."""
        return ()

    @property
    def coded(self) -> Mapping[str, Code]:
        """The fields of its messages that take fewer bytes on the wire without any change, and how.
        For example, all numbers of FAFED's v are powers of 2^(1/4) if `v_bits` is 8."""
        return {}

    def message_bytes(self, message: Message) -> int:
        """The size of a message when sent."""
        coded, size = self.coded, 0
        for name, leaf in tree.flatten(message).items() if coded else ():
            code = coded.get(name.split(".")[-1])
            size += tree.nbytes(leaf) if code is None else code.nbytes(leaf.numel(), leaf.dtype)
        return size if coded else tree.nbytes(message)

    def regroup(self, shared: Shared) -> Shared:
        """The shared state for a round whose clients differ from those of the last round."""
        return shared

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        """The same algorithm for a model whose parameter tensors have these shapes. They are in the
        order of x, so x is these tensors one after another."""
        return self

    def bind_run(self, rounds: int, local_steps: int) -> Self:
        """The same algorithm for a run of this length, which its schedules may need."""
        rates = {name: own for name, own in vars(self).items() if isinstance(own, Schedule)}
        bound = {name: rate.bound(rounds * local_steps) for name, rate in rates.items()}
        return dataclasses.replace(self, **bound) if bound != rates else self

    def diagnostics(self, shared: Shared) -> Mapping[str, Tensor]:
        """Scalars about the shared state for the records: name -> scalar."""
        return {}

    def __new__(cls, *args: object, **settings: object) -> Self:
        known = [f.name for f in dataclasses.fields(cls)]
        for name, value in settings.items():
            if name not in known:
                raise ConfigError(
                    f"{cls.__name__} has no hyper-parameter {name!r}, got {value!r}: "
                    f"{cure(name, known)}"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if "rule" in f.metadata:
                rule: Rule = f.metadata["rule"]
                value = plain(getattr(self, f.name))
                object.__setattr__(self, f.name, value)  # a subclass may be frozen
                if not rule.allows(value):
                    raise ConfigError(
                        f"{type(self).__name__}.{f.name} must be {rule}, got {value!r}: "
                        f"{f.metadata['about']}{rule.cure(value)}"
                    )


AnyAlgorithm: TypeAlias = Algorithm[Any, Any, Any, Any]


def exchanges_of_round(algorithm: AnyAlgorithm, *, opening: bool) -> tuple[Exchange, ...]:
    """The exchanges of one round, in order. The opening exchanges are made once, at the start of
    the first round in which a client answers. `opening` says whether this is that round."""
    first = algorithm.opening() if opening else ()
    return (*first, *algorithm.exchanges())


# Hyper-parameters: a default, the allowed values, and a description.


def counter(x: Tensor) -> Tensor:
    """A step counter of zero, on the device of x."""
    return torch.zeros((), dtype=torch.int64, device=x.device)
