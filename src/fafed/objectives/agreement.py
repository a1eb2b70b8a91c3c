"""Compare fast paths with plain torch, on a few examples before a run.

Nobody would notice a fast path that computes something else: its numbers look plausible. So each
one is compared with plain torch, and is not used if they differ. The points are near x0, not x0
itself, where parameters that begin at zero would hide errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch, Picked

if TYPE_CHECKING:
    from fafed.kernels.network import Network
    from fafed.objectives.base import Memory
    from fafed.objectives.module import Model

Values = dict[str, Sequence[Tensor]]  # by name; a gradient has one tensor per parameter
Way = Callable[[Tensor], Values]

TRIES = 3  # points; at one of them rounding can take another branch, for example of a relu
ROWS = 8  # examples
LARGE = 2**20  # bytes: for vectors of at least this size only the simplest steps are compared
SMALL_PART = 0.01  # gradients smaller than this share of the others have the others' rounding


def disagreement(
    fast: Way, plain: Way, x0: Tensor, shapes: Iterable[Sequence[int]], dtype: torch.dtype
) -> str | None:
    """What differs by more than rounding in this type, or None."""
    tolerance, shapes, why = math.sqrt(torch.finfo(dtype).eps), list(shapes), None
    for x in _points(x0, shapes):
        wanted = plain(x)
        sizes = {name: [_norm(part) for part in parts] for name, parts in wanted.items()}
        sizes = {name: own for name, own in sizes.items() if all(map(math.isfinite, own))}
        if not sizes:
            continue
        found = fast(x)
        why = _difference(found, wanted, sizes, tolerance)
        if why is not None:  # measure rounding: change the last digits of x
            again = plain(_nudged(x, 0.01 * tolerance))
            why = _difference(found, wanted, sizes, tolerance, again)
        if why is None:
            return None
    return why


def _points(x0: Tensor, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Points near x0. Every parameter moves by about the size of initial weights."""
    for seed in range(TRIES):
        noise = torch.Generator().manual_seed(seed)
        x, start = x0.detach().clone(), 0
        for shape in shapes:
            end = start + math.prod(shape)
            size = 0.5 / math.sqrt(max(1, math.prod(shape[1:]))) if len(shape) > 1 else 0.1
            moves = torch.randn(end - start, generator=noise, dtype=x.dtype)
            x[start:end] += size * moves.to(x.device)
            start = end
        yield x


def _nudged(x: Tensor, share: float) -> Tensor:
    noise = torch.Generator().manual_seed(TRIES)
    return x + share * x * torch.randn(len(x), generator=noise, dtype=x.dtype).to(x.device)


def _difference(
    found: Values,
    wanted: Values,
    sizes: dict[str, list[float]],
    tolerance: float,
    again: Values | None = None,
) -> str | None:
    for name, own in sizes.items():
        for k, (part, size) in enumerate(zip(wanted[name], own, strict=True)):
            size = max(size, SMALL_PART * max(own))
            allowed = tolerance * size
            if again is not None:
                noise = _norm(again[name][k] - part)
                allowed += 100 * noise if math.isfinite(noise) else 0
            error = _norm(found[name][k] - part)
            if not error <= allowed:
                return f"{name}: off by {error / size if size else error:.2g} of its size"
    return None


def _norm(part: Tensor) -> float:
    """The norm. It is not finite if the part is not."""
    norm = float(torch.linalg.vector_norm(part))
    if 1e-15 < norm < math.inf:
        return norm
    return float(torch.linalg.vector_norm(part, dtype=torch.float64))  # squares overflow in float32


# What is compared.


def _by_autograd(model: Model, x: Tensor, batch: Batch) -> Values:
    """Autograd's values before clipping, which would hide a wrong factor."""
    g, loss, memory = model.by_autograd(x, batch, model.start())
    return values(loss, g, memory, model.sizes)


def values(loss: Tensor, g: Tensor, memory: Memory, sizes: Sequence[int]) -> Values:
    left = [leaf.detach() for leaf in tree.leaves(memory) if leaf.is_floating_point()]
    return {"loss": [loss], "gradient": torch.split(g, list(sizes)), "memory": left}


def of_switch(model: Model, switch: str, batch: Batch) -> str | None:
    """Check a fast path that the model uses while this attribute is true. Leaves it false."""

    def way(on: bool, batch: Batch) -> Way:
        def values_at(x: Tensor) -> Values:
            setattr(model, switch, on)
            try:
                return _by_autograd(model, x, batch)
            finally:
                setattr(model, switch, False)

        return values_at

    def compared(batch: Batch) -> str | None:
        fast, plain = way(True, batch), way(False, batch)
        return disagreement(fast, plain, model.x0, model.shapes, model.precision)

    rows = ROWS if model.x0.nbytes < LARGE else 2
    try:
        return compared(batch._replace(data=tuple(part[:rows] for part in batch.data)))
    except Exception:  # a model that requires a certain batch size
        return compared(batch)


