"""Compression of the clients' messages, on every engine: the setting `wire`.

    sent  = C(message - reference + owed)         on the client; C is a code of `fafed.core.codes`
    owed <- message - reference + owed - sent     error feedback: the client keeps what is left out
    mean  = reference + mean(sent)                on the server

The reference of a vector is the vector of that name and shape that the server has sent down
(FAFED's x and m), or zero (an update). So what is compressed is small. The engine does this: an
algorithm sees whole messages and whole means.

Sent as they are: the opening exchanges, which are made once; buffers; integers; single numbers. A
vector of squares (FAFED's v) has no reference and no error feedback, so that it is never negative.
With "int8" and "topk" each of its numbers becomes a power of 2^(1/4), in one byte. A vector of
products of gradients (FedPAC's L and R) is sent in two bytes a number.

With "int8" all clients round to integers times one scale, so a sum of messages is a sum of
integers. The scale is known before they answer: the largest value that it allows is twice the mean
of the clients' largest values in the last exchange of the same kind. In the first one no scale is
known, and a number takes two bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness, tree
from fafed.core.algorithm import AnyAlgorithm, HasX
from fafed.core.codes import LEVELS, BFloat16, Code, Exact, Int8, Part, Parts, Powers, TopK
from fafed.core.tree import Tree
from fafed.core.wire import Wire
from fafed.engines.answered import AnsweredMean, Answers
from fafed.engines.base import Sent
from fafed.engines.mean import Mean
from fafed.engines.rehearsed import messages_of_second_round
from fafed.errors import ConfigError

HEADROOM = 2.0  # times the mean of the clients' largest values

Owed = tuple[tuple[Tensor, ...], ...]  # of each exchange of a round: one vector for each that owes
Whole = tuple[Tree, tuple[Tensor, ...], tuple[Tensor, ...]]  # message, buffers, largest values


class Leaf(NamedTuple):
    """How one vector of a message is sent."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    code: Code
    scaled: bool  # whether it has a scale, or will have one
    reference: Tensor | None = None
    owes: int | None = None  # its place among the vectors that owe something

    @property
    def size(self) -> int:
        return self.shape.numel()

    def part_name(self, part: str) -> str:
        return f"{self.name}.{part}" if part else self.name


