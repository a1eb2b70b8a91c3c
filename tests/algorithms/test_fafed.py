"""FAFED against its pseudo-code, and the identities that concern it (ID-1..ID-11)."""

from __future__ import annotations

import itertools
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from problem import Problem, close
from transcriptions.central import storm, superadam
from transcriptions.fafed import fafed as transcribed
from transcriptions.fedavg import fedavg

from fafed import FAFED, ConfigError
from fafed.algorithms.fafed import Message
from fafed.core.schedules import Power, TheoryMomentum, TheoryStep
from fafed.experiments.config import Experiment

N, T = 4, 24


def constant(value):
    return lambda t: value


def both(p, q, *, eta=0.05, alpha=0.1, beta=0.9, rho=0.01, T=T, settings=None, **transcription):
    """The library's states and the transcription's log for the same run."""
    algorithm = FAFED(eta=eta, alpha=alpha, beta=beta, rho=rho, **(settings or {}))
    states = p.shared(algorithm, q, T // q)

    def number(rate):
        return constant(rate) if isinstance(rate, float) else lambda t: rate(torch.tensor(t))

    log = transcribed(
        p.x0, p.g, p.g0, p.N, q, T, number(eta), number(alpha), beta, rho, **transcription
    )
    return states, log


def test_the_setting_of_the_paper():
    """That of the preset fashion-mnist-high but for its eta; nothing beyond the paper."""
    preset = Experiment.read("fashion-mnist-high").algorithm_object(1)
    assert FAFED.paper(eta=0.02) == preset
    assert FAFED.paper(eta=0.02, alpha=0.1).alpha == 0.1
    assert (FAFED.paper().eta, FAFED.paper().plain) == (0.01, True)
    with pytest.raises(ConfigError, match="no hyper-parameter 'etta'"):
        FAFED.paper(etta=1)


def assert_same(states, log, q):
    for r, shared in enumerate(states, start=1):
        t = r * q
        close(shared.x, log["next"][t][0])
        close(shared.m, log["m"][t][0])
        close(shared.v, log["A"][t].sub(0.01).square(), 1e-9)
        assert int(shared.t) == t


@pytest.mark.parametrize("q", [1, 3, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.9, 1.0])
def test_equals_the_pseudo_code(q, alpha):
    assert_same(*both(Problem(N), q, alpha=alpha), q)


@pytest.mark.parametrize(
    ("settings", "transcription"),
    [
        ({"sync_precond": "stale"}, {"stale": True}),
        ({"first_step_precond": True}, {"first": True}),
        ({"old_grad_scale": 0.95}, {"ext": 0.95}),
        ({"old_grad_scale": 0.0}, {"ext": 0.0}),
        ({"adaptivity": "amsgrad"}, {"ams": True}),
        ({"server_momentum": 0.7}, {"mu": 0.7}),
        ({"server_momentum": 0.7, "sync_precond": "stale"}, {"mu": 0.7, "stale": True}),
    ],
)
def test_options_equal_the_pseudo_code(settings, transcription):
    assert_same(*both(Problem(N), 4, settings=settings, **transcription), 4)


@pytest.mark.parametrize(
    ("eta", "alpha"),
    [
        (Power(0.1, 1.0), 0.1),
        (Power(0.1, 1.0, every=4), Power(0.9, 1.0)),
        (TheoryStep(2.0, N, 4, rho=0.01), TheoryMomentum(2.0, N, 4, 3, rho=0.01)),
    ],
)
def test_schedules_equal_the_pseudo_code(eta, alpha):
    assert_same(*both(Problem(N), 4, eta=eta, alpha=alpha), 4)


def test_clipping_applies_to_each_gradient():
    assert_same(*both(Problem(N, clip=0.05), 4), 4)


def test_alpha_one_and_no_scale_is_fedavg_after_one_big_step():
    p, q, eta = Problem(N), 3, 0.05
    found = p.xs(FAFED(eta=eta, alpha=1.0, adaptivity="identity"), q, 8)
    start = p.x0 - eta * sum(p.g0(i, p.x0) for i in range(N)) / N
    expected = fedavg(start, p.g, [1 / N] * N, q, 8, constant(eta))
    close(found, torch.stack(expected))


@pytest.mark.parametrize("stale", [False, True])
def test_the_mean_iterate_follows_the_mean_estimate(stale):
    p = Problem(N)
    states, log = both(p, 4, settings={"sync_precond": "stale" if stale else "fresh"}, stale=stale)
    assert_same(states, log, 4)
    for t in range(T + 1):
        x, m, after = (sum(log[k][t]) / N for k in ("x", "m", "next"))
        close(after, x - 0.05 * m / log["A_used"][t])


@pytest.mark.parametrize("momentum", [0.0, 0.7])  # whatever moves the server
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.9, 1.0])
def test_with_exact_gradients_the_estimate_is_the_mean_local_gradient(alpha, momentum):
    p = Problem(N, b="full", B="full")
    run = p.run(FAFED(eta=0.05, alpha=alpha, server_momentum=momentum), 5, 6)
    for _ in run:
        last = [run.engine.states[i].local.x for i in range(N)]  # x_{rq,i}, before averaging
        close(run.state.shared.m, sum(p.full(i, x) for i, x in enumerate(last)) / N)


