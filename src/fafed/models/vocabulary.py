"""The last layer of a language model and its loss, a part of the vocabulary at a time.

There are as many logits as tokens times words: 93 MB for a batch of WikiText-2. Here each part of
them is turned into exponentials while it is in the cache, and nothing of that size is written
twice; a gradient of the small language model takes two thirds of the time, and less memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

WORDS = 512  # in a part: some 1.4 MB of logits for a batch of 700 tokens


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens: logits (b, t, vocabulary), targets (b, t)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def decoded_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """token_cross_entropy(linear(hidden, weight, bias), targets)."""
    if weight.dtype not in (torch.float32, torch.float64):  # sums would lose too much
        return token_cross_entropy(F.linear(hidden, weight, bias), targets)
    loss: Tensor = _Decoded.apply(hidden.flatten(0, 1), weight, bias, targets.flatten())  # type: ignore[no-untyped-call]
    return loss


class _Decoded(torch.autograd.Function):
    """With P the exponentials of a part less its largest logit m, and s their sums, a token's
    probabilities are P exp(m) / sum over parts of s exp(m)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        parts, largest, sums = [], [], []
        for w, b in zip(torch.split(weight, WORDS), torch.split(bias, WORDS), strict=True):
            logits = torch.addmm(b, hidden, w.t())
            m = logits.amax(1)
            parts.append(logits.sub_(m[:, None]).exp_())
            largest.append(m)
            sums.append(parts[-1].sum(1))
        m, s = torch.stack(largest), torch.stack(sums)
        top = m.amax(0)
        scale = (m - top).exp_()
        total = (s * scale).sum(0)
        right = (hidden * weight[targets]).sum(1) + bias[targets]
        ctx.parts, ctx.scale = parts, scale / total
        ctx.save_for_backward(hidden, weight, targets)
        return (top + total.log() - right).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, weight, targets = ctx.saved_tensors
        slope = slope / len(targets)
        of_hidden = weight[targets] * -slope
        of_weight = torch.empty_like(weight)
        of_bias = weight.new_empty(len(weight))
        rows = (torch.split(of_words, WORDS) for of_words in (weight, of_weight, of_bias))
        for p, scale, w, to_w, to_b in zip(ctx.parts, ctx.scale * slope, *rows, strict=True):
            torch.mm(p.t(), hidden * scale[:, None], out=to_w)
            torch.mv(p.t(), scale, out=to_b)
            of_hidden.addcmul_(p @ w, scale[:, None])
        of_weight.index_add_(0, targets, hidden * -slope)
        of_bias.index_add_(0, targets, -slope.expand(len(targets)))
        return of_hidden, of_weight, of_bias, None
