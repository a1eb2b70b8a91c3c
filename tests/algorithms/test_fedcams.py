"""FedCAMS against its pseudo-code, its compressors, and ID-23."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problem import Problem, close
from transcriptions.fedcams import fedcams as transcribed
from transcriptions.fedcams import scaled_sign, top

from fafed import FedAMS, FedCAMS
from fafed.engines.mean import Mean

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
COMMON = {"eta": 0.05, "eta_g": 0.03, "beta1": 0.8, "beta2": 0.7, "tau": 0.01}
COMPRESSORS = [
    ({"compressor": "sign"}, scaled_sign),
    ({"compressor": "topk", "fraction": 0.4}, top(3)),
    ({"compressor": "topk", "fraction": 1e-6}, top(1)),
    ({"compressor": "identity"}, lambda s: s),
]


def compare(p, weights, algorithm, C, option="max", cohorts=None, engine="loop"):
    expected = transcribed(
        p.x0, p.g, weights, Q, R, lambda t: 0.05, 0.03, 0.8, 0.7, 0.01, C, option, cohorts
    )
    options = {"participation": cohorts} if cohorts else {}
    run = p.run(algorithm, Q, R, engine=engine, **options)
    for (x, e, _, _), _ in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        for i in range(N):
            if run.engine.states[i]:
                close(run.engine.states[i].local.e, e[i])
    return expected


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("kind", "C"), COMPRESSORS)
def test_equals_the_pseudo_code(kind, C, engine):
    compare(Problem(N), UNIFORM, FedCAMS(**COMMON, **kind), C, engine=engine)


def test_the_other_option_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    algorithm = FedCAMS(**COMMON, option="amsgrad")
    compare(p, [0.1, 0.2, 0.3, 0.4], algorithm, scaled_sign, "amsgrad")


def test_who_does_not_take_part_keeps_its_error():
    cohorts = [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    compare(Problem(N), UNIFORM, FedCAMS(**COMMON), scaled_sign, cohorts=cohorts)


def test_identity_is_fedams():
    p = Problem(N)
    algorithm = FedCAMS(**COMMON, compressor="identity", bias_correction=True)
    expected = p.xs(FedAMS(**COMMON, bias_correction=True), Q, R)
    assert torch.equal(p.xs(algorithm, Q, R), expected)


@pytest.mark.parametrize(("kind", "C"), COMPRESSORS)
def test_what_was_sent_and_what_is_owed_add_up(kind, C):
    p, sent = Problem(N), [torch.zeros(7, dtype=torch.float64) for _ in range(N)]
    algorithm, add, calls = FedCAMS(**COMMON, **kind), Mean.add, []

    def spy(self, leaves, weight):
        sent[len(calls) % N] += leaves[0].delta
        calls.append(weight)
        add(self, leaves, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mean, "add", spy)
        run = p.run(algorithm, Q, R)
        list(run)
    log = compare(p, UNIFORM, algorithm, C)
    for i in range(N):
        close(sent[i] + run.engine.states[i].local.e, sum(moves[i] for _, _, moves, _ in log))


def test_ties_go_to_the_lower_index_and_the_sign_of_zero_is_plus():
    s = torch.tensor([1.0, -2.0, 2.0, 0.0, 2.0, 1.0])
    two = FedCAMS(compressor="topk", fraction=2 / 6)
    assert two.compressed(s).tolist() == [0, -2, 2, 0, 0, 0]
    assert two.compressed(torch.zeros(6)).tolist() == [0] * 6
    sign = FedCAMS(compressor="sign")
    assert sign.compressed(torch.tensor([3.0, -1.0, 0.0, -0.0])).tolist() == [1, -1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(
    s=st.lists(st.integers(-5, 5), min_size=1, max_size=9),
    fraction=st.floats(0.01, 1),
)
def test_compressors_shrink_the_error(s, fraction):
    s = torch.tensor(s, dtype=torch.float64)
    topk = FedCAMS(compressor="topk", fraction=fraction)
    k = max(1, round(fraction * len(s)))
    assert torch.equal(topk.compressed(s), top(k)(s))
    error = (topk.compressed(s) - s).norm()
    assert error <= (1 - k / len(s)) ** 0.5 * s.norm() + 1e-12
    assert (FedCAMS().compressed(s) - s).norm() <= s.norm() + 1e-12


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ({"compressor": "sign"}, 13 + 8),  # a bit for each number, and one number
        ({"compressor": "topk", "fraction": 0.1}, 10 * 8 + 13),  # a bit for each place
        ({"compressor": "topk", "fraction": 0.02}, 2 * (8 + 2)),  # two bytes for each place
        ({"compressor": "identity"}, 100 * 8),
    ],
)
def test_messages_are_counted_compressed(kind, size, engine):
    p = Problem(N, d=100)
    *_, record = p.run(FedCAMS(**kind), Q, R, engine=engine)
    assert record.bytes_up == N * R * size
    assert record.bytes_down == N * R * 100 * 8


@pytest.mark.parametrize(
    "settings", [{"compressor": "zip"}, {"fraction": 0.0}, {"fraction": 1.5}, {"tau": 0.0}]
)
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"FedCAMS.{next(iter(settings))} must be"):
        FedCAMS(**settings)