def test_id6_consensus_and_floor():
    _, log = both(Problem(N), 4)
    for t in range(1, T + 1):
        spread = max(float((x - log["x"][t][0]).abs().max()) for x in log["x"][t])
        assert (spread == 0) == (t % 4 == 1)
        assert bool((log["A"][t] >= 0.01).all())
        if t % 4:
            assert torch.equal(log["A"][t], log["A"][t - 1])


def test_scale_never_falls_below_rho():
    for shared in Problem(N).shared(FAFED(rho=0.3, beta=0.1), 4, 6):
        assert bool((FAFED(rho=0.3).scale(shared.v) >= 0.3).all())


def given(alpha):
    return lambda t: alpha


def test_one_client_without_scale_is_storm():
    p = Problem(1)
    found = p.xs(FAFED(eta=0.05, alpha=0.2, adaptivity="identity"), 1, T)
    xs = storm(p.x0, lambda x: p.g0(0, x), lambda t, x: p.g(0, t, x), constant(0.05), given(0.2), T)
    close(found, torch.stack(xs[1:]))


def test_one_client_is_superadam():
    p, gamma, mu = Problem(1), 0.1, Power(1.0, 3.0)
    found = p.xs(
        FAFED(eta=Power(gamma, 3.0), alpha=0.2, beta=0.9, rho=1e-2, first_step_precond=True), 1, T
    )
    xs = superadam(
        p.x0,
        lambda x: p.g0(0, x),
        lambda t, x: p.g(0, t, x),
        gamma,
        lambda t: mu(torch.tensor(t)),
        given(0.2),
        0.9,
        1e-2,
        T,
    )
    close(found, torch.stack(xs[1:]))


def test_q_one_without_scale_is_storm_on_the_mean_oracle():
    p = Problem(N)
    found = p.xs(FAFED(eta=0.05, alpha=0.2, adaptivity="identity"), 1, T)

    def mean(f):
        return lambda *a: sum(f(i, *a) for i in range(N)) / N

    xs = storm(p.x0, mean(p.g0), mean(p.g), constant(0.05), given(0.2), T)
    close(found, torch.stack(xs[1:]))


def test_the_metric_bounds_the_gradient():
    rho, eta = 0.1, 0.05
    p = Problem(N)
    _, log = both(p, 4, rho=rho, eta=eta)
    ratios = []
    for t in range(1, T + 1):
        x, m, after = (sum(log[k][t]) / N for k in ("x", "m", "next"))
        full = p.full_mean(x)
        metric = (after - x).norm() ** 2 / eta**2 / 4 + (full - m).norm() ** 2 / (4 * rho**2)
        ratios.append(float(full.norm() / (log["A_used"][t].max() * (8 * metric).sqrt())))
    assert max(ratios) <= 1


