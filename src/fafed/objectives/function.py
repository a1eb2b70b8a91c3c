"""A function of the vector itself, for problems without a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fafed.core.batch import Batch
from fafed.objectives.base import Memory, Objective


class Function(Objective):
    """A function f(x, data) -> scalar of the vector itself, for problems without a module."""

    def __init__(
        self,
        f: Callable[[Tensor, Any], Tensor],
        x0: Tensor,
        *,
        clip: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(clip, weight_decay)
        self.f = f
        self.x0 = x0
        self.sizes = (x0.numel(),)

    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
        return self.f(x, batch.data), memory
