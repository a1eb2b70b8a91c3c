"""FedKron on the counterexample of Theorem 1."""

from __future__ import annotations

import pytest

from fafed import FedKron
from studies.fedkron.counterexample import START, path


@pytest.mark.parametrize("q", [1, 5, 20])
def test_it_does_not_leave_the_optimum(q):
    """Three clients whose gradients differ. A scale of each client's own would lead away."""
    points = path(FedKron(), q)
    assert abs(points[-1]) < START / 10
    assert max(map(abs, points)) < START


def test_steps_that_are_too_long_lead_away():
    points = path(FedKron(reach=0.0), 20)
    assert max(map(abs, points)) > 2 * START
