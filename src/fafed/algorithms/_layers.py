"""The model's vector as a list of layers: matrices with their biases, and single numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """A part of x: a matrix, or numbers that stand for themselves."""

    numbers: int  # in x
    matrix: bool
    rows: int = 1  # outputs
    columns: int = 0  # inputs
    bias: bool = False  # one more column, which follows the matrix in x
    transposed: bool = False  # x has columns x rows
    kept: int = 0  # how many directions of a matrix its scale tells apart

    @property
    def width(self) -> int:
        return self.columns + self.bias

    @property
    def factor_size(self) -> int:
        """How many numbers the layer's scale is made from."""
        return self.kept * self.width if self.matrix else self.numbers

    def weight_size(self, w: Tensor) -> Tensor:
        """|W|_2 / sqrt(m) of a matrix without its bias. For single numbers: their root mean square.
        Zero weights count as PyTorch's usual initial ones."""
        if not self.matrix:
            size = w.square().mean().sqrt()
            return torch.where(size > 0, size, torch.full_like(size, 0.1))
        size = torch.linalg.matrix_norm(w[:, : self.columns], 2)
        usual = (math.sqrt(self.rows) + math.sqrt(self.columns)) / math.sqrt(3 * self.columns)
        size = torch.where(size > 0, size, torch.full_like(size, usual))
        return size / math.sqrt(self.rows)


def layers(shapes: Sequence[Sequence[int]], rank: int, cap: int) -> tuple[Layer, ...]:
    """The layers of a model whose parameters have these shapes.

    A tensor of two or more dimensions is a matrix: first dimension x all others. It has a bias if
    an odd number of vectors of its output length follow. (Norms have two.) If such vectors have the
    length of the second dimension instead, the matrix is stored transposed, as in GPT-2. A matrix
    keeps up to `rank` directions. This needs the decomposition of a matrix with as many columns as
    it has, or as it has rows and directions. Where both are more than `cap`, and in all other
    tensors, numbers are single.
    """
    found = []
    at = 0
    while at < len(shapes):
        shape, numbers = tuple(shapes[at]), math.prod(shapes[at])
        at += 1
        if len(shape) < 2 or not numbers:
            found.append(Layer(numbers, False))
            continue
        rows, columns, transposed = shape[0], numbers // shape[0], False
        following = _vectors(shapes, at, rows)
        if not following and len(shape) == 2 and _vectors(shapes, at, columns):
            rows, columns, transposed = columns, rows, True
            following = _vectors(shapes, at, rows)
        bias = following % 2 == 1
        kept = min(rank, columns + bias)
        if min(columns + bias, rows + kept) > cap:
            found.append(Layer(numbers, False))
            continue
        found.append(Layer(numbers + bias * rows, True, rows, columns, bias, transposed, kept))
        at += bias
    return tuple(found)


def _vectors(shapes: Sequence[Sequence[int]], at: int, length: int) -> int:
    """How many vectors of this length follow."""
    count = 0
    while at + count < len(shapes) and tuple(shapes[at + count]) == (length,):
        count += 1
    return count


def parts(x: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
    """The layers of x: matrices with the bias as their last column, and vectors."""
    if not layers:
        return []
    split = torch.split(x, [layer.numbers for layer in layers])
    return [
        _matrix(part, layer) if layer.matrix else part
        for part, layer in zip(split, layers, strict=True)
    ]


def _matrix(part: Tensor, layer: Layer) -> Tensor:
    m, n = layer.rows, layer.columns
    weights = part[: m * n]
    W = weights.view(n, m).T if layer.transposed else weights.view(m, n)
    return torch.cat([W, part[m * n :].view(m, 1)], 1) if layer.bias else W


def joined(parts: Sequence[Tensor], layers: Sequence[Layer]) -> Tensor:
    """The inverse of `parts`."""
    flat = []
    for part, layer in zip(parts, layers, strict=True):
        if not layer.matrix:
            flat.append(part)
            continue
        W = part[:, : layer.columns]
        flat.append((W.T if layer.transposed else W).reshape(-1))
        if layer.bias:
            flat.append(part[:, layer.columns])
    return torch.cat(flat)
