"""The interface between an engine and an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch
from fafed.core.tree import Tree
from fafed.errors import ConfigError
from fafed.kernels.network import Network

Loss = Callable[[Any, Any], Tensor]


class StatefulMetric(Protocol):
    """A metric that sees the batches one after another, such as those of torchmetrics."""

    def update(self, outputs: Any, targets: Any, /) -> object: ...
    def compute(self) -> Any: ...
    def reset(self) -> object: ...


Metric = Callable[[Any, Any], Tensor | float] | StatefulMetric  # see `fafed.objectives.metrics`


class Totals(NamedTuple):
    """What some batches add to an evaluation."""

    sums: dict[str, tuple[float, float]]  # the loss and each metric that is a mean, with divisors
    examples: int
    outputs: list[tuple[Any, Any]]  # outputs and targets of each batch on the CPU, if asked for


class Memory(NamedTuple):
    """What a client keeps from one evaluation to the next."""

    buffers: tuple[Tensor, ...] = ()  # BatchNorm statistics and the like
    hidden: Tree = ()  # state of a recurrent model


class Evaluation(NamedTuple):
    gradient: Tensor
    loss: Tensor
    memory: Memory


class Objective(ABC):
    """A loss of (x, batch), and its gradient by autograd and by torch.func. Weight decay and
    clipping are included.

    A subclass defines `_loss`. The defaults below are for an objective without a module.
    """

    x0: Tensor
    sizes: tuple[int, ...]  # numbers in each parameter tensor, in the order of x
    fused: bool = False  # whether a module computes its loss itself
    recurrent_layers: bool = False  # whether a module has layers such as nn.LSTM
    network: Network | None = None  # the same function in C
    not_native: str = "there is no module to recognise"  # why there is no network

    def __init__(self, clip: float | None, weight_decay: float) -> None:
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip must be > 0 or None, got {clip!r}: it bounds a norm")
        if not weight_decay >= 0:
            raise ConfigError(f"weight_decay must be >= 0, got {weight_decay!r}")
        self.clip = clip
        self.weight_decay = weight_decay

    @property
    @abstractmethod
    def shapes(self) -> Sequence[Sequence[int]]:
        """The shape of each parameter tensor."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of floating-point data."""
        return self.x0.dtype

    @property
    def precision(self) -> torch.dtype:
        """The coarsest type in which the loss is computed."""
        return self.dtype

    @abstractmethod
    def _loss(self, x: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Memory]: ...

    def start(self) -> Memory:
        """The memory of a client before its first evaluation."""
        return Memory()

    def hidden_like(self) -> Tree:
        """Something of the shape of a carried recurrent state."""
        return ()

    def counts(self, data: Any, leading: int = 0) -> Tensor | None:
        """Whether a batch has a loss. It has none if all its labels are ignored. Then the gradient
        is zero, except for weight decay. `leading` dimensions run over several batches. None: all
        batches have a loss."""
        return None

    # Gradient and loss at x: one method for each back end.

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With autograd."""
        g, loss, memory = self.by_autograd(x, batch, memory)
        if (counts := self.counts(batch.data)) is not None and not counts:
            g = torch.zeros_like(g)
        return Evaluation(self._changed(g, x), loss, memory)

    def by_autograd(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With autograd, before weight decay and clipping."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss, memory = self._loss(x, batch, memory)
            (g,) = torch.autograd.grad(loss, x)
        return Evaluation(g, loss.detach(), tree.map(Tensor.detach, memory))

    def evaluate_functional(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With torch.func, which works under vmap."""
        of_x = torch.func.grad_and_value(self._loss, has_aux=True)
        g, (loss, memory) = of_x(x, batch, memory)
        if (counts := self.counts(batch.data)) is not None:
            g = torch.where(counts, g, 0.0)
        return Evaluation(self._changed(g, x), loss, memory)

    def evaluate_native(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """In C, if there is a network."""
        return self.evaluate_functional(x, batch, memory)

    def network_for_steps(self, data: Any) -> Network | None:
        """The network, if it can make whole local steps on such batches (q, b, ...) in C."""
        return None

    def _changed(self, g: Tensor, x: Tensor) -> Tensor:
        if self.weight_decay:
            g = g + self.weight_decay * x.detach()
        if self.clip is not None:
            g = g * (self.clip / g.norm().clamp(min=self.clip))
        return g
