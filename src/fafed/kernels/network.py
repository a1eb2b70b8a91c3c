"""Small feed-forward networks in C: gradients for several clients in one call (network.c), and all
local steps of a client in one call (fused_steps.c).

In torch a gradient of a network with a few thousand parameters spends most of its time on other
things than arithmetic: operators, graphs, allocation, max-pooling. Here one loop in C on one flat
vector per client computes it. This works for a plain `nn.Sequential` of Conv2d + MaxPool2d(2),
Linear, Tanh, ReLU and Flatten under a cross-entropy. The result is autograd's up to rounding, also
for ties in a pool.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fafed.core.batch import Picked
from fafed.kernels import build
from fafed.kernels.vmap_bridge import addresses, for_all_clients, packed, rows_of

ROOM = 2**21  # numbers in the workspace of a batch; larger batches are computed in pieces
ROOMS = 4  # workspaces of different shapes that a thread keeps
CONVOLUTION, MATRIX = range(2)
LAYERS = 64  # at most, as in network.h
ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: 1, nn.ReLU: 2}


class Step(NamedTuple):
    """A convolution (with the pool that follows it) or a matrix, then an activation or 0."""

    module: nn.Conv2d | nn.Linear
    activation: int


class Layer(ctypes.Structure):
    """`layer` of network.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "activation", "inputs", "outputs")),
        *((name, ctypes.c_int32) for name in ("kernel", "padding", "height", "width")),
        *((name, ctypes.c_int64) for name in ("weights", "biases")),
    )


def recognised(module: nn.Module, loss: Any) -> Network | None:
    """The network, if network.c supports it; else None. Layers, parameters and code must all be
    torch's own, without any change."""
    if loss is not F.cross_entropy or not _from_torch(loss, F) or _hooked_globally():
        return None
    layers = _layers_of(module)
    if not layers or not all(map(_untouched, {module, *layers})):
        return None
    steps = _steps(layers)
    if steps is None or len(steps) > LAYERS or not all(_plain_parameters(s.module) for s in steps):
        return None
    mine = [p for s in steps for p in s.module.parameters()]
    if len({id(p) for p in mine}) < len(mine) or not all(p.requires_grad for p in mine):
        return None
    kinds = {(p.device.type, p.dtype) for p in mine}
    if len(kinds) > 1 or not kinds <= {("cpu", dtype) for dtype in build.DOUBLE}:
        return None
    return Network(steps, flattens=any(isinstance(m, nn.Flatten) for m in layers))