class Channel:
    """How the messages of one exchange are sent."""

    def __init__(self, wiring: Wiring, down: HasX, kind: str, *key: int) -> None:
        """kind: which exchange of a round this is. key: the seed and what else tells this exchange
        from all others."""
        self.wiring = wiring
        self.down = down
        self.kind = kind
        self.key = key
        self.known: list[Leaf] = []

    def leaves(self, like: Tree) -> list[Leaf]:
        """How each vector of a message of these shapes is sent."""
        if not self.known:
            sent = tree.flatten(self.down)
            parts = tree.flatten(like).items()
            self.known = [self._leaf(name, leaf, sent.get(name)) for name, leaf in parts]
        return self.known

    def _leaf(self, name: str, like: Tensor, down: Tensor | None) -> Leaf:
        wiring = self.wiring
        code, compressed = wiring.code(self.kind, name, like)
        scaled = compressed and wiring.wire is not None and wiring.wire.up == "int8"
        leaf = Leaf(name, like.shape, like.dtype, code, scaled)
        if not compressed:
            return leaf
        known = down is not None and down.shape == like.shape and down.dtype == like.dtype
        names = wiring.owing.get(self.kind, {})
        owes = list(names).index(name) if names.get(name) == (like.shape, like.dtype) else None
        return leaf._replace(reference=down if known else None, owes=owes)

    def encode(
        self, message: Tree, owed: Tree, clients: Sequence[int]
    ) -> tuple[dict[str, Parts], Tree, Owed]:
        """What these clients send, what arrives of it, and what they owe from now on. The first
        dimension of every tensor runs over the clients. What arrives is without the reference."""
        flat = tree.flatten(message)
        leaves = self.leaves(tree.take(message, 0))
        place = list(self.wiring.owing).index(self.kind) if self.kind in self.wiring.owing else None
        left = cast(Owed, owed)
        own = [] if place is None else list(left[place])
        parts: dict[str, Parts] = {}
        arrived: dict[str, Tensor] = {}
        for i, leaf in enumerate(leaves):
            rows = flat[leaf.name].detach().reshape(len(clients), -1)
            if leaf.reference is not None:
                rows = rows - leaf.reference.reshape(1, -1)
            if leaf.owes is not None:
                rows = rows + own[leaf.owes].reshape(len(clients), -1)
            parts[leaf.name] = leaf.code.encode(rows, self._keys(i, clients, rows.device))
            found = leaf.code.decode(parts[leaf.name], leaf.size, leaf.dtype)
            if leaf.owes is not None:
                own[leaf.owes] = (rows - found).view(own[leaf.owes].shape)
            arrived[leaf.name] = found.view(flat[leaf.name].shape)
        if place is not None:
            left = (*left[:place], tuple(own), *left[place + 1 :])
        return parts, tree.unflatten(message, arrived), left

    def decode(self, parts: Mapping[str, Parts], like: Tree) -> Tree:
        """What arrives of one client's message, without the reference."""
        found = {
            leaf.name: leaf.code.decode(parts[leaf.name], leaf.size, leaf.dtype).view(leaf.shape)
            for leaf in self.leaves(like)
        }
        return tree.unflatten(like, found)

    def whole(self, arrived: Tree) -> Tree:
        """The message itself, of what has arrived of it."""
        flat = tree.flatten(arrived)
        for leaf in self.leaves(arrived):
            if leaf.reference is not None:
                flat[leaf.name] = leaf.reference + flat[leaf.name]
        return tree.unflatten(arrived, flat)

    def largest(self, arrived: Tree, count: int) -> tuple[Tensor, ...]:
        """The largest value of each vector with a scale, as it has arrived: a number for each
        client. It has few digits, so that a sum of such numbers does not depend on their order."""
        flat = tree.flatten(arrived)
        return tuple(
            flat[leaf.name].reshape(count, -1).abs().amax(1).bfloat16().double()
            for leaf in self.known
            if leaf.scaled
        )

    def finish(self, mean: Whole) -> Sent:
        """After the exchange: the mean of the messages. The next scales follow from it."""
        arrived, buffers, sizes = mean
        scaled = [leaf.name for leaf in self.leaves(arrived) if leaf.scaled]
        self.wiring.settle(self.kind, dict(zip(scaled, map(float, sizes), strict=True)))
        return self.whole(arrived), buffers

    # One client's message between processes.

    def expected(self, like: Tree) -> dict[str, Part]:
        """The names of the parts of a message, with their sizes and types."""
        return {
            leaf.part_name(name): part
            for leaf in self.leaves(like)
            for name, part in leaf.code.parts(leaf.size, leaf.dtype).items()
        }

    def packed(self, message: Tree, owed: Tree, client: int) -> tuple[dict[str, Tensor], Owed]:
        """What one client sends, and what it owes from now on."""
        stacked = tree.map(lambda leaf: leaf[None], (message, owed))
        parts, _, left = self.encode(*stacked, [client])
        names = {leaf.name: leaf for leaf in self.known}
        flat = {
            names[name].part_name(part): tensor[0]
            for name, own in parts.items()
            for part, tensor in own.items()
        }
        return flat, tree.take(left, 0)

    def unpacked(self, tensors: Mapping[str, Tensor], like: Tree) -> Tree:
        """What has arrived of one client's message. Raises ValueError if nobody can have sent it.
        The tensors have the `expected` names, sizes and types."""
        parts: dict[str, Parts] = {
            leaf.name: {
                part: tensors[leaf.part_name(part)].reshape(1, -1)
                for part in leaf.code.parts(leaf.size, leaf.dtype)
            }
            for leaf in self.leaves(like)
        }
        return self.decode(parts, like)

    def nbytes(self) -> int:
        """The bytes of one client's message when sent. Single numbers do not count."""
        vectors = (leaf for leaf in self.known if len(leaf.shape))
        return sum(leaf.code.nbytes(leaf.size, leaf.dtype) for leaf in vectors)

    def _keys(self, leaf: int, clients: Sequence[int], device: torch.device) -> Tensor:
        key = randomness.keys("wire", *self.key, leaf, np.asarray(clients))
        return randomness.tensor(key).to(device)


