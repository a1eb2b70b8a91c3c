"""Who takes part."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fafed
from fafed.training.cohort import Cohort


@given(n=st.integers(1, 30), fraction=st.floats(0.01, 1.0), round=st.integers(1, 1000))
def test_a_fraction_is_that_many_different_clients(n, fraction, round):
    cohort = Cohort(n, participation=fraction, seed=3)
    invited = cohort.invited(round)
    assert len(invited) == max(1, int(fraction * n + 0.5))
    assert list(invited) == sorted(set(invited))
    assert invited == Cohort(n, participation=fraction, seed=3).invited(round)


def test_rounds_and_seeds_differ():
    one, two = (Cohort(20, participation=0.3, seed=s) for s in (0, 1))
    assert len({one.invited(r) for r in range(1, 20)}) > 10
    assert one.invited(1) != two.invited(1)


def test_everyone_is_invited_equally_often():
    cohort = Cohort(10, participation=0.3)
    counts = [sum(c in cohort.invited(r) for r in range(1, 1001)) for c in range(10)]
    assert min(counts) > 240
    assert max(counts) < 360


def test_schedules_are_cyclic_and_functions_are_called():
    cohort = Cohort(4, participation=[[0, 1], [3]])
    assert [cohort.invited(r) for r in (1, 2, 3)] == [(0, 1), (3,), (0, 1)]
    assert Cohort(4, participation=lambda r: [r % 4]).invited(6) == (2,)


def test_failures_happen_at_their_rate():
    cohort = Cohort(10, failure=0.2)
    answered = sum(len(cohort.answering(r, range(10))) for r in range(1, 1001))
    assert 0.78 < answered / 10_000 < 0.82
    assert not cohort.always_all_clients
    assert Cohort(10).always_all_clients


def test_clients_that_are_drawn_anew_are_warned_of_once(caplog):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    shards = [(x[k::4], torch.arange(5) % 2) for k in range(4)]
    call = {"rounds": 9, "local_steps": 1, "batch_size": 5, "participation": 0.5}
    fafed.train(nn.Linear(3, 2), shards, fafed.FAFED(), **call)
    assert caplog.text.count("starts its estimate again from zero") == 1
    assert "which is not said again" in caplog.text
