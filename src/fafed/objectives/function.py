"""A function of the vector itself, for problems without a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fafed.core.batch import Batch
from fafed.errors import ConfigError
from fafed.objectives.base import Memory, Objective


class Function(Objective):
    """A function f(x, data) -> scalar of the vector itself, for problems without a module.

    shapes: those of the tensors that x is made of, for algorithms that ask. The default is one
    vector.
    """

    def __init__(
        self,
        f: Callable[[Tensor, Any], Tensor],
        x0: Tensor,
        *,
        shapes: Sequence[Sequence[int]] | None = None,
        clip: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(clip, weight_decay)
        self.f = f
        self.x0 = x0
        self._shapes = [(x0.numel(),)] if shapes is None else [tuple(shape) for shape in shapes]
        self.sizes = tuple(math.prod(shape) for shape in self._shapes)
        if sum(self.sizes) != x0.numel():
            raise ConfigError(
                f"shapes {self._shapes} hold {sum(self.sizes)} numbers, x0 has {x0.numel()}: "
                "give the shapes of the tensors that x is made of, one after another"
            )

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return self._shapes

    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]:
        return self.f(x, batch.data), memory
