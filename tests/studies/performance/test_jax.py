"""The contenders that use JAX, in their own environment."""

from __future__ import annotations

import dataclasses

import pytest

from studies.performance import contenders, contest, jobs

MLP = jobs.Job("tiny", "", "mlp", "made-up examples 60 8", 4, 3, 4, options={"inputs": 8})
SOFTMAX = dataclasses.replace(MLP, model="softmax")
CNN = dataclasses.replace(jobs.JOBS["J2"], steps=2, clients=2)
COLOUR = dataclasses.replace(CNN, model="cifar-cnn", dataset="made-up pictures 80 32")


@pytest.mark.hosted  # pip makes the environment, XLA compiles each model three times
@pytest.mark.parametrize("job", [MLP, SOFTMAX, CNN, COLOUR], ids=lambda job: job.model)
def test_jax_ends_where_the_plain_loop_ends(job):
    cells = contest.compete(job, contenders.chosen("jax"), rounds=2, repeat=1, budget=60)
    assert set(cells) == {"ours", "plain-1", "jax-vmap", "jax-map", "fedjax"}
    assert not [cell for cell in cells.values() if "left_out" in cell]
    assert {name: cell["equal"] for name, cell in cells.items()} == dict.fromkeys(cells, True)
    assert all(cell["deviation"] < 1e-3 for cell in cells.values())
