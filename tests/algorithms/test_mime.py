"""Mime, MimeLite and MimeAdam against their pseudo-code, ID-25, and no bias on quadratics."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg
from transcriptions.mime import mime as transcribed
from transcriptions.mime import svrg
from two_quadratics import limit

from fafed import Mime, MimeAdam, MimeLite
from fafed.core import tree
from fafed.core.schedules import Power
from fafed.engines.mean import Mean

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
NUMBERS = {"beta1": 0.8, "beta2": 0.7, "tau": 0.1}
BASES = ["sgd", "sgdm", "adam", "adagrad"]


def compare(p, weights, algorithm, *, base, lite, eta=None, engine="loop"):
    anchors = {"full": lambda i, t, x: p.full(i, x), "batch": p.anchor}
    expected = transcribed(
        p.x0,
        p.g,
        anchors[algorithm.anchor],
        weights,
        Q,
        R,
        eta or (lambda t: 0.02),
        base,
        0.8,
        0.7,
        0.1,
        lite=lite,
        eta_g=algorithm.eta_g,
        cold=algorithm.cold_start,
    )
    for shared, (x, m, v) in zip(p.shared(algorithm, Q, R, engine=engine), expected, strict=True):
        close(shared.x, x)
        if base in ("sgdm", "adam"):
            close(shared.m, m)
        if base in ("adam", "adagrad"):
            close(shared.v, v)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("cls", [Mime, MimeLite])
def test_equals_the_pseudo_code(cls, base, engine):
    algorithm = cls(0.02, base=base, **NUMBERS)
    compare(Problem(N), UNIFORM, algorithm, base=base, lite=cls is MimeLite, engine=engine)


@pytest.mark.parametrize("base", ["sgdm", "adam", "adagrad"])
@pytest.mark.parametrize("cls", [Mime, MimeLite])
@pytest.mark.parametrize("settings", [{"anchor": "batch"}, {"cold_start": True}, {"eta_g": 0.6}])
def test_options_equal_the_pseudo_code(cls, base, settings):
    algorithm = cls(0.02, base=base, **NUMBERS, **settings)
    compare(Problem(N), UNIFORM, algorithm, base=base, lite=cls is MimeLite)


@pytest.mark.parametrize("cls", [Mime, MimeLite])
def test_schedules_and_weights(cls):
    p, eta = Problem(N, weights=[1.0, 2.0, 3.0, 4.0]), Power(0.05)
    compare(
        p,
        [0.1, 0.2, 0.3, 0.4],
        cls(eta, base="adam", **NUMBERS),
        base="adam",
        lite=cls is MimeLite,
        eta=lambda t: eta(torch.tensor(t)),
    )


@pytest.mark.parametrize(
    "settings", [{}, {"anchor": "batch"}, {"cold_start": True, "tau": 0.5, "eta_g": 0.7}]
)
def test_mimeadam_is_mime_with_adam(settings):
    p = Problem(N)
    here = p.xs(MimeAdam(0.02, **settings), Q, R)
    assert torch.equal(here, p.xs(Mime(0.02, base="adam", **settings), Q, R))


def test_mimelite_with_sgd_is_fedavg_at_its_price():
    p = Problem(N)
    algorithm = MimeLite(0.05, base="sgd")
    expected = fedavg(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05)
    close(p.xs(algorithm, Q, R), torch.stack(expected))
    *_, record = p.run(algorithm, Q, R)
    assert record.samples == N * Q * R * p.b
    assert record.bytes_up == record.bytes_down == N * R * p.d * 8


def test_mime_with_sgd_and_one_client_is_svrg():
    p = Problem(1)
    expected = svrg(p.x0, lambda t, x: p.g(0, t, x), lambda x: p.full(0, x), Q, R, 0.05)
    close(p.xs(Mime(0.05, base="sgd"), Q, R), torch.stack(expected))


def test_mime_with_sgd_and_one_step_is_gradient_descent():
    p = Problem(N)
    x, expected = p.x0, []
    for _ in range(R):
        x = x - 0.05 * p.full_mean(x)
        expected.append(x)
    close(p.xs(Mime(0.05, base="sgd"), 1, R), torch.stack(expected))


@pytest.mark.parametrize("base", BASES)
def test_with_exact_gradients_and_equal_clients_mime_is_mimelite(base):
    p = Problem(3, identical=True, b="full")
    full, lite = (p.xs(cls(0.02, base=base, **NUMBERS), Q, R) for cls in (Mime, MimeLite))
    close(full, lite)


@pytest.mark.parametrize("base", BASES)
def test_the_first_local_direction_is_common(base):
    p, sent, add = Problem(N), [], Mean.add

    def spy(self, leaves, weight):
        sent.append(leaves[0])
        add(self, leaves, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mean, "add", spy)
        list(p.run(Mime(0.02, base=base, **NUMBERS), 1, 3))
    assert len(sent) == 3 * 2 * N
    for start in range(N, len(sent), 2 * N):  # the second exchange of each round
        for message in sent[start + 1 : start + N]:
            close(message.delta, sent[start].delta)


@pytest.mark.parametrize("base", BASES)
def test_mime_has_no_bias_on_quadratics(base):
    algorithm = Mime(0.1, base=base, beta1=0.5, tau=0.5)
    assert limit(algorithm, 5, 80) == pytest.approx(0, abs=1e-11)


def test_mimelite_has_the_bias_of_fedavg_on_quadratics():
    assert limit(MimeLite(0.02, base="sgd"), 5, 100) == pytest.approx(-0.019862, abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (Mime(base="sgd"), 2, 2),
        (Mime(base="sgdm"), 2, 3),
        (Mime(base="adam"), 2, 4),
        (Mime(base="adagrad"), 2, 3),
        (MimeLite(base="sgdm", cold_start=True), 2, 2),
        (MimeLite(base="adam", cold_start=True), 2, 3),
        (MimeLite(base="adagrad", cold_start=True), 2, 2),
    ],
)
def test_message_sizes(algorithm, up, down):
    p = Problem(N)
    run = p.run(algorithm, Q, R)
    *_, record = run
    vector = N * p.d * 8
    assert (record.bytes_up, record.bytes_down) == (up * R * vector, down * R * vector)
    assert tree.nbytes(run.engine.states[0].local) == 0  # x is kept within a round only


@pytest.mark.parametrize("cls", [Mime, MimeLite, MimeAdam])
@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"anchor": 20}, {"beta1": -1}])
def test_wrong_hyper_parameters_are_refused(cls, settings):
    with pytest.raises(ValueError, match=rf"{cls.__name__}.{next(iter(settings))} must be"):
        cls(**settings)


def test_the_base_must_be_known():
    with pytest.raises(ValueError, match=r"Mime.base must be one of 'sgd'"):
        Mime(base="rmsprop")
    with pytest.raises(ValueError, match="MimeAdam has no hyper-parameter 'base'"):
        MimeAdam(base="adam")
