import math

import pytest
import torch
from torch.nn import functional as F

from fafed.kernels import build
from fafed.kernels.vocabulary import IGNORED, WORDS, decoded_cross_entropy
from fafed.models import token_cross_entropy


def layer(words, dtype=torch.float64, size=1.0, tokens=9, k=37):
    torch.manual_seed(words)
    parts = torch.randn(5, tokens, k), torch.randn(words, k) * size, torch.randn(words)
    return [part.to(dtype).requires_grad_() for part in parts], torch.randint(words, (5, tokens))


@pytest.fixture(params=["C", "torch"], autouse=True)
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(build, "available", lambda dtype: False)


def both(inputs, targets):
    yield decoded_cross_entropy(*inputs, targets)
    yield token_cross_entropy(F.linear(*inputs), targets)


def test_token_cross_entropy():
    assert torch.isclose(
        token_cross_entropy(torch.zeros(2, 3, 7), torch.zeros(2, 3, dtype=torch.int64)),
        torch.tensor(math.log(7)),
    )


def check(inputs, targets, **tolerance):
    ours, theirs = both(inputs, targets)
    torch.testing.assert_close(ours, theirs, **tolerance)
    for a, b in zip(*(torch.autograd.grad(3 * f, inputs) for f in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


EXACTLY = {"rtol": 1e-12, "atol": 1e-14}


@pytest.mark.parametrize("words", [7, WORDS, WORDS + 1, 3 * WORDS - 5])
def test_equals_the_loss_of_all_logits(words):
    check(*layer(words), **EXACTLY)


@pytest.mark.parametrize("tokens", [1, 3, 13, 16])
@pytest.mark.parametrize("k", [1, 8, 9, 16, 17, 64])
def test_whatever_the_shape(tokens, k):
    check(*layer(WORDS + 40, tokens=tokens, k=k), **EXACTLY)


def test_in_single_precision():
    check(*layer(WORDS + 40, torch.float32), rtol=1e-5, atol=1e-6)


def test_ignored_tokens():
    inputs, targets = layer(WORDS + 40)
    targets[1, 2] = targets[3] = IGNORED
    check(inputs, targets, **EXACTLY)


@pytest.mark.parametrize("target", [-1, WORDS + 40])
def test_a_target_that_is_no_word(target):
    inputs, targets = layer(WORDS + 40)
    targets[1, 2] = target
    with pytest.raises(IndexError, match="out of"):
        decoded_cross_entropy(*inputs, targets)


def test_a_vector_that_is_not_a_number_is_not_hidden():
    inputs, targets = layer(WORDS + 40)
    inputs[1].data[3, 1] = math.nan
    assert decoded_cross_entropy(*inputs, targets).isnan()


def test_words_that_are_beyond_hope_overflow_nothing():
    check(*layer(2 * WORDS + 9, torch.float32, size=1e3), rtol=1e-4, atol=1e-4)


def test_half_precision_sums_are_left_to_torch():
    inputs, targets = layer(2 * WORDS, torch.bfloat16)
    ours, theirs = both(inputs, targets)
    assert torch.equal(ours, theirs)
