"""Where each algorithm comes to rest on f_i(x) = a_i (x - b_i)^2 / 2 with exact gradients.

Derived by hand, apart from the library's code, from what one round does to the distances
e_i = x_i - b_i. Most rounds are affine maps, so the point of rest solves a small linear system.
Where a denominator adapts it is found by Newton's method on the equations of rest.

All functions return the point of rest of the model after a round, for clients with equal weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Clients:
    a: Vector
    b: Vector

    @classmethod
    def from_sequences(cls, a: Sequence[float], b: Sequence[float]) -> Clients:
        return cls(np.asarray(a, float), np.asarray(b, float))

    @property
    def best(self) -> float:
        return float(self.a @ self.b / self.a.sum())


def _weighted(W: Vector, b: Vector) -> float:
    """The x with sum_i W_i (b_i - x) = 0."""
    return float(W @ b / W.sum())


def fedavg(c: Clients, q: int, eta: float) -> float:
    """q local steps move client i by W_i (b_i - x), W_i = 1 - (1 - eta a_i)^q."""
    return _weighted(1 - (1 - eta * c.a) ** q, c.b)


def fedprox(c: Clients, q: int, eta: float, mu: float) -> float:
    """The steps are those towards (a_i b_i + mu x) / (a_i + mu), with curvature a_i + mu."""
    return _weighted((1 - (1 - eta * (c.a + mu)) ** q) * c.a / (c.a + mu), c.b)


def fedprox_exact(c: Clients, mu: float) -> float:
    """The limit of many local steps."""
    return _weighted(c.a / (c.a + mu), c.b)


def _powers(c: Clients, q: int, eta: float, keep: float, take: float) -> Vector:
    """For each client the q-th power of one momentum step on (e, u):

    u' = keep u + take a e,   e' = e - eta u'
    """
    zero = np.zeros_like(c.a)
    one = np.array(
        [[1 - eta * take * c.a, zero - eta * keep], [take * c.a, zero + keep]]
    ).transpose(2, 0, 1)
    return np.asarray(np.linalg.matrix_power(one, q))


def prsgdm(c: Clients, q: int, eta: float, beta: float) -> float:
    """x and u are averaged, so at rest (x, u) = mean_i(P_i (x - b_i, u) + (b_i, 0))."""
    P = _powers(c, q, eta, beta, 1.0)
    M = P.mean(0) - np.eye(2)
    right = (P[:, :, 0] * c.b[:, None]).mean(0) - np.array([c.b.mean(), 0])
    return float(np.linalg.solve(M, right)[0])


def domo(c: Clients, q: int, eta: float, mu_l: float) -> float:
    """At rest the server's momentum is zero, so clients make plain momentum steps from u = 0."""
    return _weighted(1 - _powers(c, q, eta, mu_l, 1.0)[:, 0, 0], c.b)


def local_amsgrad(c: Clients, q: int, eta: float, beta1: float, vhat: float) -> float:
    """With vhat at rest: damped momentum that stays with each client, x averaged.

    m_i = P_i[1, 0] e_i + P_i[1, 1] m_i gives m_i as a multiple of e_i.
    """
    P = _powers(c, q, eta / np.sqrt(vhat), beta1, 1 - beta1)
    m = P[:, 1, 0] / (1 - P[:, 1, 1])
    return _weighted(1 - P[:, 0, 0] - P[:, 0, 1] * m, c.b)


def mimelite(c: Clients, q: int, eta: float, beta1: float) -> float:
    """Momentum steps (1 - beta1) g + beta1 m, with m = f'(x) all round long.

    e_q - e_0 = -(1 - r_i) e_0 - eta beta1 m (1 - r_i) / s_i,  s_i = eta (1 - beta1) a_i,
    r_i = (1 - s_i)^q; the mean of the two sides is zero at rest.
    """
    s = eta * (1 - beta1) * c.a
    W = 1 - (1 - s) ** q
    pull = eta * beta1 * (W / s).mean()
    slope, level = W.mean() + pull * c.a.mean(), (W * c.b).mean() + pull * (c.a * c.b).mean()
    return float(level / slope)


