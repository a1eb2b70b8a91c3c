"""An objective whose gradients are private for every example."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fafed.core import randomness, tree
from fafed.core.batch import Batch
from fafed.core.tree import Tree
from fafed.data.sources.poisson import Sample
from fafed.errors import ConfigError
from fafed.kernels import build
from fafed.kernels.network import Network
from fafed.objectives.base import Evaluation, Memory, Objective
from fafed.objectives.layerwise import Layerwise, Points
from fafed.objectives.module import Model
from fafed.privacy.clipping import (
    CHUNK_BYTES,
    Numbers,
    add_noise,
    check_finite,
    clip_factors,
    clipped_sum,
    keyed_draws,
)

log = logging.getLogger("fafed")


class Private(Objective):
    """Clips each example's gradient, adds noise to the sum, and divides by the expected size.

    A client's loss is not sent, and buffers keep their values: both would say something about the
    examples without noise. Weight decay and the clipping of whole gradients come after the noise.

    In simulation, noise is a function of (seed, client, step, exchange) and of how many gradients
    were taken on the batch before. So it is never used twice: a round is not tried again
    (`fafed.training.loop`). A real silo draws its own (`for_silo`).
    """

    def __init__(
        self, inner: Objective, *, noise: float, clip: float, seed: int, combine: bool = False
    ) -> None:
        """combine: a step of FAFED or STEM asks once for the difference of its two gradients."""
        super().__init__(inner.clip, inner.weight_decay, inner.sam)
        refuse_what_mixes_examples(inner)
        self.inner = inner
        self.x0, self.sizes = inner.x0, inner.sizes
        self.noise = noise
        self.norm = clip  # of one example's gradient
        self.draws: Callable[[str], Numbers] = lambda key: keyed_draws(f"noise {seed} {key}")
        self.strict = True  # an example whose gradient is not finite is an error
        self.looks: Counter[int] = Counter()  # key of a batch -> gradients on it in this visit
        self.combine = combine
        self.vectorised = True  # `choose` may find that vmap does not do
        self.layers: Layerwise | None = None  # `choose` sets it if the model has such layers
        self.not_native = "gradients are clipped example by example"

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return self.inner.shapes

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    def start(self) -> Memory:
        return self.inner.start()

    def counts(self, data: Any, leading: int = 0) -> Tensor | None:
        return torch.zeros((), dtype=torch.bool, device=self.x0.device)  # no loss is sent

    def for_visit(self) -> Private:
        own = copy.copy(self)
        own.looks = Counter()
        return own

    def for_silo(self, draws: Callable[[str], Numbers]) -> Private:
        """The objective for one visit of a real silo, with noise of its own. An example whose
        gradient is not finite counts as zero there: an error would tell that it is there."""
        own = self.for_visit()
        own.draws, own.strict = draws, False
        return own

    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
        raise NotImplementedError("a private objective has no loss to show")

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        return self._finished(self._with_noise, x, batch, memory)

    def difference(
        self, x: Tensor, before: Tensor, keep: float | Tensor, batch: Batch, memory: Memory
    ) -> Evaluation:
        """g(x) - keep g(before) as one query: the difference of each example is clipped. Weight
        decay is linear, so it comes after the noise, as with one gradient."""
        found = self._answer([(x, 1.0), (before, -keep)], batch, memory)
        return found._replace(gradient=self._changed(found.gradient, x - keep * before))

    def _with_noise(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        return self._answer([(x, 1.0)], batch, memory)

    def _answer(self, points: Points, batch: Batch, memory: Memory) -> Evaluation:
        sample: Sample = batch.data
        total = self.combined_sum(points, batch, memory)
        batch_key = int(batch.key)
        key = f"{batch_key} {self.exchange} {self.looks[batch_key]}"
        self.looks[batch_key] += 1
        noisy = add_noise(total, self.noise * self.norm, self.draws(key))
        loss = torch.zeros((), device=total.device)
        return Evaluation(noisy / sample.expected, loss, memory)

    def clipped_sum(self, x: Tensor, batch: Batch, memory: Memory) -> Tensor:
        return self.combined_sum([(x, 1.0)], batch, memory)

    def combined_sum(self, points: Points, batch: Batch, memory: Memory) -> Tensor:
        """The sum over the examples of their gradients at these points, added up with the factors
        of the points and then clipped."""
        data, rows, _ = batch.data
        points = [(x.detach(), factor) for x, factor in points]
        x = points[0][0]
        if self.network is not None:
            return self._by_network_in_c(self.network, points, batch)
        if self.layers is not None:
            return self._by_layers(self.layers, points, batch, memory)
        # a model's own random draws depend on the example alone, not on its place in the batch
        keys = randomness.mixed(batch.key, rows)
        one_by_one = not self.vectorised

        def combined(example: Tree, key: Tensor) -> Tensor:
            each = [factor * self._gradient(x, example, key, batch, memory) for x, factor in points]
            return each[0] if len(each) == 1 else torch.stack(each).sum(0)

        def gradients(some: slice) -> Tensor:
            part, own = tree.map(lambda leaf: leaf[some], data), keys[some]
            if not one_by_one:
                return torch.func.vmap(combined)(part, own)
            return torch.stack([combined(tree.take(part, i), own[i]) for i in range(len(own))])

        return clipped_sum(gradients, len(rows), self.norm, x, strict=self.strict)

    def _by_network_in_c(self, network: Network, points: Points, batch: Batch) -> Tensor:
        inputs, targets = batch.data.data
        if not len(targets):
            return torch.zeros_like(points[0][0])
        x = points[0][0][None] if len(points) == 1 else torch.stack([own for own, _ in points])
        factors = torch.stack([torch.as_tensor(f, dtype=torch.float64) for _, f in points])
        total, norms = network.clipped_sum(x, factors, inputs, targets, self.norm)
        if self.strict:
            check_finite(norms)
        return total

    def _by_layers(self, layers: Layerwise, points: Points, batch: Batch, memory: Memory) -> Tensor:
        data = batch.data.data
        count = len(tree.leaves(data)[0])
        total = torch.zeros_like(points[0][0])
        size = max(1, CHUNK_BYTES // (layers.numbers * total.element_size()))
        for start in range(0, count, size):
            some = tree.map(lambda leaf, at=start: leaf[at : at + size], data)
            part = batch._replace(data=some)
            total += self._layer_sum(layers, points, part, memory)
        return total

    def _layer_sum(self, layers: Layerwise, points: Points, batch: Batch, memory: Memory) -> Tensor:
        finite: list[Tensor] = []

        def factors(norms: Tensor) -> Tensor:
            finite.append(torch.isfinite(norms))
            counts = torch.ones_like(finite[-1]) if self.strict else finite[-1]
            return clip_factors(norms, counts, self.norm)

        total = layers.scaled_sum(points, batch, memory, factors)
        if not finite or finite[0].all():
            return total
        good = finite[0].nonzero()[:, 0]  # zero times infinity would spoil the sum
        left = batch._replace(data=tree.take(batch.data, good))
        if not len(good):
            return torch.zeros_like(total)
        return layers.scaled_sum(points, left, memory, factors)

    def _gradient(
        self, x: Tensor, example: Tree, key: Tensor, batch: Batch, memory: Memory
    ) -> Tensor:
        one = batch._replace(data=tree.map(lambda leaf: leaf[None], example), key=key)
        g: Tensor = torch.func.grad(lambda x: self.inner._loss(x, one, memory)[0])(x)
        counts = self.inner.counts(one.data)
        return g if counts is None else torch.where(counts, g, 0.0)

    def choose(self, batch: Batch) -> None:
        """Find the fastest way that computes this model's gradients: in C, layer by layer, under
        vmap, or one by one."""
        memory = self.start()
        self.vectorised, self.layers, self.network = False, None, None
        due = self.clipped_sum(self.x0, batch, memory)

        def agrees() -> bool:
            found = self.clipped_sum(self.x0, batch, memory)
            return float((found - due).norm()) <= 1e-3 * float(due.norm())

        known = self.inner.network
        if known is not None and build.available(known.dtype):
            data = batch.data.data
            if isinstance(data, tuple) and len(data) == 2 and known.takes(*data):
                self.network = known
                if agrees():
                    return
                self.network = None
        if isinstance(self.inner, Model):
            try:
                self.layers = Layerwise(self.inner)
                if agrees():
                    return
            except Exception as cause:  # whatever the model does that cannot be split
                log.debug("gradients are not computed layer by layer: %s", cause)
            self.layers = None
        self.vectorised = True
        try:
            self.vectorised = agrees()
        except Exception as cause:  # whatever the model does that vmap cannot
            log.warning("gradients are computed one by one, which is slow: %s", cause)
            self.vectorised = False


def refuse_what_mixes_examples(inner: Objective) -> None:
    """Refuse models and losses in which no example has a gradient of its own."""
    if not isinstance(inner, Model):
        return
    name = type(inner.module).__name__
    if inner.recurrent:
        raise ConfigError(
            f"{name} keeps a state from one batch to the next: privacy.level = 'example' needs "
            "independent examples"
        )
    for path, layer in inner.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{name}: {path or 'it'} is a {type(layer).__name__}, which mixes the examples of "
                "a batch, so no example's gradient can be clipped: use nn.GroupNorm"
            )
    if inner.averaged.class_weights is not None:
        raise ConfigError(
            "the loss has class weights, which a mean over one example loses: privacy.level = "
            "'example' needs a loss without them"
        )
