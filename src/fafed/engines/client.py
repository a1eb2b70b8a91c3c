"""One client's part of an exchange: the same on every engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import Exchange
from fafed.core.batch import Batch, Batches
from fafed.core.local_steps import Rates, Settings, Tracked
from fafed.data.sources.examples import ClientBatches
from fafed.engines.base import NotFinite
from fafed.kernels.network import Network
from fafed.kernels.vmap_bridge import wrapped
from fafed.objectives.base import Memory, Objective


class ClientState(NamedTuple):
    """What a client keeps between exchanges."""

    local: Any
    hidden: Any


class Visit(NamedTuple):
    """What an exchange left behind on one client, and what it sends back."""

    state: ClientState
    message: Any
    buffers: tuple[Tensor, ...]
    loss: Tensor  # mean over the points visited; 0 if no batch had one
    has_loss: Tensor  # bool: False if the labels of all batches were ignored
    evaluations: int
    samples: int


class Oracle:
    """The `grad` that an algorithm calls on one client: counts, and keeps the memory.

    The first evaluation on a batch is the one at the current point: it alone moves buffers and
    recurrent state and counts for the loss; a second one (at the previous point) starts from the
    same memory and leaves it as it was.

    Buffers move once per step, whatever else an algorithm evaluates. An anchor or a full pass
    (SCAFFOLD's option I, Mime, the openings of MimeLite and local AMSGrad) leaves them alone. Where
    a step is made with such a pass, it is the step's own evaluation and moves them: the opening
    step of FAFED and STEM, the first step of a round in SPIDER and, with its anchor, Fed-GLOMO. The
    algorithm says so with `Batch.for_step`.
    """

    def __init__(self, objective: Objective, memory: Memory, *, engine: str) -> None:
        self.objective = objective
        self.engine = engine
        self.before = self.after = memory
        self.data: Any = None
        self.losses: list[tuple[Tensor, Tensor | None]] = []  # and whether there was one
        self.other_losses: list[tuple[Tensor, Tensor | None]] = []  # of anchors and full passes
        self.evaluations = 0
        self.samples = 0

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        current = batch.data is not self.data
        if current:
            self.data, self.before = batch.data, self.after
        start = self.before if batch.step else self.before._replace(hidden=())
        found = self.objective.evaluate(x, batch, start, engine=self.engine)
        if current:
            moved, kept = found.memory, self.before
            self.after = Memory(
                moved.buffers if batch.moves_buffers else kept.buffers,
                moved.hidden if batch.step else kept.hidden,
            )
            losses = self.losses if batch.step else self.other_losses
            losses.append((found.loss, self.objective.counts(batch.data)))
        self.evaluations += 1
        self.samples += len(tree.leaves(batch.data)[0])
        return found.gradient

    def loss(self) -> tuple[Tensor, Tensor]:
        """The mean over the batches that have one, and whether any has."""
        found = self.losses or self.other_losses
        losses = torch.cat([loss.reshape(-1) for loss, _ in found])
        counts = torch.cat(
            [
                (torch.ones_like(loss, dtype=torch.bool) if own is None else own).reshape(-1)
                for loss, own in found
            ]
        )
        number = counts.sum()
        among_those = len(counts) / number.clamp(min=1).to(losses.dtype)
        return torch.where(counts, losses, 0.0).mean() * among_those, number > 0

    # Runs of local steps, where the engine computes gradients in C; None elsewhere.

    def descend(
        self, x: Tensor, rates: Rates, batches: Batches, correction: Tensor | None
    ) -> Tensor | None:
        if (found := self._walker(batches, rates)) is None:
            return None
        network, data = found
        correction = x[:0] if correction is None else correction
        x, losses = network.descend(x, correction, _numbers(rates), *data)
        self._count(losses, data, 1)
        return x

    def track(
        self, start: Tracked, settings: Settings, batches: Batches, keep_x: bool
    ) -> Tracked | None:
        rates, keeps, beta, A = settings
        if (found := self._walker(batches, [*rates, *keeps, A])) is None:
            return None
        network, data = found
        inverse = 1 / A if isinstance(A, Tensor) else start.x[:0]
        numbers = _numbers(rates), _numbers(keeps), beta
        *moved, losses = network.track(start, *numbers, inverse, *data, keep_x=keep_x)
        self._count(losses, data, 2)
        return Tracked(*moved)

    def _walker(self, batches: Batches, shared: Rates) -> tuple[Network, Any] | None:
        """Who makes the steps, and on which data. What is shared must be so: the same for all."""
        if self.engine != "native" or not isinstance(batches, ClientBatches):
            return None
        if any(isinstance(rate, Tensor) and wrapped(rate) for rate in shared):
            return None
        data = batches.round
        network = self.objective.walker(data)  # type: ignore[attr-defined]
        return None if network is None else (network, data)

    def _count(self, losses: Tensor, data: Any, gradients: int) -> None:
        self.losses.append((losses, self.objective.counts(data, leading=1)))
        self.evaluations += gradients * len(losses)
        self.samples += gradients * data[-1].numel()


def _numbers(rates: Rates) -> Tensor:
    return torch.tensor([float(rate) for rate in rates], dtype=torch.float64)


def visit(
    objective: Objective,
    exchange: Exchange,
    down: Any,
    buffers: tuple[Tensor, ...],
    state: ClientState,
    batches: Batches,
    *,
    engine: str = "loop",
) -> Visit:
    """Let one client do its part; under vmap, several at once."""
    oracle = Oracle(objective, Memory(buffers, state.hidden), engine=engine)
    local, message = exchange.client(oracle, down, state.local, batches)
    return Visit(
        ClientState(local, oracle.after.hidden),
        message,
        oracle.after.buffers,
        *oracle.loss(),
        oracle.evaluations,
        oracle.samples,
    )


def check(client: int, loss: Tensor, message: Any) -> None:
    """Refuse what would spoil the mean."""
    if not torch.isfinite(loss):
        raise NotFinite(client, "loss")
    if not tree.finite(message):
        raise NotFinite(client, "message")
