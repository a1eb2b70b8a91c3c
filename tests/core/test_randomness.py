"""Dropout masks are the same function of (key, position) for every size and under vmap."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fafed.core import randomness
from fafed.core.randomness import _BLOCK, _KEPT, _mix, keep_mask


def written_out(key, size, p):
    """In NumPy's unsigned numbers, one array at a time."""
    z = _mix(np.uint64(key % 2**64) ^ _mix(np.arange(size)))
    return torch.from_numpy(z >> np.uint64(33) >= np.uint64(int(p * 2**31)))


@pytest.mark.parametrize("size", [0, 1, 7, _BLOCK, _BLOCK + 1, 3 * _BLOCK + 5])
@pytest.mark.parametrize("key", [0, -1, 2**63 - 1, -(2**63), 123456789])
def test_masks_are_those_of_the_definition(key, size):
    for p in (0.1, 0.5, 0.999):
        found = keep_mask(torch.tensor(key), torch.Size([size]), p)
        assert torch.equal(found, written_out(key, size, p))


def test_masks_larger_than_what_is_kept(monkeypatch):
    monkeypatch.setattr(randomness, "_KEPT", 2 * _BLOCK)
    size = 4 * _BLOCK + 3
    assert size < _KEPT
    found = keep_mask(torch.tensor(5), torch.Size([size]), 0.3)
    assert torch.equal(found, written_out(5, size, 0.3))


def test_masks_of_several_clients_at_once():
    keys = torch.tensor([3, -4, 5])
    for shape in (torch.Size([5, 7]), torch.Size([2, _BLOCK])):
        at_once = torch.func.vmap(lambda key, shape=shape: keep_mask(key, shape, 0.3))(keys)
        assert torch.equal(at_once, torch.stack([keep_mask(key, shape, 0.3) for key in keys]))
