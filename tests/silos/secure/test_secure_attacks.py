"""Attacks of a server on the silos' rows under secure aggregation, where no limit protects them.

The server sees a sum over three silos. Its attacks are those of tests/silos/test_limits.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from secure_federation import federation
from silo_tools import run
from small import experiment

from fafed.experiments.config import Experiment
from fafed.silos.secure.engine import SecureSilos

THREE = ("a", "b", "c")
ROWS, INPUTS, CLASSES, ROUNDS = 60, 12, 10, 6


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """A function that makes a run and returns what the server sees in each round, with all rows.
    The server's step is tiny, so all rounds begin at zero."""
    (tmp_path / "data").mkdir()
    r = np.random.default_rng(0)
    x = r.normal(size=(3, ROWS, INPUTS)).astype(np.float32)
    y = r.integers(0, CLASSES, (3, ROWS))
    for i in range(3):
        np.savez(tmp_path / "data" / f"client-{i}.npz", inputs=x[i], targets=y[i])
    np.savez(tmp_path / "data" / "test.npz", inputs=x[0], targets=y[0])
    seen = []
    deliver = SecureSilos.deliver

    def watched(engine, *arguments):
        reply = deliver(engine, *arguments)
        seen.append(reply.mean.delta.double().numpy())
        return reply

    monkeypatch.setattr(SecureSilos, "deliver", watched)

    def made(**changes):
        settings = {
            "rounds": ROUNDS,
            "local_steps": 1,
            "model": {"name": "softmax", "inputs": INPUTS, "outputs": CLASSES},
            "algorithm": {"name": "fedavg", "eta": 1.0, "eta_g": 1e-12},
            "engine": "loop",
            "privacy": {"secure": True},
        }
        found = Experiment.from_dict(experiment(tmp_path / "data", **(settings | changes)))
        run(found, tmp_path, federation(tmp_path, THREE))
        weights = [3 * one[: CLASSES * INPUTS].reshape(CLASSES, INPUTS) for one in seen]
        biases = [3 * one[CLASSES * INPUTS :] for one in seen]
        return list(zip(weights, biases, strict=True)), x, y

    return made


def test_single_rows_are_read_from_their_sum(sums):
    """One example of each silo. The biases count the classes. A class that nobody has shows what
    all rows add to every class, and a class with one row then shows this row. It does not show
    whose it is."""
    seen, x, _ = sums(batch_size=1)
    known = set()
    for weights, bias in seen:
        counts = np.round(bias + 3 / CLASSES).astype(int)
        assert counts.sum() == 3
        shared = weights[counts == 0][0]
        for guess in weights[counts == 1] - shared:
            hit = (abs(x - guess) < 1e-3 * (1 + abs(x))).all(2)
            known |= {tuple(place) for place in np.argwhere(hit)}
    assert len(known) > ROUNDS  # of 3 in a round


def test_labels_are_counted_over_all_silos_and_for_none(sums):
    seen, _, y = sums(batch_size="full", rounds=1)
    counts = np.round(ROWS * (seen[0][1] + 3 / CLASSES)).astype(int)
    each = [np.bincount(own, minlength=CLASSES) for own in y]
    assert (counts == sum(each)).all()
    assert not any((counts == own).all() for own in each)
