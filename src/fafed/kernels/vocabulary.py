"""The last layer of a language model and its loss, for one part of the vocabulary at a time.

The number of logits is tokens times words: 93 MB for a batch of WikiText-2. Here each part of the
logits becomes exponentials while it is in the cache, and nothing of that size is written twice. C
code does this where there is a compiler (kernels/vocabulary.c).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fafed.kernels import build
from fafed.kernels.vmap_bridge import addresses

WORDS = 512  # in one part: about 1.4 MB of logits for a batch of 700 tokens
IGNORED = -100  # as a target; torch's default


def token_cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int = IGNORED) -> Tensor:
    """The mean over all tokens that are not ignored: logits (b, t, vocabulary), targets (b, t)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignore_index)


def decoded_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """token_cross_entropy(linear(hidden, weight, bias), targets)."""
    if weight.dtype not in build.DOUBLE:  # half precision: sums would lose too much
        return token_cross_entropy(F.linear(hidden, weight, bias), targets)
    return _Decoded.apply(hidden.flatten(0, 1), weight, bias, targets.flatten())  # type: ignore[no-any-return, no-untyped-call]


class _InTorch:
    """For every part of the vocabulary and every token: the largest logit (`tops`), the
    exponentials of the logits minus it, and their sum (`sums`). Both are (parts, tokens)."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        self.exponentials, tops, sums = [], [], []
        for w, b in zip(torch.split(weight, WORDS), torch.split(bias, WORDS), strict=True):
            logits = torch.addmm(b, hidden, w.t())
            tops.append(logits.amax(1))
            self.exponentials.append(logits.sub_(tops[-1][:, None]).exp_())
            sums.append(logits.sum(1))
        self.tops, self.sums = torch.stack(tops), torch.stack(sums)

    def back(self, hidden: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, ...]:
        """Gradients of hidden, weight and bias. The gradient of a logit is scale times
        exponential."""
        of_hidden, of_weight = torch.zeros_like(hidden), torch.empty_like(weight)
        of_bias = weight.new_empty(len(weight))
        parts = (torch.split(of_words, WORDS) for of_words in (weight, of_weight, of_bias))
        for p, scale, w, to_w, to_b in zip(self.exponentials, scales, *parts, strict=True):
            torch.mm(p.t(), hidden * scale[:, None], out=to_w)
            torch.mv(p.t(), scale, out=to_b)
            of_hidden.addcmul_(p @ w, scale[:, None])
        return of_hidden, of_weight, of_bias


class _InC:
    """The same as `_InTorch`, in C."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        self.library = build.library(weight.dtype)
        n, k = hidden.shape
        self.size = n, k, len(weight), WORDS
        wide = self.library.panels(n)
        self.exponentials = weight.new_empty(len(weight), wide)
        self.tops, self.sums = weight.new_empty(2, -(-len(weight) // WORDS), n)
        given = hidden.contiguous(), weight.contiguous(), bias.contiguous()
        made = self.exponentials, self.tops, self.sums, weight.new_empty(wide * k)
        self.library.decode(*self.size, *addresses(*given, *made))

    def back(self, hidden: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, ...]:
        n, k, v, _ = self.size
        of = weight.new_empty(n, k), weight.new_empty(v, k), weight.new_empty(v)
        room = weight.new_empty(self.library.panels(k) * (2 * n + WORDS))
        given = hidden.contiguous(), weight.contiguous(), self.exponentials, scales.contiguous()
        self.library.decode_back(*self.size, *addresses(*given, *of, room))
        return of


class _Decoded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        fast = weight.device.type == "cpu" and build.available(weight.dtype)
        logits = (_InC if fast else _InTorch)(hidden, weight, bias)
        top = logits.tops.amax(0)
        scales = (logits.tops - top).exp_()
        total = (logits.sums * scales).sum(0)
        kept = targets != IGNORED
        targets = targets.where(kept, 0)
        share = kept / kept.sum().to(weight.dtype)  # the weight of a token in the mean
        right = (hidden * weight.index_select(0, targets)).sum(1) + bias.index_select(0, targets)
        ctx.logits = logits
        ctx.save_for_backward(hidden, weight, targets, scales / total, share)
        return (share * (top + total.log() - right)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, scales, share = ctx.saved_tensors
        share = slope * share
        of_hidden, of_weight, of_bias = ctx.logits.back(hidden, weight, scales * share)
        of_hidden -= share[:, None] * weight.index_select(0, targets)
        of_weight.index_add_(0, targets, share[:, None] * hidden, alpha=-1)
        of_bias.index_add_(0, targets, share, alpha=-1)
        return of_hidden, of_weight, of_bias, None