class Network:
    """Gradient and outputs for the vectors of n clients; may be called from any thread."""

    def __init__(self, steps: list[Step], *, flattens: bool) -> None:
        self.steps = steps
        self.flattens = flattens
        self.dtype = steps[0].module.weight.dtype
        self.parameters = sum(p.numel() for s in steps for p in s.module.parameters())
        self._mine = threading.local()
        self._layouts: dict[torch.Size, tuple[Any, int]] = {}

    def takes(self, inputs: Tensor, targets: Tensor) -> bool:
        """Whether network.c supports such a batch: images or vectors, and class numbers."""
        images = isinstance(self.steps[0].module, nn.Conv2d)
        fits = inputs.ndim == 4 if images else self.flattens or inputs.ndim == 2
        classes = targets.ndim == 1 and targets.dtype == torch.int64
        return fits and classes and inputs.dtype == self.dtype

    def gradient(
        self, x: Tensor, inputs: Tensor | Picked, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(d,), (b, ...), (b,) -> gradient (d,) and loss (); under vmap for all clients at once."""
        if isinstance(inputs, Picked):
            of_all = functools.partial(self.stacked, pool=inputs.pool.contiguous())
            g, loss = for_all_clients(of_all, x, inputs.rows, targets)
        else:
            g, loss = for_all_clients(self.stacked, x, inputs, targets)
        return g, loss

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """(d,), (b, ...) -> logits (b, classes)."""
        inputs = inputs.contiguous()
        b = len(inputs)
        work = self._work(inputs.shape[1:], b)
        logits = x.new_empty(b, len(self.steps[-1].module.weight))
        vectors = addresses(x, inputs, logits, work.room)
        work.library.outputs(work.layers, len(work.layers), b, work.piece, *vectors)
        return logits

    def stacked(
        self, x: Tensor, inputs: Tensor, targets: Tensor, pool: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same as `gradient`, with a first dimension that runs over the clients. With a pool,
        inputs are row numbers of the pool."""
        n, b = targets.shape
        x = packed(x)
        inputs, targets = inputs.contiguous(), targets.contiguous()
        rows = 0 if pool is None else inputs.data_ptr()
        work = self._work(inputs.shape[2:] if pool is None else pool.shape[1:], b)
        gradient, losses = x.new_empty(n, self.parameters), x.new_empty(n)
        wrong = work.library.gradients(
            *(work.layers, len(work.layers), n, b, work.piece, self.parameters),
            *(x.data_ptr(), x.stride(0), (inputs if pool is None else pool).data_ptr(), rows),
            *addresses(targets, gradient, losses, work.rest, work.room),
        )
        _refuse(wrong, targets)
        return gradient, losses

    def clipped_sum(
        self, x: Tensor, factors: Tensor, inputs: Tensor, targets: Tensor, clip: float
    ) -> tuple[Tensor, Tensor]:
        """(points, d), (points,), (b, ...), (b,) -> the sum (d,) of the examples' gradients, and
        their norms (b,). An example's gradient is added up over the points with these factors, and
        clipped. It is left out if its norm is not finite."""
        inputs, targets, x = inputs.contiguous(), targets.contiguous(), x.contiguous()
        factors = factors.double().contiguous()
        _, most = self._layout(inputs.shape[1:])
        work = self._work(inputs.shape[1:], most)  # the size of a Poisson batch varies
        total = x.new_zeros(self.parameters)
        norms = x.new_empty(len(targets), dtype=torch.float64)
        wrong = work.library.clipped(
            *(work.layers, len(work.layers), len(targets), work.piece, self.parameters),
            *(inputs[0].numel(), len(x), clip),
            *addresses(x, factors, inputs, targets, total, norms, *work.examples, work.room),
        )
        _refuse(wrong, targets)
        return total, norms

    def takes_steps(self, pool: Tensor, b: int) -> bool:
        """Whether batches of b of these are small enough for `sgd_steps` and `storm_steps`."""
        _, most = self._layout(pool.shape[1:])
        return b <= most

    def sgd_steps(
        self, x: Tensor, correction: Tensor, rates: Tensor, inputs: Picked, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The steps of `Grad.sgd_steps` on batches (q, b) -> x and losses (q,). An empty vector
        means no correction."""

        def of_all(x: Tensor, correction: Tensor, *batches: Tensor) -> tuple[Tensor, ...]:
            steps = _FusedSteps(self, 1, rates, inputs.pool, *batches)
            x, correction = packed(x), packed(correction)
            out = torch.empty(x.shape, dtype=x.dtype)
            steps(steps.library.sgd_steps, *rows_of(x, correction), out.data_ptr())
            return out, steps.losses

        out, losses = for_all_clients(of_all, x, correction, inputs.rows, targets)
        return out, losses

    def storm_steps(
        self,
        point: tuple[Tensor, Tensor, Tensor, Tensor],
        rates: Tensor,
        keeps: Tensor,
        beta: float,
        inverse: Tensor,
        inputs: Picked,
        targets: Tensor,
        *,
        keep_x: bool,
    ) -> tuple[Tensor, ...]:
        """The steps of `Grad.storm_steps` from (x, before, m, v) -> the same, and losses (q,). If
        the inverse of A is empty, A is 1 and v does not change."""

        def of_all(*tensors: Tensor) -> tuple[Tensor, ...]:
            *point, rows, targets = tensors
            steps = _FusedSteps(self, 2, rates, inputs.pool, rows, targets)
            x, before, m, v = map(packed, point)
            out = [torch.empty(t.shape, dtype=t.dtype) for t in (before, m, v)]
            end = torch.empty_like(out[0] if keep_x else out[0][:1]).expand(before.shape)
            if not len(inverse):
                out[-1], v = v, v[:, :0]
            steps(
                steps.library.storm_steps,
                *(keeps.data_ptr(), beta, *addresses(inverse)),
                *rows_of(x, before, m, v, end),
                *addresses(*out),
            )
            return end if keep_x else end[:, :0], *out, steps.losses

        return for_all_clients(of_all, *point, inputs.rows, targets)

    def _layout(self, shape: torch.Size) -> tuple[Any, int]:
        """The layers for such examples, and how many examples fit into a workspace."""
        if shape not in self._layouts:
            layers = list(_layers(self.steps, shape))
            array = (Layer * len(layers))(*layers)
            each = build.library(self.dtype).room(array, len(array), 1)
            self._layouts[shape] = array, max(1, ROOM // each)
        return self._layouts[shape]

    def _work(self, shape: torch.Size, b: int, networks: int = 0) -> _Work:
        """This thread's workspace for batches of this size. `networks`: for local steps with one
        or two networks."""
        works: dict[Any, _Work] = self._mine.__dict__.setdefault("works", {})
        if (shape, b, networks) not in works:
            if len(works) == ROOMS:
                works.pop(next(iter(works)))
            works[shape, b, networks] = _Work(self, shape, b, networks)
        return works[shape, b, networks]


class _Work:
    def __init__(self, network: Network, shape: torch.Size, b: int, networks: int) -> None:
        self.library = build.library(network.dtype)
        self.layers, most = network._layout(shape)
        self.piece = min(b, most)
        numbers = (
            self.library.steps_room(self.layers, len(self.layers), b, networks)
            if networks
            else self.library.room(self.layers, len(self.layers), self.piece)
        )
        self.room = torch.zeros(numbers, dtype=network.dtype)
        self.rest = torch.empty(network.parameters if self.piece < b else 0, dtype=network.dtype)
        self.network = network

    @functools.cached_property
    def examples(self) -> tuple[Tensor, Tensor]:
        """For gradients of single examples: of all parameters, and of a piece's convolutions."""
        convolutions = (s.module for s in self.network.steps if isinstance(s.module, nn.Conv2d))
        small = sum(p.numel() for own in convolutions for p in own.parameters())
        d, dtype = self.network.parameters, self.network.dtype
        return torch.empty(d, dtype=dtype), torch.empty(max(d, small * self.piece), dtype=dtype)


class _FusedSteps:
    """Local steps on batches (clients, q, b), and their losses."""

    def __init__(
        self,
        network: Network,
        networks: int,
        rates: Tensor,
        pool: Tensor,
        rows: Tensor,
        targets: Tensor,
    ) -> None:
        self.network, self.rates = network, rates
        self.pool, self.rows = pool.contiguous(), rows.contiguous()
        self.targets = targets.contiguous()
        self.work = network._work(pool.shape[1:], targets.shape[2], networks)
        self.library = self.work.library
        self.losses = pool.new_empty(targets.shape[:2])

    def __call__(self, function: Any, *arguments: Any) -> None:
        batches = addresses(self.rates, self.pool, self.rows, self.targets)
        wrong = function(
            *(self.work.layers, len(self.work.layers), *self.targets.shape),
            *(self.network.parameters, *batches, *arguments),
            *addresses(self.losses, self.work.room),
        )
        _refuse(wrong, self.targets)


def _refuse(wrong: int, targets: Tensor) -> None:
    if wrong:
        raise IndexError(f"target {int(targets.flatten()[wrong - 1])} is out of bounds")


def _layers(steps: list[Step], shape: torch.Size) -> Iterable[Layer]:
    """The layers with their sizes for an example of this shape."""
    height, width = shape[-2:] if len(shape) == 3 else (0, 0)
    channels = shape[0] if shape else 0
    numbers, start = shape.numel(), 0
    for module, activation in steps:
        end = start + module.weight.numel()
        out, inputs = module.weight.shape[:2]
        place = (start, -1 if module.bias is None else end)
        start = end if module.bias is None else end + out
        if isinstance(module, nn.Linear):
            if inputs != numbers:
                raise ValueError(f"{module} cannot take {numbers} numbers of {tuple(shape)}")
            yield Layer(MATRIX, activation, inputs, out, 0, 0, 0, 0, *place)
            numbers = out
        else:
            kernel, padding = module.kernel_size[0], int(module.padding[0])
            if len(shape) != 3 or inputs != channels or min(height, width) + 2 * padding <= kernel:
                raise ValueError(f"{module} cannot take examples of {tuple(shape)}")
            yield Layer(
                CONVOLUTION, activation, inputs, out, kernel, padding, height, width, *place
            )
            height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
            channels, numbers = out, out * height * width


def _steps(layers: list[nn.Module]) -> list[Step] | None:
    """(convolution, pool)* flatten? matrix+, each with an optional activation; else None."""
    rest: deque[Any] = deque(layers)
    steps: list[Step] = []
    while rest and type(rest[0]) is nn.Conv2d:
        conv = rest.popleft()
        # an increasing activation gives the same result before and after a max-pool
        before = _activation(rest)
        if not _simple(conv) or not rest or not _halves(rest.popleft()):
            return None
        after = _activation(rest)
        if before and after:
            return None
        steps.append(Step(conv, before or after))
    if rest and type(rest[0]) is nn.Flatten:
        flatten = rest.popleft()
        if (flatten.start_dim, flatten.end_dim) != (1, -1):
            return None
    elif steps:
        return None
    if not rest:
        return None
    while rest and type(rest[0]) is nn.Linear:
        linear = rest.popleft()
        steps.append(Step(linear, _activation(rest)))
    return None if rest or not isinstance(steps[-1].module, nn.Linear) else steps


def _activation(rest: deque[nn.Module]) -> int:
    return ACTIVATIONS[type(rest.popleft())] if rest and type(rest[0]) in ACTIVATIONS else 0


def _simple(conv: Any) -> bool:
    square = conv.kernel_size[0] == conv.kernel_size[1]
    return (
        square
        and not isinstance(conv.padding, str)
        and conv.padding[0] == conv.padding[1]
        and conv.padding_mode == "zeros"
        and (*conv.stride, *conv.dilation, conv.groups) == (1, 1, 1, 1, 1)
    )


def _halves(module: nn.Module) -> bool:
    return type(module) is nn.MaxPool2d and (
        module.kernel_size in (2, (2, 2))
        and module.stride in (2, (2, 2))
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not (module.ceil_mode or module.return_indices)
    )


# Whether a module runs torch's own code and no other.

KNOWN = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.Flatten, nn.Tanh, nn.ReLU)
RUNS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__")  # a module
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
NEW = {"__doc__", "__init__", "__module__", "__annotations__"}  # what a subclass may define


def _layers_of(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a Sequential, or the layer itself. A subclass may only add `__init__` and
    names."""
    if type(module) is nn.Linear:
        return [module]
    if not isinstance(module, nn.Sequential):
        return None
    torchs = {*dir(nn.Sequential), *vars(nn.Sequential())}
    for cls in type(module).__mro__[: type(module).__mro__.index(nn.Sequential)]:
        if set(vars(cls)) & torchs - NEW:
            return None
    layers = list(module._modules.values())
    if module._parameters or any(type(layer) not in KNOWN for layer in layers):
        return None
    return layers


def _untouched(module: nn.Module) -> bool:
    """Whether a module has no hooks, no buffers and no replaced methods, and its class has torch's
    own code."""
    cls = type(module)
    if module._buffers or any(getattr(module, hooks) for hooks in HOOKS):
        return False
    if set(vars(module)) & set(dir(cls)):
        return False
    names = (*RUNS, "_conv_forward") if cls is nn.Conv2d else RUNS
    names = (*names, "__iter__") if isinstance(module, nn.Sequential) else names
    return all(_from_torch(getattr(cls, name), nn) for name in names)


def _plain_parameters(layer: nn.Conv2d | nn.Linear) -> bool:
    """Whether a layer has a weight, then a bias or none, of the usual shapes. The C code expects
    this order in the vector."""
    if tuple(layer._parameters) != ("weight", "bias") or layer._modules:
        return False
    if isinstance(layer, nn.Linear):
        shape: tuple[int, ...] = (layer.out_features, layer.in_features)
    else:
        shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)
    own = list(layer.parameters())
    if any(type(p) is not nn.Parameter or p.layout is not torch.strided for p in own):
        return False
    return layer.weight.shape == shape and (layer.bias is None or layer.bias.shape == shape[:1])


def _from_torch(function: Any, home: Any) -> bool:
    """Whether a function was defined in torch.nn. Its name alone proves nothing."""
    name = getattr(function, "__globals__", {}).get("__name__", "")
    return bool(name == home.__name__ or name.startswith("torch.nn.modules."))


def _hooked_globally() -> bool:
    return any(getattr(nn.modules.module, f"_global{hooks}", None) for hooks in HOOKS)