class Wiring:
    """The compression of a whole run: its scales, from round to round."""

    def __init__(
        self,
        wire: Wire | None,
        algorithm: AnyAlgorithm,
        x: Tensor,
        *,
        seed: int,
        steps: int,
        population: int,
    ) -> None:
        """wire: None if only the algorithm has vectors that take fewer bytes (`Algorithm.coded`).
        x: the model's vector, or one of its shape."""
        self.wire = wire
        self.algorithm = algorithm
        self.seed = seed
        self.scales: dict[str, float] = {}  # after the last finished round
        self.pending: dict[str, float] = {}
        self.place = 0  # of the exchange in its round
        self.owing: dict[str, dict[str, tuple[torch.Size, torch.dtype]]] = {}
        if wire is not None:
            refuse(algorithm)
            found = messages_of_second_round(algorithm, x, steps, population)
            self.owing = {
                f"round {i}": self._owing(f"round {i}", message) for i, message in enumerate(found)
            }

    def _owing(self, kind: str, like: Tree) -> dict[str, tuple[torch.Size, torch.dtype]]:
        assert self.wire is not None
        return {
            name: (leaf.shape, leaf.dtype)
            for name, leaf in tree.flatten(like).items()
            if self.code(kind, name, leaf)[1] and self.wire.error_feedback
        }

    def code(self, kind: str, name: str, like: Tensor) -> tuple[Code, bool]:
        """How a vector is sent, and whether it has a reference and error feedback."""
        field = name.split(".")[-1]
        if field in self.algorithm.coded:
            return self.algorithm.coded[field], False
        plain = not (like.is_floating_point() and like.ndim and like.numel())
        if self.wire is None or plain or kind.startswith("opening"):
            return Exact(), False
        if field in self.algorithm.products:
            return BFloat16(), False
        if field in self.algorithm.squares:
            return (BFloat16() if self.wire.up == "bf16" else Powers()), False
        if self.wire.up == "topk":
            assert self.wire.share is not None
            return TopK(self.wire.share), True
        scale = self.pending.get(f"{kind}.{name}")
        return (BFloat16() if scale is None else Int8(scale)), True

    def channel(self, down: HasX, step: int, opening: bool) -> Channel:
        first = len(self.algorithm.opening()) if opening else 0
        at = self.place
        kind = f"opening {at}" if at < first else f"round {at - first}"
        return Channel(self, down, kind, self.seed, step, at)

    def nothing_owed(self, x: Tensor) -> Owed:
        """What a client owes that takes part for the first time."""
        return tuple(
            tuple(x.new_zeros(shape, dtype=dtype) for shape, dtype in leaves.values())
            for leaves in self.owing.values()
        )

    def settle(self, kind: str, largest: Mapping[str, float]) -> None:
        """After an exchange, with the mean of the clients' largest values. A vector of zeros keeps
        its scale."""
        for name, value in largest.items():
            if value > 0:
                self.pending[f"{kind}.{name}"] = HEADROOM * value / LEVELS
        self.place += 1

    def told(self, channel: Channel) -> dict[str, float]:
        """The scales that a silo needs: those of this kind of exchange."""
        start = f"{channel.kind}."
        return {name: own for name, own in self.pending.items() if name.startswith(start)}

    def commit(self) -> None:
        self.scales, self.place = dict(self.pending), 0

    def rollback(self) -> None:
        self.pending, self.place = dict(self.scales), 0

    def notes(self) -> dict[str, list[int | str]]:
        """For a checkpoint: the scales with all their digits."""
        flat = [text for name, own in sorted(self.scales.items()) for text in (name, own.hex())]
        return {"scales": [*flat]}

    def restore(self, notes: Mapping[str, Sequence[int | str]]) -> None:
        flat = [str(text) for text in notes.get("scales", [])]
        self.scales = {
            name: float.fromhex(own) for name, own in zip(flat[::2], flat[1::2], strict=True)
        }
        self.rollback()


class WireMean(AnsweredMean):
    """The mean of messages that are sent through a channel."""

    def __init__(
        self, channel: Channel, weights: Sequence[float], buffers: tuple[Tensor, ...]
    ) -> None:
        """weights: of all clients. buffers: of the server's model."""
        super().__init__()
        self.channel = channel
        self.weights = weights
        self.buffers = buffers
        self.single: tuple[Whole, float] | None = None  # of a group of one: added as it comes

    def for_group(self, clients: Sequence[int]) -> WireMean:
        return WireMean(self.channel, self.weights, self.buffers)

    def answer(self, answers: Answers) -> None:
        message, buffers = answers.sent
        clients = answers.clients
        _, arrived, self.owed = self.channel.encode(message, answers.owed, clients)
        whole = arrived, buffers, self.channel.largest(arrived, len(clients))
        own = [self.weights[client] for client in clients]
        if len(own) == 1:  # as the loop without compression, and a server of silos
            self.single = tree.take(whole, 0), own[0]
            return
        weights = torch.tensor(own, dtype=torch.float64, device=answers.losses.device)
        self.add_stacked(whole, weights)  # type: ignore[arg-type]

    def merge(self, other: Mean[Sent]) -> None:
        assert isinstance(other, WireMean)
        if other.single is not None:
            self.add(*other.single)  # type: ignore[arg-type]
        else:
            super().merge(other)

    def start(self, sent: Sent) -> None:
        """The sum of no answers. `sent` has the shape of one client's answer."""
        message, buffers = sent
        self.channel.leaves(message)
        none = tree.map(torch.zeros_like, (message, buffers))
        stacked = tree.map(lambda leaf: leaf[None], none[0])
        largest = tree.take(self.channel.largest(stacked, 1), 0)
        self.add((*none, largest), 0.0)  # type: ignore[arg-type]

    @property
    def nbytes(self) -> int:
        """The bytes of one client's answer when sent."""
        return self.channel.nbytes() + tree.nbytes(self.buffers)

    def value(self) -> Sent:
        return self.channel.finish(super().value())  # type: ignore[arg-type]


def refuse(algorithm: AnyAlgorithm) -> None:
    """Refuse an algorithm that compresses its messages itself."""
    own = set(algorithm.coded) - set(algorithm.squares)
    if own:
        raise ConfigError(
            f"{type(algorithm).__name__} compresses {', '.join(sorted(own))} itself: leave out "
            "wire, or use another algorithm with it (FedAMS in place of FedCAMS)"
        )