def test_adaptivity_global_and_adagrad_norm_use_one_number():
    p, q = Problem(N), 4
    for name, per_dim in [("global", False), ("global", True), ("adagrad_norm", False)]:
        run = p.run(FAFED(0.01, 0.1, 0.5, adaptivity=name, per_dim=per_dim), q, 1)
        list(run)
        unit = p.d if per_dim else 1
        s = sum(p.g0(i, p.x0) @ p.g0(i, p.x0) for i in range(N)) / N / unit
        x1 = p.x0 - 0.01 * sum(p.g0(i, p.x0) for i in range(N)) / N
        own = []
        for i in range(N):
            x, before, m, si = x1, p.x0, sum(p.g0(j, p.x0) for j in range(N)) / N, s
            for t in range(1, q + 1):
                g = p.g(i, t, x)
                m = g + 0.9 * (m - p.g(i, t, before))
                si = si + g @ g if name == "adagrad_norm" else 0.5 * si + 0.5 * (g @ g) / unit
                before, x = x, x - 0.01 * m / (s.sqrt() + 0.01)
            own.append(si)
        close(run.state.shared.v, (sum(own) / N).reshape(1))


def test_adaptivity_block_is_one_number_for_each_tensor():
    p = Problem(N)
    blocks = FAFED(adaptivity="block", blocks=(3, 4))
    g = p.g0(0, p.x0)
    close(blocks.collect(None, g), torch.stack([g[:3].square().mean(), g[3:].square().mean()]))
    A = blocks.scale(torch.tensor([4.0, 9.0], dtype=torch.float64))
    close(A, torch.tensor([2.0] * 3 + [3.0] * 4, dtype=torch.float64) + 0.01)
    one = p.xs(FAFED(adaptivity="block", blocks=(7,)), 4, 3)
    close(one, p.xs(FAFED(adaptivity="global", per_dim=True), 4, 3))


def test_adaptivity_custom_function():
    def adam(v, g):
        return g**2 if v is None else 0.9 * v + 0.1 * g**2

    p = Problem(N)
    close(p.xs(FAFED(adaptivity=adam), 4, 3), p.xs(FAFED(), 4, 3))


@hypothesis.given(st.floats(2.0**-40, 2.0**23.5))
def test_eight_bits_keep_the_magnitude_of_v(value):
    v = torch.tensor([value, 0.0, 1e-30, 1e30], dtype=torch.float64)
    near, *ends = FAFED(v_bits=8).sent(v).tolist()
    assert abs(math.log2(near / value)) <= 1 / 8 + 1e-9
    assert ends == pytest.approx([0, 0, 2.0**23.5])


def test_eight_bits_are_enough_for_all_values_and_are_counted():
    algorithm = FAFED(v_bits=8)
    v = torch.logspace(-60, 30, 100_000, base=2, dtype=torch.float64)
    assert len(algorithm.sent(v).unique()) == 256  # one byte
    x = torch.ones(10)
    assert FAFED().message_bytes(Message(x, x, x)) == 120
    assert algorithm.message_bytes(Message(x, x, x)) == 90


def test_the_mean_iterate_follows_the_mean_estimate_with_eight_bits_too():
    """ID-3: it holds for every A that all clients share."""
    p = Problem()
    algorithm = FAFED(eta=0.05, alpha=0.3, rho=0.1, v_bits=8)
    run = p.run(algorithm, 1, 2)
    run.round()
    before = run.state.shared
    run.round()
    after = run.state.shared
    A = algorithm.scale(after.v)
    torch.testing.assert_close(after.x, before.x - 0.05 * after.m / A)


def test_momentum_is_free_and_speeds_up_a_long_way():
    """On a quadratic with exact gradients and a step far too small."""
    p = Problem(N, b="full", B="full")
    plain, faster = (
        p.run(FAFED(eta=1e-4, server_momentum=mu, adaptivity="identity"), 2, 8) for mu in (0, 0.8)
    )
    records = [list(run)[-1] for run in (plain, faster)]
    for cost in ("gradients", "samples", "bytes_up", "bytes_down"):
        assert getattr(records[0], cost) == getattr(records[1], cost)
    ways = [(run.state.shared.x - p.x0).norm() for run in (plain, faster)]
    rounds = 8
    # equal moves d each: the sum over rounds r of (1 + mu + ... + mu^r) d, against rounds * d
    expected = sum((1 - 0.8**r) / 0.2 for r in range(1, rounds + 1)) / rounds
    assert float(ways[1] / ways[0]) == pytest.approx(expected, rel=0.1)
    assert plain.state.shared.last.numel() == 0


