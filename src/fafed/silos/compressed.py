"""Compressed messages between the server and a silo: `fafed.engines.wire`.

The parts of a message have the name of its vector, and one of their own: "0.x", "0.delta.places".
The model's buffers are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, HasX
from fafed.core.tree import Tree
from fafed.engines.base import Sent
from fafed.engines.wire import Channel, Wiring
from fafed.experiments.config import Experiment
from fafed.silos import messages
from fafed.silos.messages import ExchangeId, Facts, Refused, Shapes


def wiring_of(
    experiment: Experiment, algorithm: AnyAlgorithm, x: Tensor, silos: int
) -> Wiring | None:
    """The compression of a run over silos. None if every message is sent as it is."""
    wire = experiment.wire_options()
    if wire is None and not algorithm.coded:
        return None
    seed, steps = experiment.seed, experiment.local_steps
    return Wiring(wire, algorithm, x, seed=seed, steps=steps, population=silos)


def channel(wiring: Wiring, down: HasX, place: ExchangeId, step: int, facts: Facts) -> Channel:
    """How a silo compresses its message, with the scales that came from the server."""
    scales = facts.get("scales")
    if not isinstance(scales, dict):
        raise Refused(f"scales is {messages.clean(scales, 80)}, it must be a table")
    wiring.pending = {str(name): _scale(scales, name) for name in scales}
    wiring.place = place.exchange
    return wiring.channel(down, step, facts.get("opening") is True)


def _scale(scales: Facts, name: str) -> float:
    value = messages.number(scales, name)
    if not value > 0:
        raise Refused(f"the scale of {messages.clean(name, 80)} is {value!r}, it must be > 0")
    return float(value)


def packed(channel: Channel, sent: Sent, owed: Tree, client: int) -> tuple[dict[str, Tensor], Tree]:
    """What a silo sends, and what it owes from now on."""
    message, buffers = sent
    parts, left = channel.packed(message, owed, client)
    named = {f"0.{name}": leaf for name, leaf in parts.items()}
    return named | tree.flatten(buffers, "1"), left


def shapes(channel: Channel | None, like: Sent) -> Shapes:
    """The shapes and types of such a message, compressed or not."""
    if channel is None:
        return messages.shapes(like)
    message, buffers = like
    parts = channel.expected(message).items()
    named: Shapes = {f"0.{name}": ((part.size,), part.dtype) for name, part in parts}
    return named | {
        name: (tuple(leaf.shape), leaf.dtype) for name, leaf in tree.flatten(buffers, "1").items()
    }


def unpacked(channel: Channel | None, tensors: Mapping[str, Tensor], like: Sent) -> Sent:
    """A message and its buffers. Of a compressed message: what has arrived of it."""
    if channel is None:
        return tree.unflatten(like, dict(tensors))
    message, buffers = like
    parts = {name[2:]: leaf for name, leaf in tensors.items() if name.startswith("0.")}
    try:
        arrived = channel.unpacked(parts, message)
    except ValueError as cause:
        raise Refused(f"its message cannot be unpacked: {cause}") from None
    return arrived, tree.unflatten(buffers, dict(tensors), "1")


def largest(channel: Channel, arrived: Tree) -> tuple[Tensor, ...]:
    """The largest values of what has arrived, from which the next scales follow."""
    stacked = tree.map(lambda leaf: leaf[None], arrived)
    return tree.take(channel.largest(stacked, 1), 0)
