"""The vmap back end with gradients and local steps in C, for plain small networks.

The C code makes all local steps of one client, then those of the next. So the vectors of a client
stay in the cache (kernels/fused_steps.c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fafed.core.batch import Batch, Batches
from fafed.core.gradient import Rates, StormPoint, StormSettings
from fafed.core.vmap import wrapped
from fafed.data.sources.base import ClientBatches, Drawn
from fafed.engines.backends.base import CannotRun
from fafed.engines.backends.vmap import Vmap
from fafed.engines.client import Oracle
from fafed.kernels.build import NoCompiler, library
from fafed.kernels.network import Network
from fafed.objectives.base import Evaluation, Memory


class NativeOracle(Oracle):
    """Gradients and local steps by the objective's network in C."""

    in_place = False

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        return self.objective.evaluate_native(x, batch, memory)

    def sgd_steps(
        self, x: Tensor, rates: Rates, batches: Batches, correction: Tensor | None = None
    ) -> Tensor:
        if (found := self._network(batches, rates)) is None:
            return super().sgd_steps(x, rates, batches, correction)
        network, data = found
        correction = x[:0] if correction is None else correction
        x, losses = network.sgd_steps(x, correction, _numbers(rates), *data)
        self._count(losses, data, 1)
        return x

    def storm_steps(
        self, start: StormPoint, settings: StormSettings, batches: Batches, *, keep_x: bool
    ) -> StormPoint:
        rates, keeps, beta, A = settings
        if (found := self._network(batches, [*rates, *keeps, A])) is None:
            return super().storm_steps(start, settings, batches, keep_x=keep_x)
        network, data = found
        inverse = 1 / A if isinstance(A, Tensor) else start.x[:0]
        numbers = _numbers(rates), _numbers(keeps), beta
        *moved, losses = network.storm_steps(start, *numbers, inverse, *data, keep_x=keep_x)
        self._count(losses, data, 2)
        return StormPoint(*moved)

    def _network(self, batches: Batches, shared: Rates) -> tuple[Network, Any] | None:
        """The network in C that makes the steps, and its data. None if it cannot make them: all
        clients of a group must have the same rates, `shared`."""
        if not isinstance(batches, ClientBatches):
            return None
        if any(isinstance(rate, Tensor) and wrapped(rate) for rate in shared):
            return None
        data = batches.round
        network = self.objective.network_for_steps(data)
        return None if network is None else (network, data)

    def _count(self, losses: Tensor, data: Any, gradients: int) -> None:
        self.losses.append((losses, self.objective.counts(data, leading=1)))
        self.evaluations += gradients * len(losses)
        self.samples += gradients * data[-1].numel()


def _numbers(rates: Rates) -> Tensor:
    return torch.tensor([float(rate) for rate in rates], dtype=torch.float64)


class Native(Vmap):
    name = "native"
    oracle = NativeOracle

    def check(self) -> None:
        self.check_stackable()
        network = self.task.objective.network
        if network is None:
            raise CannotRun(self.task.objective.not_native)
        try:
            library(network.dtype)
        except NoCompiler as cause:
            raise CannotRun(str(cause)) from cause

    def drawback(self) -> str | None:
        return None

    def gather(self) -> Callable[[Drawn], Any]:
        return self.task.source.pick
