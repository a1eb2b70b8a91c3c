"""FedKron on the counterexample of Theorem 1."""

from __future__ import annotations

import pytest

from fafed import FedKron
from studies.fedkron.counterexample import START, path


@pytest.mark.parametrize(("kappa", "near"), [(0.0, START / 100), (FedKron().kappa, START / 3)])
@pytest.mark.parametrize("q", [1, 5, 20])
def test_it_does_not_leave_the_optimum(q, kappa, near):
    """Three clients whose gradients differ. A scale of each client's own would lead away. The bound
    is such a scale where it acts: it keeps some distance."""
    points = path(FedKron(kappa=kappa), q)
    assert abs(points[-1]) < near
    assert max(map(abs, points)) < START


def test_steps_that_are_too_long_lead_away():
    points = path(FedKron(reach=0.0), 20)
    assert max(map(abs, points)) > 2 * START
