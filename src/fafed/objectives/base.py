"""What an engine asks of the thing that is minimised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch
from fafed.errors import ConfigError

Loss = Callable[[Any, Any], Tensor]


Metric = Callable[[Any, Any], Tensor | float]


class Memory(NamedTuple):
    """What an evaluation leaves behind beside the gradient."""

    buffers: tuple[Tensor, ...] = ()  # BatchNorm statistics and the like
    hidden: Any = ()  # state of a recurrent model


class Evaluation(NamedTuple):
    gradient: Tensor
    loss: Tensor
    memory: Memory


class Objective(Protocol):
    """What an engine needs to know of the thing that is minimised."""

    @property
    def x0(self) -> Tensor: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...  # of each parameter tensor, in the order of x

    def start(self) -> Memory:
        """The memory of a client before its first evaluation."""

    def hidden_like(self) -> Any:
        """Something of the shape of a carried recurrent state."""

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory, *, engine: str) -> Evaluation:
        """Gradient and loss at x, in the way of an engine: by torch's graphs for `loop`, by
        torch.func, which vmap can see through, for `vmap`, in C for `native`."""

    def counts(self, data: Any, leading: int = 0) -> Tensor | None:
        """Whether a batch has a loss at all, which it has not if its labels are all ignored: then
        the gradient is zero, but for weight decay. With leading dimensions, of each of several
        batches. None: all have one."""


class _Differentiable(ABC):
    """Gradients of `_loss` by either of torch's two ways, with weight decay and clipping."""

    def __init__(self, clip: float | None, weight_decay: float) -> None:
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip must be > 0 or None, got {clip!r}: it bounds a norm")
        if not weight_decay >= 0:
            raise ConfigError(f"weight_decay must be >= 0, got {weight_decay!r}")
        self.clip = clip
        self.weight_decay = weight_decay

    @abstractmethod
    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]: ...

    def counts(self, data: Any, leading: int = 0) -> Tensor | None:
        return None

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory, *, engine: str) -> Evaluation:
        if engine != "loop":
            of_x = torch.func.grad_and_value(self._loss, has_aux=True)
            g, (loss, memory) = of_x(x, batch, memory)
            if (counts := self.counts(batch.data)) is not None:
                g = torch.where(counts, g, 0.0)
        else:
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                loss, memory = self._loss(x, batch, memory)
                (g,) = torch.autograd.grad(loss, x)
            loss, memory = loss.detach(), tree.map(Tensor.detach, memory)
            if (counts := self.counts(batch.data)) is not None and not counts:
                g = torch.zeros_like(g)
        return Evaluation(self._changed(g, x), loss, memory)

    def _changed(self, g: Tensor, x: Tensor) -> Tensor:
        if self.weight_decay:
            g = g + self.weight_decay * x.detach()
        if self.clip is not None:
            g = g * (self.clip / g.norm().clamp(min=self.clip))
        return g
