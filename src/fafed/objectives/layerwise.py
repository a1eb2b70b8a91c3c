"""Clipped sums of the examples' gradients without the gradients themselves, layer by layer.

A linear layer with the inputs a and the gradients e of its outputs has the gradient e_i a_i^T on
example i. Its squared norm is |e_i|^2 |a_i|^2, and the sum of all gradients with factors c_i is
(c e)^T a. So one backward pass is enough, and no example's gradient is written down (Goodfellow
2015, https://arxiv.org/abs/1510.01799). A combination of gradients at several points works alike:
its squared norm is the sum of (e_p . e_q) (a_p . a_q) over all pairs of points. Convolutions write
down the gradients of their kernels, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fafed.core import tree
from fafed.core.batch import Batch
from fafed.objectives.base import Memory
from fafed.objectives.module import Model

Points = Sequence[tuple[Tensor, float | Tensor]]  # vectors x, with the factors of their gradients


class CannotSplit(Exception):
    """The model has something that is not computed layer by layer. The message says what."""


class Seen(NamedTuple):
    """A layer's inputs and the gradients of its outputs, of all examples."""

    inputs: Tensor
    outputs: Tensor


class Layerwise:
    """The gradients of a model whose parameters are all in linear layers and convolutions."""

    def __init__(self, model: Model) -> None:
        if model.stochastic or model.fused or model.recurrent or model.amp or not model.one_dtype:
            raise CannotSplit("only plain models in one precision are split into layers")
        if not callable(model.loss):
            raise CannotSplit("the model computes its own loss")
        self.model = model
        self.layers: dict[str, nn.Linear | nn.Conv2d] = {}
        for path, layer in model.module.named_modules():
            if any(p.requires_grad for p in layer.parameters(recurse=False)):
                self.layers[path] = _known(path, layer)
        own = [
            f"{path}.{name}" if path else name
            for path, layer in self.layers.items()
            for name, _ in layer.named_parameters(recurse=False)
        ]
        if sorted(own) != sorted(model.names):
            raise CannotSplit("layers share parameters, or some of them are frozen")

    @property
    def numbers(self) -> int:
        """How many numbers are written down for one example."""
        own = self.layers.values()
        return 1 + sum(one.weight.numel() for one in own if isinstance(one, nn.Conv2d))

    def scaled_sum(
        self, points: Points, batch: Batch, memory: Memory, factors: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The sum of the examples' combined gradients, each with its factor, which the function
        gives for its norm."""
        if not self._counting(batch):
            return torch.zeros_like(points[0][0])
        seen = [self._pass(x, factor, batch, memory) for x, factor in points]
        kernels = {
            path: _kernels(layer, [one[path] for one in seen])
            for path, layer in self.layers.items()
            if isinstance(layer, nn.Conv2d)
        }
        norms = self._squared_norms(seen, kernels).sqrt()
        return self._weighted_sum(seen, kernels, factors(norms).to(points[0][0].dtype))

    def _squared_norms(self, seen: Sequence[dict[str, Seen]], kernels: dict[str, Tensor]) -> Tensor:
        """Of each example's combined gradient, in float64: gradients at near points cancel."""
        total: Tensor | None = None
        for path, layer in self.layers.items():
            passes = [one[path] for one in seen]
            if isinstance(layer, nn.Conv2d):
                own = torch.linalg.vector_norm(kernels[path], dim=(1, 2), dtype=torch.float64) ** 2
                if layer.bias is not None:
                    bias = torch.stack([p.outputs.sum((2, 3)) for p in passes]).sum(0)
                    own = own + torch.linalg.vector_norm(bias, dim=1, dtype=torch.float64) ** 2
            else:
                a = torch.stack([p.inputs for p in passes]).double()
                e = torch.stack([p.outputs for p in passes]).double()
                inner = torch.einsum("pbi,qbi->pqb", a, a)
                if layer.bias is not None:
                    inner = inner + 1
                own = (inner * torch.einsum("pbo,qbo->pqb", e, e)).sum((0, 1)).clamp(min=0)
            total = own if total is None else total + own
        assert total is not None
        return total

    def _weighted_sum(
        self, seen: Sequence[dict[str, Seen]], kernels: dict[str, Tensor], factors: Tensor
    ) -> Tensor:
        """The sum of the examples' combined gradients with these factors, as a vector like x."""
        parts: dict[str, Tensor] = {}
        for path, layer in self.layers.items():
            prefix = f"{path}." if path else ""
            passes = [one[path] for one in seen]
            if isinstance(layer, nn.Conv2d):
                parts[f"{prefix}weight"] = torch.einsum("b,boi->oi", factors, kernels[path])
                each = [torch.einsum("b,bohw->o", factors, p.outputs) for p in passes]
            else:
                scaled = [factors[:, None] * p.outputs for p in passes]
                pairs = zip(scaled, passes, strict=True)
                weights = [e.T @ p.inputs for e, p in pairs]
                parts[f"{prefix}weight"] = torch.stack(weights).sum(0)
                each = [e.sum(0) for e in scaled]
            if layer.bias is not None:
                parts[f"{prefix}bias"] = torch.stack(each).sum(0)
        return torch.cat([parts[name].reshape(-1) for name in self.model.names])

    def _pass(
        self, x: Tensor, factor: float | Tensor, batch: Batch, memory: Memory
    ) -> dict[str, Seen]:
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}

        def watch(path: str) -> Any:
            def hook(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
                if path in inputs:
                    raise CannotSplit(f"{path} is called twice")
                inputs[path], outputs[path] = given[0].detach(), out
                if not out.requires_grad:
                    out.requires_grad_()

            return hook

        with torch.enable_grad(), self.model._installed(x.detach(), memory) as module:
            hooks = [module.get_submodule(p).register_forward_hook(watch(p)) for p in self.layers]
            try:
                mean, _ = self.model._value(module, batch, memory)
            finally:
                for hook in hooks:
                    hook.remove()
            if len(outputs) < len(self.layers):
                raise CannotSplit("a layer is not called")
            gradients = torch.autograd.grad(mean, list(outputs.values()))
        # the loss is a mean over the examples that count; each alone has a factor of one
        count = self._counting(batch)
        found = zip(outputs, gradients, strict=True)
        return {
            path: _seen(self.layers[path], inputs[path], factor * (count * e)) for path, e in found
        }

    def _counting(self, batch: Batch) -> float:
        labels = self.model._labels(batch.data)
        weight = None if labels is None else self.model.averaged.weight(labels)
        if weight is None:
            return float(len(tree.leaves(batch.data)[0]))
        if labels is not None and labels.ndim > 1:
            raise CannotSplit("an example has several labels")
        return float(weight)


def _known(path: str, layer: nn.Module) -> nn.Linear | nn.Conv2d:
    if type(layer) is nn.Linear:
        return layer
    plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.Conv2d) and plain and not isinstance(layer.padding, str):
        return layer
    raise CannotSplit(f"{path or 'the model'} is a {type(layer).__name__}")


def _seen(layer: nn.Linear | nn.Conv2d, inputs: Tensor, outputs: Tensor) -> Seen:
    if inputs.ndim != (2 if isinstance(layer, nn.Linear) else 4):
        raise CannotSplit("a layer has inputs of more dimensions")
    return Seen(inputs, outputs)


def _kernels(layer: nn.Conv2d, passes: Sequence[Seen]) -> Tensor:
    """The gradients of a convolution's kernel: (examples, outputs, inputs * height * width)."""
    total: Tensor | None = None
    for inputs, outputs in passes:
        assert not isinstance(layer.padding, str)
        patches = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        own = outputs.flatten(2) @ patches.transpose(1, 2)
        total = own if total is None else total + own
    assert total is not None
    return total
