import math

import pytest
import torch
from torch.nn import functional as F

from fafed.models import token_cross_entropy
from fafed.models.vocabulary import WORDS, decoded_cross_entropy


def layer(words, dtype=torch.float64, size=1.0):
    torch.manual_seed(words)
    parts = torch.randn(3, 4, 5), torch.randn(words, 5) * size, torch.randn(words)
    return [part.to(dtype).requires_grad_() for part in parts], torch.randint(words, (3, 4))


def both(inputs, targets):
    yield decoded_cross_entropy(*inputs, targets)
    yield token_cross_entropy(F.linear(*inputs), targets)


def test_token_cross_entropy():
    assert torch.isclose(
        token_cross_entropy(torch.zeros(2, 3, 7), torch.zeros(2, 3, dtype=torch.int64)),
        torch.tensor(math.log(7)),
    )


@pytest.mark.parametrize("words", [7, WORDS, WORDS + 1, 3 * WORDS - 5])
def test_equals_the_loss_of_all_logits(words):
    inputs, targets = layer(words)
    ours, theirs = both(inputs, targets)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    for a, b in zip(*(torch.autograd.grad(3 * f, inputs) for f in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


def test_words_that_are_beyond_hope_overflow_nothing():
    inputs, targets = layer(2 * WORDS + 9, torch.float32, size=1e3)
    ours, theirs = both(inputs, targets)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(*(torch.autograd.grad(f, inputs) for f in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b)


def test_half_precision_sums_are_left_to_torch():
    inputs, targets = layer(2 * WORDS, torch.bfloat16)
    ours, theirs = both(inputs, targets)
    assert torch.equal(ours, theirs)
