"""Codes: what arrives is what they promise, in the bytes that they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fafed.core import randomness
from fafed.core.codes import BLOCK, BFloat16, Exact, Int8, Powers, Signs, TopK, largest

CODES = [Exact(), BFloat16(), Int8(0.1), Powers(), Signs(), TopK(0.1), TopK(0.1, exact=True)]


def keys(n, seed=0):
    return randomness.tensor(randomness.keys("test", seed, np.arange(n)))


def rows(n, size, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=(n, size)))


def sent(code, x, seed=0):
    """What arrives, after a check that what is sent has the promised sizes and types."""
    parts = code.encode(x, keys(len(x), seed))
    promised = code.parts(x.shape[1], x.dtype)
    assert {name: (part.shape[1], part.dtype) for name, part in parts.items()} == promised
    sizes = [part[0].numel() * part.element_size() for part in parts.values()]
    assert sum(sizes) == code.nbytes(x.shape[1], x.dtype)
    return code.decode(parts, x.shape[1], x.dtype)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("size", [1, 9, 300])
def test_a_row_does_not_depend_on_the_other_rows(code, size):
    x = rows(3, size).abs() if isinstance(code, Powers) else rows(3, size)
    together = sent(code, x)
    assert together.dtype == x.dtype
    for i in range(3):
        alone = code.decode(code.encode(x[i : i + 1], keys(3)[i : i + 1]), size, x.dtype)
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("code", [BFloat16(), Powers(), TopK(0.2), TopK(0.2, exact=True)])
def test_what_has_arrived_arrives_again_unchanged(code):
    x = sent(code, rows(2, 50).abs())
    assert torch.equal(sent(code, x), x)


def test_exact_signs_and_exact_topk_lose_nothing_of_such_numbers():
    x = torch.where(rows(2, 20) > 0, 0.3, -0.3)
    assert torch.equal(sent(Signs(), x), x)
    few = torch.where(largest(rows(2, 20), 2), rows(2, 20), 0.0)
    assert torch.equal(sent(TopK(0.1, exact=True), few), few)
    assert torch.equal(sent(Exact(), x), x)


def test_int8_is_right_on_average_and_within_one_scale():
    x = rows(1, 2000).clamp(-3, 3)
    code = Int8(0.05)
    found = torch.stack([sent(code, x, seed) for seed in range(64)])
    assert (found - x).abs().max() <= 0.05
    assert (found.mean(0) - x).mean().abs() < 5e-4
    assert (found.mean(0) - x).abs().max() < 0.05 * 5 / 8  # five standard errors of 64 draws


def test_int8_is_cut_at_127_scales():
    x = torch.tensor([[1e9, -1e9, 12.7, -12.7]], dtype=torch.float64)
    assert sent(Int8(0.1), x)[0].tolist() == pytest.approx([12.7, -12.7, 12.7, -12.7])


def test_int8_does_not_depend_on_how_a_long_row_is_cut(monkeypatch):
    x = rows(3, 1000)
    whole = sent(Int8(0.03), x)
    monkeypatch.setattr("fafed.core.codes.STRETCH", 90)
    assert torch.equal(sent(Int8(0.03), x), whole)


def test_topk_keeps_the_largest_and_of_equal_ones_the_first():
    x = torch.tensor([[1.0, -2.0, 2.0, 0.0, 2.0, 1.0]])
    assert sent(TopK(0.5), x)[0].tolist() == [0, -2, 2, 0, 2, 0]
    assert sent(TopK(0.34), x)[0].tolist() == [0, -2, 2, 0, 0, 0]
    assert sent(TopK(1e-9), torch.zeros(1, 4))[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [100, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("share", [0.0003, 0.01, 0.3])
def test_places_in_every_block(size, share):
    code, x = TopK(share, exact=True), rows(2, size)
    found = sent(code, x)
    assert torch.equal(found != 0, largest(x, code.count(size)))
    assert torch.equal(found[found != 0], x[found != 0])


def test_bytes_of_topk():
    size = 106_474  # two blocks
    assert TopK(0.01).nbytes(size, torch.float32) == 1065 * (2 + 2) + 2 * 4
    assert TopK(0.25).nbytes(size, torch.float32) == 26618 * 2 + -(-size // 8)  # a bit per place
    assert TopK(0.01).nbytes(1000, torch.float32) == 10 * (2 + 2)


def spoilt(code, x, **changes):
    parts = code.encode(x, keys(1))
    for name, change in changes.items():
        parts[name] = change(parts[name])
    return code.decode(parts, x.shape[1], x.dtype)


@pytest.mark.parametrize(
    ("share", "size", "changes"),
    [
        (0.01, 1000, {"places": lambda p: p.flip(1)}),
        (0.01, 1000, {"places": lambda p: p * 0 + 32767}),
        (0.01, 1000, {"places": lambda p: p[:, :1].expand_as(p)}),
        (0.01, 2 * BLOCK, {"counts": lambda c: c + 1}),
        (0.01, 2 * BLOCK, {"counts": lambda c: torch.stack([-c[:, 0], c.sum(1) + c[:, 0]], 1)}),
        (0.01, BLOCK + 9, {"counts": lambda c: torch.stack([c[:, 1], c[:, 0]], 1)}),
        (0.5, 99, {"mask": lambda m: m * 0}),
        (0.5, 99, {"mask": lambda m: m | 255}),
    ],
)
def test_places_that_nobody_can_have_sent_are_refused(share, size, changes):
    with pytest.raises(ValueError, match=r"it marks|its blocks|its places"):
        spoilt(TopK(share), rows(1, size), **changes)