def _stem_round(c: Clients, q: int, h: float, alpha: float, mean: bool) -> tuple[float, Vector]:
    """STEM at rest: the model X, and client i's distances (q, N) at the start of each step.

    The error of the tracker, n_k = m_k - a_i e_k, only shrinks within a round,
    n_k = (1 - alpha)^k n_0 with n_0 = M - a_i (prev_i - b_i), so that

        e_{k+1} = (1 - h a_i) e_k - h (1 - alpha)^k n_0,      k = 1 .. q-1
        M = mean_i(a_i e_q + (1 - alpha)^q n_0),   X = mean_i(e_q + b_i) - h M

    where prev_i = e_q + b_i (or, for `mean`, its mean over the clients). Unknowns: X, M, n_i.
    """
    N, keep = len(c.a), 1 - alpha
    # Each quantity is a row: its dependence on (X, M, n_1..n_N), then a constant.
    unit = np.eye(N + 3)
    X, M, n, one = unit[0], unit[1], unit[2 : N + 2], unit[N + 2]
    e = X - c.b[:, None] * one
    steps = [e]
    for k in range(1, q):
        e = (1 - h * c.a)[:, None] * e - h * keep**k * n
        steps.append(e)
    own = e + c.b[:, None] * one
    before = np.broadcast_to(own.mean(0), own.shape) if mean else own
    rest = [
        own.mean(0) - h * M - X,
        (c.a[:, None] * e + keep**q * n).mean(0) - M,
        *(M - c.a[:, None] * (before - c.b[:, None] * one) - n),
    ]
    system = np.array(rest)
    found = np.append(np.linalg.solve(system[:, :-1], -system[:, -1]), 1.0)
    return float(found[0]), np.array(steps) @ found


def stem(c: Clients, q: int, eta: float, alpha: float, mean: bool = False) -> float:
    """`mean`: the previous iterate of a round's first step is the mean of the clients'."""
    return _stem_round(c, q, eta, alpha, mean)[0]


def fafed(c: Clients, q: int, eta: float, alpha: float, beta: float, rho: float) -> float:
    """STEM with step eta / A, where A is at rest, too."""
    return stem(c, q, eta / fafed_scale(c, q, eta, alpha, beta, rho), alpha)


def fafed_scale(c: Clients, q: int, eta: float, alpha: float, beta: float, rho: float) -> float:
    """A = sqrt(v) + rho at rest: v = beta^q v + (1 - beta) mean_i sum_k beta^(q-k) (a_i e_k)^2."""
    fade = (1 - beta) * beta ** np.arange(q - 1, -1, -1) / (1 - beta**q)

    def residual(A: Vector) -> Vector:
        _, e = _stem_round(c, q, eta / float(A[0]), alpha, False)
        v = float((fade @ (c.a * e) ** 2).mean())
        return np.array([np.sqrt(v) + rho - A[0]])

    return float(newton(residual, np.array([1.0 + rho]))[0])


def naive(c: Clients, q: int, eta: float, beta: float, rho: float, guess: Vector) -> float:
    """x and the private v_i at rest; `guess` is near them."""

    def residual(state: Vector) -> Vector:
        x, v = np.full_like(c.a, state[0]), state[1:]
        for _ in range(q):
            g = c.a * (x - c.b)
            v = beta * v + (1 - beta) * g**2
            x = x - eta * g / (np.sqrt(v) + rho)
        return np.concatenate([[x.mean() - state[0]], v - state[1:]])

    return float(newton(residual, guess)[0])


def newton(residual: Callable[[Vector], Vector], x: Vector) -> Vector:
    """A root of `residual` near x, derivatives by central differences."""
    for _ in range(50):
        width = 1e-6 * (1 + np.abs(x))
        columns = [
            (residual(x + step) - residual(x - step)) / (2 * step.sum()) for step in np.diag(width)
        ]
        change = np.linalg.solve(np.array(columns).T, residual(x))
        x = x - change
        if np.abs(change).max() < 1e-14 * (1 + np.abs(x).max()):
            break
    return x