def test_momentum_in_m_alone_takes_one_gradient_per_step():
    p = Problem(N, b="full", B="full")
    *_, plain = p.run(FAFED(), 3, 4)
    *_, alone = p.run(FAFED(old_grad_scale=0.0), 3, 4)
    opening = N
    assert plain.gradients - opening == 2 * (alone.gradients - opening) == 2 * N * 3 * 4


@pytest.mark.parametrize(("alpha", "c"), [(0.1, 0.0), (0.2, 0.5)])
def test_momentum_in_m_grows_to_its_limit(alpha, c):
    """Where the gradient stays the same, m is (1 - (1 - alpha) c) / alpha times it in the end."""
    p = Problem(1, b="full", B="full")
    algorithm = FAFED(eta=1e-12, alpha=alpha, old_grad_scale=c, adaptivity="identity")
    (*_, shared), g = p.shared(algorithm, 100, 2), p.g(0, 1, p.x0)
    torch.testing.assert_close(shared.m, (1 - (1 - alpha) * c) / alpha * g)


def test_amsgrad_scale_never_decreases():
    states = Problem(N).shared(FAFED(adaptivity="amsgrad", beta=0.3), 4, 6)
    for before, after in itertools.pairwise(states):
        assert bool((after.v >= before.v).all())


def test_diagnostics_count_the_coordinates_that_adapt():
    p = Problem(N)
    run = p.run(FAFED(rho=0.05), 4, 2)
    *_, record = run
    v, m = run.state.shared.v, run.state.shared.m
    assert record.diagnostics["adaptive_fraction"] == float((v.sqrt() > 0.05).double().mean())
    assert record.diagnostics["m_norm"] == pytest.approx(float(m.norm()))
    assert 0 < record.diagnostics["adaptive_fraction"] <= 1


def test_change_of_membership_restarts_the_estimate():
    """4.7: in the first step of such a round m is the plain gradient; then as always."""
    p, q, eta, rho = Problem(N, b="full", B="full"), 3, 0.05, 0.1
    cohorts = [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2], [1, 2, 3]]
    run = p.run(FAFED(eta=eta, rho=rho, alpha=0.1), q, 4, participation=cohorts)
    for r, _ in enumerate(run):
        members = cohorts[r]
        last = {i: run.engine.states[i].local.x for i in members}
        # exact gradients: the tracker is exact over the members of this round, after a restart too
        close(run.state.shared.m, sum(p.full(i, last[i]) for i in members) / len(members))


def test_membership_restart_is_logged(caplog):
    list(Problem(N).run(FAFED(), 2, 3, participation=[[0, 1], [0, 1], [2, 3]]))
    assert [r.args[0] for r in caplog.records] == [3]


def test_a_client_lost_in_mid_round_restarts_the_next_one():
    p = Problem(N, b="full", B="full")
    run = p.run(FAFED(alpha=0.1), 3, 6, failure=0.4)
    lost = 0
    for record in run:
        answered = run.cohort.answering(record.round, range(N))
        assert record.clients == len(answered)
        before = lost
        lost = N - len(answered)
        if before:  # restarted at the beginning of this round: exact over those who answered
            last = {i: run.engine.states[i].local.x for i in answered}
            close(run.state.shared.m, sum(p.full(i, last[i]) for i in answered) / len(answered))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rho": 0.0}, "FAFED.rho must be a number > 0, got 0.0"),
        ({"rho": float("nan")}, "got nan"),
        ({"alpha": 1.5}, r"FAFED.alpha must be a number in \[0, 1\] or a schedule, got 1.5"),
        ({"beta": "0.9"}, "FAFED.beta"),
        ({"eta": -1}, "FAFED.eta"),
        ({"server_momentum": 1.5}, "FAFED.server_momentum"),
        ({"eta": True}, "FAFED.eta"),
        ({"adaptivity": "adma"}, "FAFED.adaptivity must be one of 'adam'"),
        ({"lr": 0.1}, "FAFED has no hyper-parameter 'lr'"),
        ({"aplha": 0.1}, "did you mean 'alpha'"),
    ],
)
def test_wrong_hyper_parameters_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        FAFED(**settings)
