"""Updates in one pass are the formulas, alone and for several clients at once."""

from __future__ import annotations

import pytest
import torch

from fafed.core.vectors import step
from fafed.kernels import vectors
from fafed.kernels.vectors import LARGE, ema_of_squares, storm_estimate

PAST_A_BLOCK = 16384 + 3


@pytest.fixture(params=["small", "large", "no compiler"])
def d(request, monkeypatch):
    if request.param == "no compiler":
        monkeypatch.setattr(vectors, "_compiled", lambda dtype: None)
    return 5 if request.param == "small" else max(LARGE, PAST_A_BLOCK)


EXACTLY = {"rtol": 1e-14, "atol": 1e-14}


def made(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[-1])).double()


@pytest.mark.parametrize("rate", [0.3, torch.tensor(0.3, dtype=torch.float64)])
def test_alone(d, rate):
    g, m, old = made(3, d)
    torch.testing.assert_close(step(g, rate, m), g - rate * m, **EXACTLY)
    torch.testing.assert_close(storm_estimate(g, rate, m, old), g + rate * (m - old), **EXACTLY)
    torch.testing.assert_close(ema_of_squares(m, 0.3, g), 0.3 * m + 0.7 * g**2, **EXACTLY)


@pytest.mark.parametrize("rate", [0.3, made(4, 1, 1)])
def test_blocks_of_vectors(d, rate):
    """The theory study hands algorithms blocks: the C functions must not take them for vectors."""
    g, m, old = made(3, 4, 3, d)
    torch.testing.assert_close(storm_estimate(g, rate, m, old), g + rate * (m - old), **EXACTLY)
    torch.testing.assert_close(ema_of_squares(m, 0.3, g), 0.3 * m + 0.7 * g**2, **EXACTLY)


@pytest.mark.parametrize("shared", [(), ("m",), ("old", "keep"), ("g",), ("m", "v", "keep")])
def test_side_by_side(d, shared):
    """Some vectors are the same for all clients."""
    given = dict(zip(["g", "m", "old", "v"], made(4, 3, d), strict=True)) | {"keep": made(3)}
    given |= {name: given[name][0] for name in shared}
    dims = {name: None if name in shared else 0 for name in given}

    def both(a):
        return storm_estimate(a["g"], a["keep"], a["m"], a["old"]), ema_of_squares(
            a["v"], 0.3, a["g"]
        )

    for i, found in enumerate(zip(*torch.func.vmap(both, in_dims=(dims,))(given), strict=True)):
        a = {name: t if name in shared else t[i] for name, t in given.items()}
        torch.testing.assert_close(found[0], a["g"] + a["keep"] * (a["m"] - a["old"]), **EXACTLY)
        torch.testing.assert_close(found[1], 0.3 * a["v"] + 0.7 * a["g"] ** 2, **EXACTLY)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("turned", [False, True])
def test_sums(d, dtype, turned):
    stacked = (10 * made(d, 4).T if turned else 10 * made(4, d)).to(dtype)
    weights, total = torch.rand(4), made(d)
    want = total + sum(
        w * x.double() for w, x in zip(weights.double().unbind(), stacked, strict=True)
    )
    vectors.add(total, weights, stacked)
    torch.testing.assert_close(total, want, rtol=1e-12, atol=1e-12)


def test_neither_layout_nor_type_matters(d):
    g, m, old = made(d, 3).T
    torch.testing.assert_close(storm_estimate(g, 0.5, m, old), g + 0.5 * (m - old))
    single = storm_estimate(g.float(), torch.tensor(0.5).double(), m.float(), old.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), g + 0.5 * (m - old), rtol=1e-5, atol=1e-6)
