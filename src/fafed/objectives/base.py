"""The interface between an engine and an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.arguments import checked
from fafed.core.batch import Batch
from fafed.core.tree import Tree
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


Parts = tuple[Tensor, ...]  # views of x, one for each parameter
Way = Callable[[Tensor, Batch, Memory], Evaluation]  # before weight decay and clipping


class Objective(ABC):
    """A loss of (x, batch), and its gradient by autograd and by torch.func. Weight decay and
    clipping are included.

    With `sam` = rho > 0 the gradient is sharpness-aware (Foret et al. 2021,
    https://arxiv.org/abs/2010.01412): that at x + rho g / |g|, where g is the plain gradient at x.
    Both are on the same batch, with the same dropout masks. They count as two evaluations. Loss,
    buffers and recurrent state are those of the plain one. Weight decay (at x) and clipping come
    after it.

    A subclass defines `_loss`. The defaults below are for an objective without a module.
    """

    x0: Tensor
    sizes: tuple[int, ...]  # numbers in each parameter tensor, in the order of x
    exchange: int = 0  # the place of the current exchange in its round
    combine: bool = False  # whether STORM steps ask for the `difference` of two gradients
    fused: bool = False  # whether a module computes its loss itself
    recurrent_layers: bool = False  # whether a module has layers such as nn.LSTM
    network: Network | None = None  # the same function in C
    not_native: str = "there is no module to recognise"  # why there is no network

    def __init__(self, clip: float | None, weight_decay: float, sam: float = 0.0) -> None:
        self.clip = checked("clip", clip)
        self.weight_decay = checked("weight_decay", weight_decay)
        self.sam = checked("sam", sam)

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

    def for_visit(self) -> Objective:
        """The objective for one client in one exchange."""
        return self

    def parts_of(self, x: Tensor) -> Parts | None:
        """Views of x for `by_parts`. None if plain steps cannot be made with them."""
        return None

    def by_parts(
        self, parts: Parts, batch: Batch, memory: Memory
    ) -> tuple[tuple[Tensor | None, ...], Tensor, Memory]:
        """The gradient of each parameter, None for zero, the loss, and the memory after it."""
        raise NotImplementedError(f"{type(self).__name__} has no parameters")

    # Gradient and loss at x: one method for each back end.

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With autograd."""
        return self._finished(self._by_autograd, x, batch, memory)

    def evaluate_functional(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With torch.func, which works under vmap."""
        return self._finished(self._by_functional, x, batch, memory)

    def evaluate_native(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """In C, if there is a network."""
        return self._finished(self._by_network, x, batch, memory)

    def difference(
        self, x: Tensor, before: Tensor, keep: float | Tensor, batch: Batch, memory: Memory
    ) -> Evaluation:
        """g(x) - keep g(before) as one query, if `combine` is set."""
        raise NotImplementedError(f"{type(self).__name__} does not combine gradients")

    @property
    def evaluations(self) -> int:
        """The plain gradients in one of these."""
        return 2 if self.sam else 1

    def _finished(self, way: Way, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        found = way(x, batch, memory)
        g = found.gradient
        if self.sam:
            size = g.norm()
            up = torch.where(size > 0, g / size, 0.0)
            g = way(x + self.sam * up, batch, memory).gradient
        return found._replace(gradient=self._changed(g, x))

    def _by_autograd(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        found = self.by_autograd(x, batch, memory)
        if (counts := self.counts(batch.data)) is not None and not counts:
            return found._replace(gradient=torch.zeros_like(found.gradient))
        return found

    def by_autograd(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        """With autograd, before weight decay and clipping."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss, memory = self._loss(x, batch, memory)
            (g,) = torch.autograd.grad(loss, x)
        return Evaluation(g, loss.detach(), tree.map(Tensor.detach, memory))

    def _by_functional(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        of_x = torch.func.grad_and_value(self._loss, has_aux=True)
        g, (loss, memory) = of_x(x, batch, memory)
        if (counts := self.counts(batch.data)) is not None:
            g = torch.where(counts, g, 0.0)
        return Evaluation(g, loss, memory)

    def _by_network(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        return self._by_functional(x, batch, memory)

    def network_for_steps(self, data: Any) -> Network | None:
        """The network, if it can make whole local steps on such batches (q, b, ...) in C."""
        return None

    def _changed(self, g: Tensor, x: Tensor) -> Tensor:
        if self.weight_decay:
            g = g + self.weight_decay * x.detach()
        if self.clip is not None:
            g = g * (self.clip / g.norm().clamp(min=self.clip))
        return g
