"""One client's part of an exchange. It is the same on every engine."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import Exchange, HasX
from fafed.core.batch import Batch, Batches
from fafed.core.gradient import Grad, Rates, StormPoint, StormSettings, combined_storm_steps
from fafed.core.tree import Tree
from fafed.core.vectors import step_in_place
from fafed.engines.base import ClientState, NotFinite
from fafed.kernels import vectors
from fafed.objectives.base import Evaluation, Memory, Objective


class Visit(NamedTuple):
    """The result of an exchange on one client: its new state, its message, and counts."""

    state: ClientState
    message: Tree
    buffers: tuple[Tensor, ...]
    loss: Tensor  # mean over the points of its steps; 0 if no batch has a loss
    has_loss: Tensor  # bool: False if the labels of all batches were ignored
    evaluations: int
    samples: int


class Oracle(Grad):
    """The `grad` that an algorithm calls on one client. It counts evaluations, and keeps the
    memory: the model's buffers and its recurrent state.

    The first evaluation on a batch is the one at the current point. Only this one updates the
    memory and counts for the loss. A second evaluation (at the previous point) starts from the same
    memory and does not update it.

    Buffers are updated once per step, whatever else an algorithm evaluates. An anchor or a full
    pass does not update them (SCAFFOLD's option I, Mime, the openings of MimeLite and local
    AMSGrad). But some steps are made with such a pass. Then it is the step's own evaluation and
    updates the buffers: the opening step of FAFED and STEM, the first step of a round in SPIDER
    and, with its anchor, Fed-GLOMO. The algorithm says so with `Batch.for_step`.
    """

    in_place = True  # whether `sgd_steps` may ask for each parameter's gradient

    def __init__(self, objective: Objective, memory: Memory) -> None:
        self.objective = objective
        self.before = self.after = memory
        self.data: object = None
        self.losses: list[tuple[Tensor, Tensor | None]] = []  # and whether there was one
        self.other_losses: list[tuple[Tensor, Tensor | None]] = []  # of anchors and full passes
        self.evaluations = 0
        self.samples = 0

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        found = self.evaluate(x, batch, self._before(batch))
        self._note(batch, found.loss, found.memory)
        return found.gradient

    def _before(self, batch: Batch) -> Memory:
        """The memory with which an evaluation on this batch starts."""
        if batch.data is not self.data:
            self.before = self.after
        return self.before if batch.step else self.before._replace(hidden=())

    def _note(self, batch: Batch, loss: Tensor, moved: Memory) -> None:
        """Count an evaluation on this batch, with its loss and the memory after it."""
        if batch.data is not self.data:
            self.data, kept = batch.data, self.before
            self.after = Memory(
                moved.buffers if batch.moves_buffers else kept.buffers,
                moved.hidden if batch.step else kept.hidden,
            )
            losses = self.losses if batch.step else self.other_losses
            losses.append((loss, self.objective.counts(batch.data)))
        self.evaluations += self.objective.evaluations
        self.samples += self.objective.evaluations * batch.size

    def sgd_steps(
        self, x: Tensor, rates: Rates, batches: Batches, correction: Tensor | None = None
    ) -> Tensor:
        """The plain steps with their numbers, but without a gradient of the size of x: each
        parameter moves in place. With large models this saves three passes over the memory."""
        if not self.in_place or self.objective.parts_of(x) is None:
            return super().sgd_steps(x, rates, batches, correction)
        x = x.clone()
        parts = self.objective.parts_of(x) or ()
        added = None if correction is None else self.objective.parts_of(correction)
        for rate, batch in zip(rates, batches, strict=True):
            found, loss, memory = self.objective.by_parts(parts, batch, self._before(batch))
            self._note(batch, loss, memory)
            for k, (part, g) in enumerate(zip(parts, found, strict=True)):
                direction = g
                if added is not None:
                    direction = added[k] if g is None else g + added[k]
                if direction is not None:
                    step_in_place(part, rate, direction)
        return x

    def storm_steps(
        self, start: StormPoint, settings: StormSettings, batches: Batches, *, keep_x: bool
    ) -> StormPoint:
        if not self.objective.combine:
            return super().storm_steps(start, settings, batches, keep_x=keep_x)
        return combined_storm_steps(self._difference, start, settings, batches)

    def _difference(self, x: Tensor, before: Tensor, keep: float | Tensor, batch: Batch) -> Tensor:
        self.losses.append((torch.zeros((), device=x.device), self.objective.counts(batch.data)))
        self.evaluations += 2
        self.samples += 2 * batch.size
        return self.objective.difference(x, before, keep, batch, self.after).gradient

    def loss(self) -> tuple[Tensor, Tensor]:
        """The mean over the batches that have a loss, and whether there is such a batch."""
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

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """Compute a gradient, here with autograd. Back ends have other ways."""
        return self.objective.evaluate(x, batch, memory)

    # Operations on whole vectors for which torch has no single operation.

    def storm_estimate(self, g: Tensor, keep: float | Tensor, m: Tensor, old: Tensor) -> Tensor:
        return vectors.storm_estimate(g, keep, m, old)

    def ema_of_squares(self, v: Tensor, beta: float, g: Tensor) -> Tensor:
        return vectors.ema_of_squares(v, beta, g)


def visit(oracle: Oracle, exchange: Exchange, down: HasX, local: Tree, batches: Batches) -> Visit:
    """Run one client's part of the exchange. Under vmap this runs several clients at once."""
    local, message = exchange.client(oracle, down, local, batches)
    return Visit(
        ClientState(local, oracle.after.hidden),
        message,
        oracle.after.buffers,
        *oracle.loss(),
        oracle.evaluations,
        oracle.samples,
    )


def check(client: int, loss: Tensor, message: Tree) -> None:
    """Refuse NaN and infinity, which would spoil the mean."""
    if not torch.isfinite(loss):
        raise NotFinite(client, "loss")
    if not tree.finite(message):
        raise NotFinite(client, "message")