def of_network(model: Model, network: Network, batch: Batch) -> str | None:
    """Check the network in C: its outputs on the batch, and its outputs and gradients on random
    inputs, where gradients do not vanish."""
    given, _ = batch.data
    inputs, targets = _made_up(network, given)
    made_up = batch._replace(data=(inputs, targets))
    real = batch._replace(data=(given[:ROWS], targets))

    def plain(x: Tensor) -> Values:
        with torch.no_grad():
            outputs = [model._outputs(x, b, model.start())[0] for b in (real, made_up)]
        found = _by_autograd(model, x, made_up)
        return _named(outputs, found["loss"], found["gradient"])

    def fast(x: Tensor) -> Values:
        outputs = [network.outputs(x, b.data[0]) for b in (real, made_up)]
        g, loss = network.gradient(x, inputs, targets)
        return _named(outputs, [loss], torch.split(g, list(model.sizes)))

    return disagreement(fast, plain, model.x0, model.shapes, model.precision)


def _named(outputs: list[Tensor], loss: Sequence[Tensor], g: Sequence[Tensor]) -> Values:
    return {"outputs": outputs[:1], "made-up": outputs[1:], "loss": loss, "gradient": g}


def _made_up(network: Network, like: Tensor) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(TRIES + 1)
    classes = len(network.steps[-1].module.weight)
    inputs = torch.randn(ROWS, *like.shape[1:], generator=noise, dtype=like.dtype)
    return inputs, torch.randint(classes, (ROWS,), generator=noise)


def of_steps(model: Model, network: Network, batch: Batch) -> str | None:
    """Check the steps of kernels/fused_steps.c against the same gradients one at a time."""
    pool, labels = _made_up(network, batch.data[0])
    rows, targets = torch.arange(4).view(2, 2), labels[:4].view(2, 2)
    data: Any = Picked(rows, pool), targets
    rates, keeps, beta = [0.1, 0.2], [0.7, 0.6], 0.9
    numbers = torch.tensor([rates, keeps], dtype=torch.float64)
    large = model.x0.nbytes >= LARGE  # the rest would take more memory than the run itself

    def parts(*vectors: Tensor) -> list[Tensor]:
        return [part for vector in vectors for part in torch.split(vector, list(model.sizes))]

    def gradient(x: Tensor, k: int) -> Tensor:
        return network.gradient(x, Picked(rows[k], pool), targets[k])[0]

    def moved(x: Tensor) -> Values:
        end, _ = network.sgd_steps(x, x[:0], numbers[0], *data)
        return {"steps": parts(end.sub_(x))}

    def plainly_moved(x: Tensor) -> Values:
        end = x.clone()
        for k, rate in enumerate(rates):
            end.sub_(gradient(end, k), alpha=rate)
        return {"steps": parts(end.sub_(x))}

    def corrected(x: Tensor) -> Values:
        end, _ = network.sgd_steps(x, 0.3 * x, numbers[0], *data)
        return {"corrected steps": parts(end - x)}

    def plainly_corrected(x: Tensor) -> Values:
        end = x
        for k, rate in enumerate(rates):
            end = end - rate * (gradient(end, k) + 0.3 * x)
        return {"corrected steps": parts(end - x)}

    def tracked(x: Tensor) -> Values:
        found: Values = {}
        zero = torch.zeros_like(x)
        for name, inverse in (("adaptive steps", 1 + x**2), ("estimated steps", x[:0])):
            point = (x, 0.9 * x, zero, zero)
            end, before, m, v, _ = network.storm_steps(
                point, numbers[0], numbers[1], beta, inverse, *data, keep_x=True
            )
            found[name] = parts(end - x, before - x, m, v)
        return found

    def plainly_tracked(x: Tensor) -> Values:
        found: Values = {}
        for name, inverse in (("adaptive steps", 1 + x**2), ("estimated steps", None)):
            now, before, m, v = x, 0.9 * x, torch.zeros_like(x), torch.zeros_like(x)
            for k, (rate, keep) in enumerate(zip(rates, keeps, strict=True)):
                g = gradient(now, k)
                m = g + keep * (m - gradient(before, k))
                v = v if inverse is None else beta * v + (1 - beta) * g**2
                before, now = now, now - rate * (m if inverse is None else m * inverse)
            found[name] = parts(now - x, before - x, m, v)
        return found

    def fast(x: Tensor) -> Values:
        return moved(x) if large else moved(x) | corrected(x) | tracked(x)

    def plain(x: Tensor) -> Values:
        if large:
            return plainly_moved(x)
        return plainly_moved(x) | plainly_corrected(x) | plainly_tracked(x)

    return disagreement(fast, plain, model.x0, model.shapes, model.precision)
