"""Gradients of small feed-forward networks, written out by hand for several clients at once.

For networks of a few thousand parameters most of the time of a gradient goes into anything but
arithmetic: torch's max-pooling, graphs, allocation. Here a plain `nn.Sequential` of Conv2d +
MaxPool2d(2), Linear, Tanh, ReLU and Flatten under a cross-entropy becomes a short list of matrix
products on one flat vector per client, with all intermediates in memory that is used again.
The result is autograd's up to rounding, ties in a pool included; `objective.Model` uses it where
it applies. Images run with the batch as last dimension, so that every copy is of long stretches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDE = 64  # inputs of one output of a convolution
SMALL = 2**14  # numbers in a weight matrix
IGNORED = -100  # a target that does not count, as in torch
PIECE = 2**22  # numbers in the largest intermediate; batches are cut so that it stays in cache


def compiled(module: nn.Module, loss: Any) -> Network | None:
    """The network, if it is one that this file can do and does faster; else None."""
    if loss is not F.cross_entropy or not isinstance(module, nn.Sequential):
        return None
    if type(module).forward is not nn.Sequential.forward or _hooked(module):
        return None
    x = next(module.parameters(), None)
    if x is None or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return None
    if not all(p.requires_grad for p in module.parameters()) or list(module.buffers()):
        return None
    plan = _plan(list(module))
    return None if plan is None or _better_in_torch(plan) else Network(plan)


class Network:
    """Gradient and outputs for the vectors of n clients; may be called from any thread."""

    def __init__(self, plan: list[nn.Module]) -> None:
        self.plan = plan
        self._mine = threading.local()

    def takes(self, inputs: Tensor, targets: Tensor) -> bool:
        """Whether a batch is of the kind these kernels know: images or vectors, class numbers."""
        kind = type(self.plan[0])
        fits = {nn.Conv2d: inputs.ndim == 4, nn.Linear: inputs.ndim == 2}.get(kind, True)
        return fits and targets.ndim == 1 and targets.dtype == torch.int64

    def gradient(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(d,), (b, ...), (b,) -> gradient (d,) and loss (); under vmap for all clients at once."""
        return _Gradient.apply(self, x, inputs, targets)  # type: ignore[no-any-return, no-untyped-call]

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """(d,), (b, ...) -> logits (b, classes)."""
        pieces = self._program().pieces(1, inputs[None])
        return torch.cat([self._program().forward(x[None], part)[0] for part in pieces])

    def stacked(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The same with a first dimension that runs over the clients."""
        return self._program().gradient(x, inputs, targets)

    def _program(self) -> _Program:
        program: _Program | None = getattr(self._mine, "program", None)
        if program is None:
            program = self._mine.program = _Program(self.plan)
        return program


class _Gradient(torch.autograd.Function):
    """What lets vmap hand over the stacked tensors as they are."""

    @staticmethod
    def forward(network: Network, x: Tensor, inputs: Tensor, targets: Tensor) -> Any:
        g, loss = network.stacked(x[None], inputs[None], targets[None])
        return g[0], loss[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, network: Network, *tensors: Tensor) -> Any:
        stacked = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        return network.stacked(*stacked), (0, 0)


class _Program:
    """One thread's copy of the network: its layers, and the memory they work in."""

    def __init__(self, plan: list[nn.Module]) -> None:
        self.layers: list[_Layer] = []
        start = 0
        for module in plan:
            layer = _LAYERS[type(module)](module, start)
            start += layer.parameters
            self.layers.append(layer)
        self.parameters = start
        self.lowest = next(layer for layer in self.layers if layer.parameters)
        self.shape: tuple[int, ...] = ()

    def gradient(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        n = len(targets)
        counts = (targets != IGNORED).sum(1).to(x.dtype)
        gradient, loss, seen = None, None, 0
        for part in self.pieces(n, inputs):
            here = targets[:, seen : seen + part.shape[1]]
            g, one = self._piece(x, part, here, counts)
            gradient = g if gradient is None else gradient.add_(g)
            loss = one if loss is None else loss.add_(one)
            seen += part.shape[1]
        assert gradient is not None
        assert loss is not None
        return gradient, loss

    def pieces(self, n: int, inputs: Tensor) -> Sequence[Tensor]:
        shape = inputs.shape[2:]
        largest = self.layers[0].numbers(shape)  # the first layer's is: images get smaller
        return torch.split(inputs, max(1, PIECE // (n * largest)), dim=1)

    def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Logits (n, b, classes), in memory that the next call overwrites unless copied."""
        if inputs.shape != self.shape:  # memory of other sizes is given back
            self.shape = inputs.shape
            for layer in self.layers:
                layer.memory.clear()
        a = inputs
        for layer in self.layers:
            a = layer.forward(a, x)
        return a.clone()

    def _piece(
        self, x: Tensor, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        n, b = targets.shape
        log_p = torch.log_softmax(self.forward(x, inputs), 2)
        share = (targets != IGNORED).to(x.dtype).div_(counts[:, None]).unsqueeze(2)
        chosen = targets.masked_fill(targets == IGNORED, 0).unsqueeze(2)
        loss = -(log_p.gather(2, chosen) * share).sum((1, 2))
        g = log_p.exp_()
        g.scatter_add_(2, chosen, g.new_full((1, 1, 1), -1).expand(n, b, 1))
        g *= share
        gradient = x.new_empty(n, self.parameters)
        for layer in reversed(self.layers):
            g = layer.backward(g, gradient, needed=layer is not self.lowest)
            if layer is self.lowest:
                break
        return gradient, loss


class _Layer:
    """Forward keeps what backward needs; backward writes its part of the gradient."""

    parameters = 0

    def __init__(self, module: nn.Module, start: int) -> None:
        self.memory: dict[str, Tensor] = {}

    def numbers(self, shape: torch.Size) -> int:
        """In the largest intermediate, for one example of this shape."""
        return shape.numel()

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, g: Tensor, gradient: Tensor, *, needed: bool) -> Tensor:
        raise NotImplementedError

    def room(
        self, name: str, like: Tensor, *shape: int, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The same memory in every call, for as long as the shapes stay."""
        if name not in self.memory:
            self.memory[name] = like.new_empty(shape, dtype=dtype)
        return self.memory[name]


class _Weighted(_Layer):
    """A matrix (out, in) and a bias at their place in the vector."""

    def __init__(self, module: nn.Linear | nn.Conv2d, start: int) -> None:
        super().__init__(module, start)
        self.out = len(module.weight)
        self.inputs = module.weight[0].numel()
        self.weights = slice(start, start + module.weight.numel())
        end = self.weights.stop + (self.out if module.bias is not None else 0)
        self.biases = slice(self.weights.stop, end)
        self.parameters = end - start

    def weight(self, x: Tensor) -> Tensor:
        return x[:, self.weights].view(len(x), self.out, self.inputs)

    def write(self, gradient: Tensor, left: Tensor, right: Tensor) -> None:
        """left @ right into its place; small products are faster in one piece, then copied."""
        place = self.weight(gradient)
        if self.out * self.inputs > SMALL:
            torch.bmm(left, right, out=place)
        else:
            place.copy_(torch.bmm(left, right, out=self.room("dw", left, *place.shape)))


class _Linear(_Weighted):
    """(n, b, in) -> (n, b, out)"""

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        self.a, self.w = a, self.weight(x)
        out = self.room("out", a, *a.shape[:2], self.out)
        torch.bmm(a, self.w.transpose(1, 2), out=out)
        return out if self.biases.start == self.biases.stop else out.add_(x[:, None, self.biases])

    def backward(self, g: Tensor, gradient: Tensor, *, needed: bool) -> Tensor:
        self.write(gradient, g.transpose(1, 2), self.a)
        if self.biases.start != self.biases.stop:
            torch.sum(g, 1, out=gradient[:, self.biases])
        return torch.bmm(g, self.w, out=self.room("g", g, *self.a.shape)) if needed else g


class _ConvPool(_Weighted):
    """Conv2d (stride 1) and MaxPool2d(2): (n, c, h, w, b) -> (n, out, h', w', b).

    Outputs are computed with even and odd columns apart, so that the pool is the larger of two
    long stretches. A first layer takes images as they come, (n, b, c, h, w).
    """

    def __init__(self, module: nn.Conv2d, start: int) -> None:
        super().__init__(module, start)
        self.k = module.kernel_size[0]
        self.pad = int(module.padding[0])
        self.channels = module.in_channels
        self.first = start == 0

    def numbers(self, shape: torch.Size) -> int:
        return self.inputs * shape[-1] * shape[-2]

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        a = self._padded(a.permute(0, 2, 3, 4, 1) if self.first else a)
        n, c, h, w, b = self.shape = a.shape
        k = self.k
        self.rows, self.columns = (h - k + 1) // 2 * 2, (w - k + 1) // 2
        u = self.columns * b
        # column 2 j + t of a stands at [t, j]: stretches of one parity, for every shift
        s = a.stride()
        split = self.room("split", a, n, c, h, k + 1, self.columns, b)
        split.copy_(
            a.as_strided(split.shape, (s[0], s[1], s[2], s[3], 2 * s[3], s[4]), a.storage_offset())
        )
        s = split.stride()
        patches = self.room("patches", a, n, c, k, k, 2, self.rows, u)
        patches.copy_(split.as_strided(patches.shape, (s[0], s[1], s[2], s[3], s[3], s[2], 1)))
        self.patches = patches.view(n, self.inputs, -1)
        self.w = self.weight(x)
        y = self.room("y", a, n, self.out, 2, self.rows, u)
        torch.bmm(self.w, self.patches, out=y.view(n, self.out, -1))
        left, right = y[:, :, 0], y[:, :, 1]
        # on a tie the first wins, as in torch: the left one, then the upper one
        self.is_left = torch.ge(left, right, out=self.room("is_left", a, *left.shape))
        wide = torch.maximum(left, right, out=self.room("wide", a, *left.shape))
        up, down = wide[:, :, 0::2], wide[:, :, 1::2]
        self.is_up = torch.ge(up, down, out=self.room("is_up", a, *up.shape))
        out = torch.maximum(up, down, out=self.room("out", a, *up.shape))
        if self.biases.start != self.biases.stop:
            out += x[:, self.biases, None, None]  # after the pool: a quarter of the work
        return out.view(n, self.out, self.rows // 2, self.columns, b)

    def backward(self, g: Tensor, gradient: Tensor, *, needed: bool) -> Tensor:
        n, c, h, w, _ = self.shape
        g = g.reshape(self.is_up.shape)
        if self.biases.start != self.biases.stop:
            torch.sum(g, (2, 3), out=gradient[:, self.biases])
        wide = self.memory["wide"]
        up, down = wide[:, :, 0::2], wide[:, :, 1::2]
        torch.mul(g, self.is_up, out=up)
        torch.sub(g, up, out=down)
        y = self.memory["y"]
        torch.mul(wide, self.is_left, out=y[:, :, 0])
        torch.sub(wide, y[:, :, 0], out=y[:, :, 1])
        y = y.view(n, self.out, -1)
        self.write(gradient, y, self.patches.transpose(1, 2))
        if not needed:
            return g
        torch.bmm(self.w.transpose(1, 2), y, out=self.patches)
        patches = self.memory["patches"]
        split = self.memory["split"].zero_()
        flat = split.view(n, c, h, self.k + 1, -1)
        for i in range(self.k):
            for j in range(self.k):
                for parity in (0, 1):
                    flat[:, :, i : i + self.rows, j + parity] += patches[:, :, i, j, parity]
        back = self.room("back", g, *self.shape).zero_()
        for t in range(self.k + 1):
            back[:, :, :, t : t + 2 * self.columns - 1 : 2] += split[:, :, :, t]
        return back[:, :, self.pad : h - self.pad, self.pad : w - self.pad]

    def _padded(self, a: Tensor) -> Tensor:
        n, c, h, w, b = a.shape
        if not self.pad:
            return self.room("a", a, *a.shape).copy_(a) if self.first else a
        p = self.pad
        new = "a" not in self.memory
        padded = self.room("a", a, n, c, h + 2 * p, w + 2 * p, b)
        if new:
            padded.zero_()
        padded[:, :, p : p + h, p : p + w] = a
        return padded


class _Flatten(_Layer):
    """(n, c, h, w, b) -> (n, b, c h w); examples that are vectors already stay as they are."""

    def __init__(self, module: nn.Module, start: int) -> None:
        super().__init__(module, start)
        self.first = start == 0

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        self.shape = a.shape
        if self.first:
            return a.reshape(*a.shape[:2], -1)
        a = a.reshape(len(a), -1, a.shape[-1]).transpose(1, 2)
        return self.room("out", a, *a.shape).copy_(a)

    def backward(self, g: Tensor, gradient: Tensor, *, needed: bool) -> Tensor:
        if self.first:
            return g.reshape(self.shape)
        return self.room("g", g, *self.shape).copy_(g.transpose(1, 2).reshape(self.shape))


class _Tanh(_Layer):
    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        self.y = torch.tanh_(a)
        return self.y

    def backward(self, g: Tensor, gradient: Tensor, *, needed: bool) -> Tensor:
        out = self.room("g", g, *self.y.shape)
        return torch.ops.aten.tanh_backward.grad_input(g, self.y, grad_input=out)  # type: ignore[no-any-return]


class _ReLU(_Layer):
    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        self.y = torch.relu_(a)
        return self.y

    def backward(self, g: Tensor, gradient: Tensor, *, needed: bool) -> Tensor:
        out = self.room("g", g, *self.y.shape)
        return torch.ops.aten.threshold_backward.grad_input(g, self.y, 0, grad_input=out)  # type: ignore[no-any-return]


_LAYERS: dict[type[nn.Module], Any] = {
    nn.Linear: _Linear,
    nn.Conv2d: _ConvPool,
    nn.Flatten: _Flatten,
    nn.Tanh: _Tanh,
    nn.ReLU: _ReLU,
}


def _plan(modules: list[nn.Module]) -> list[nn.Module] | None:
    """The layers with each pool taken into its convolution, or None if there is a strange one."""
    plan: list[nn.Module] = []
    modules = list(modules)
    flat = False  # whether a Flatten stands before
    while modules:
        module = modules.pop(0)
        if type(module) not in _LAYERS:
            return None
        if isinstance(module, nn.Conv2d):
            if not _simple(module) or flat or (plan and not _has(plan, nn.Conv2d)):
                return None
            # an increasing activation between the two may as well follow them
            after = [modules.pop(0)] if modules and type(modules[0]) in (nn.Tanh, nn.ReLU) else []
            if not modules or not _halves(modules.pop(0)):
                return None
            modules = after + modules
        elif isinstance(module, nn.Flatten):
            if flat or _has(plan, nn.Linear) or (module.start_dim, module.end_dim) != (1, -1):
                return None
            flat = True
        elif isinstance(module, nn.Linear):
            if _has(plan, nn.Conv2d) and not flat:
                return None
        elif not plan or not isinstance(plan[-1], nn.Linear | nn.Conv2d):
            return None  # an activation overwrites its input
        plan.append(module)
    return plan if plan and isinstance(plan[-1], nn.Linear) else None


def _has(plan: list[nn.Module], kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in plan)


def _simple(conv: nn.Conv2d) -> bool:
    square = conv.kernel_size[0] == conv.kernel_size[1]
    return (
        square
        and not isinstance(conv.padding, str)
        and conv.padding[0] == conv.padding[1]
        and conv.padding_mode == "zeros"
        and (*conv.stride, *conv.dilation, conv.groups) == (1, 1, 1, 1, 1)
    )


def _better_in_torch(plan: list[nn.Module]) -> bool:
    """Images in colour run channels-last in torch, where wide convolutions are faster than here;
    to grey ones that layout brings nothing."""
    convolutions = [m for m in plan if isinstance(m, nn.Conv2d)]
    wide = any(m.weight[0].numel() > WIDE for m in convolutions)
    return wide and convolutions[0].in_channels > 1


def _halves(module: nn.Module) -> bool:
    return type(module) is nn.MaxPool2d and (
        module.kernel_size in (2, (2, 2))
        and module.stride in (2, (2, 2))
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not (module.ceil_mode or module.return_indices)
    )


def _hooked(module: nn.Module) -> bool:
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules()
    )
