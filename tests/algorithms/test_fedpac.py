"""FedPAC against its transcription, its identities, and the matrices that it finds."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from torch import nn
from transcriptions.fedpac import fedpac

import fafed
from fafed import Adam, ConfigError, FedPAC
from fafed.algorithms.fedpac import basis, refreshed
from fafed.kernels.build import available

N, Q, R = 4, 5, 5
UNIFORM = [1 / N] * N
SETTINGS = {
    "alpha": 0.3, "beta1": 0.8, "beta2": 0.95, "beta": 0.9, "refresh": 2, "eps": 1e-3, "decay": 0.1
}  # fmt: skip


def of_log(log):
    """x, and L and R as the library has them."""
    xs, Ls, Rs = zip(*log, strict=True)
    lr = [torch.cat([L.reshape(-1), R.reshape(-1)]) for L, R in zip(Ls, Rs, strict=True)]
    return torch.stack(xs), torch.stack(lr)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
def test_equals_the_transcription(wire, engine):
    """The problem's seven numbers are a matrix of 2 x 3, and one more."""
    p = Problem(N)
    for eta in (lambda t: 0.02, lambda t: 0.05 / t**0.5):
        log = fedpac(p.x0, p.g, UNIFORM, Q, R, eta, (2, 3), *SETTINGS.values())
        states = p.shared(FedPAC(eta, **SETTINGS, wire=wire), Q, R, engine=engine)
        xs, lr = of_log(log)
        close(torch.stack([s.x for s in states]), xs, atol=1e-10)
        close(torch.stack([s.lr for s in states]), lr, atol=1e-10)


def test_a_side_above_the_cap_has_no_basis():
    p = Problem(N)
    start = (p.x0, p.g, UNIFORM, Q, R, lambda t: 0.02, (2, 3), *SETTINGS.values())
    xs, _ = of_log(fedpac(*start, sides="L"))
    close(p.xs(FedPAC(0.02, **SETTINGS, cap=2), Q, R), xs, atol=1e-10)
    both, _ = of_log(fedpac(*start))
    assert (both - xs).abs().max() > 1e-4


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3]]
    start = (p.x0, p.g, weights, Q, R, lambda t: 0.02, (2, 3), *SETTINGS.values())
    xs, _ = of_log(fedpac(*start, cohorts=cohorts))
    close(p.xs(FedPAC(0.02, **SETTINGS, wire="full"), Q, R, participation=cohorts), xs, atol=1e-10)
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(FedPAC(), Q, participation=0.5)


def test_the_first_round_of_one_client_is_adam():
    """Every basis is the identity until L and R have seen a gradient and a refresh comes."""
    p = Problem(1)
    adam = Adam(0.02, beta1=0.8, beta2=0.95, tau=1e-6)
    own = FedPAC(0.02, alpha=0.0, beta1=0.8, beta2=0.95, eps=1e-6, decay=0.0, refresh=Q)
    close(p.xs(own, Q, 1), p.xs(adam, Q, 1), atol=1e-12)
    assert (p.xs(own, Q, 2) - p.xs(adam, Q, 2)).abs().max() > 1e-4


def test_without_bases_it_is_adam_that_begins_anew_in_each_round():
    p = Problem(N)
    own = {"alpha": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "decay": 0.1}
    found = p.xs(FedPAC(0.02, **own, cap=0), Q, R)
    log = fedpac(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.02, (2, 3), 0.3, 0.8, 0.95, 0.9, 2, 1e-6,
                 0.1, sides="")  # fmt: skip
    close(found, of_log(log)[0], atol=1e-11)


def test_with_the_mean_direction_alone_nothing_moves():
    p = Problem(N)
    close(p.xs(FedPAC(0.02, alpha=1.0), Q, 2)[-1], p.x0)


def test_bases_are_orthogonal_and_decided():
    torch.manual_seed(0)
    G = torch.randn(5, 2).double()
    A = G @ G.T  # three directions without a gradient
    U = basis(A)
    close(U.T @ U, torch.eye(5).double(), atol=1e-12)
    D = U.T @ A @ U
    close(D, torch.diag(D.diagonal()), atol=1e-6)
    noise = 1e-15 * torch.randn(5, 5).double()
    again = basis(A + noise + noise.T)
    close(again * (again * U).sum(0).sign(), U, atol=1e-5)
    close(basis(torch.zeros(4, 4)).abs(), torch.eye(4))
    Q = refreshed(A, U)
    close(Q.T @ Q, torch.eye(5).double(), atol=1e-12)
    close((Q * U).sum(0).abs(), torch.ones(5).double(), atol=1e-6)


def trained(algorithm, **options):
    """A small network, after three rounds."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)).double()
    data = [
        (torch.randn(8, 1, 4, 4, generator=g).double(), torch.randint(0, 3, (8,), generator=g))
        for _ in range(3)
    ]
    return fafed.train(model, data, algorithm, rounds=3, local_steps=2, batch_size=4, **options)


def test_a_loss_of_another_size_changes_nothing():
    def large(output, target):
        return 128 * nn.functional.cross_entropy(output, target)

    found = trained(FedPAC(0.02, eps=128e-4), loss=large).x
    close(found, trained(FedPAC(0.02, eps=1e-4)).x, atol=1e-10)


@pytest.mark.parametrize("cap", [2048, 4])
def test_on_a_network_all_back_ends_agree(cap):
    loop, vmap = (trained(FedPAC(0.02, eps=1e-4, cap=cap), engine=e) for e in ("loop", "vmap"))
    close(loop.x, vmap.x, atol=1e-8)
    # 3 x 4 and 3 x 27; with the small cap without the side of 27
    numbers = 9 + 16 + 9 + (27**2 if cap > 27 else 0)
    assert loop.history[-1].bytes_up == 3 * 3 * 8 * (len(loop.x) + numbers)


@pytest.mark.skipif(not available(torch.float64), reason="needs a C compiler")
def test_gradients_in_c_are_those_of_the_loop():
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 4, bias=False)).double()
    data = [
        (torch.randn(8, 9, generator=g).double(), torch.randint(0, 4, (8,), generator=g))
        for _ in range(3)
    ]
    options = {"rounds": 3, "local_steps": 3, "batch_size": 4}
    algorithm = FedPAC(0.02, eps=1e-4)
    found = [fafed.train(model, data, algorithm, engine=e, **options) for e in ("loop", "native")]
    close(found[0].x, found[1].x, atol=1e-8)
