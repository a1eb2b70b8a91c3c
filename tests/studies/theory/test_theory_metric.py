"""What holds in every step of a run: the bound, the mean recursion, consensus, the tracker."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fafed import FAFED
from studies.theory import metric
from studies.theory.drift import MeanPrevious
from studies.theory.lab import Lab
from studies.theory.metric import trace
from studies.theory.problems import Robust

ETA, ALPHA, Q, T = 0.05, 0.1, 4, 48


@pytest.fixture(scope="module", params=[1.0, 0.01])
def found(request):
    return trace(FAFED(ETA, ALPHA, rho=request.param), Robust(size=1.0), Q, T, 2)


def test_the_measure_bounds_the_gradient_at_every_record(found):
    assert found.ratio.shape == (T + 1, 2)
    assert (found.ratio <= 1).all()
    assert found.ratio.max() > 0


def test_the_mean_moves_along_the_scaled_mean_tracker(found):
    assert found.miss.max() < 1e-12


def test_clients_agree_at_the_first_step_of_a_round_only(found):
    t = np.arange(T + 1)
    assert found.consensus[(t % Q == 1) | (t == 0)].max() == pytest.approx(0, abs=1e-24)
    assert found.consensus[(t % Q != 1) & (t > 0)].min() > 0


def test_the_matrix_stays_the_same_between_exchanges(found):
    for entries in (found.smallest, found.largest):
        inside = entries[1 : 1 + T].reshape(-1, Q, 2)
        np.testing.assert_array_equal(inside[:, 1 : Q - 1], inside[:, : Q - 2])
        np.testing.assert_array_equal(inside[1:, 0], inside[:-1, Q - 1])  # the q-th uses the new A
    assert (found.smallest[0] == 1).all()  # the first step has no A


def test_the_trace_is_the_run():
    p, algorithm = Robust(size=1.0), FAFED(ETA, ALPHA, rho=0.1)
    lab = Lab(algorithm, p, q=Q, seeds=(0, 1))
    points = torch.cat([lab.round().points for _ in range(T // Q)])
    norms = p.full(points).norm(dim=-1).numpy()
    np.testing.assert_allclose(trace(algorithm, p, Q, T, 2).gradient[1:], norms, rtol=0, atol=1e-12)


def test_the_tracker_is_exact_without_noise():
    p = Robust(size=1.0, noise=0.0)
    assert trace(FAFED(ETA, ALPHA), p, Q, T, 1).tracker.max() < 1e-13
    wrong = trace(MeanPrevious(ETA, ALPHA, adaptivity="identity"), p, Q, T, 1)
    assert wrong.tracker.max() > 1e-3


def test_finding_and_figure(tmp_path):
    from studies.theory import publish

    finding = metric.measure(quick=True, seeds=2)
    assert finding.claims[0].verdict == "holds"
    assert [c.verdict for c in finding.claims[2:]] == ["does not hold", "holds"]
    assert (publish.write(metric, finding, tmp_path)[0]).name == "metric.json"
    assert finding.json() == metric.measure(quick=True, seeds=2).json()
