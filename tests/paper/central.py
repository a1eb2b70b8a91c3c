"""The centralised methods that N = 1 must reproduce."""

import torch


def storm(x, g0, g, eta, a, T):
    """STORM with given steps: x_{t+1} for t = 0..T."""
    d = g0(x)
    xs, before = [x - eta(0) * d], x
    for t in range(1, T + 1):
        x = xs[-1]
        d = g(t, x) + (1 - a(t)) * (d - g(t, before))
        before = x
        xs.append(x - eta(t) * d)
    return xs


def superadam(x, g0, g, gamma, mu, alpha, beta, lam, T):
    """SuperAdam (tau = 1): x~ = x - gamma m/H, x = (1 - mu) x + mu x~; v starts at g0^2."""
    m = g0(x)
    v = m**2
    xs = []
    for t in range(T + 1):
        if t:
            m = g(t, x) + (1 - alpha(t)) * (m - g(t, before))
            v = beta * v + (1 - beta) * g(t, x) ** 2
        tilde = x - gamma * m / (v.sqrt() + lam)
        _before, x = x, (1 - mu(t)) * x + mu(t) * tilde
        xs.append(x)
    return xs


def adam(x, g, eta, beta1, beta2, eps, v0, T):
    """Adam without bias correction."""
    m, v = torch.zeros_like(x), torch.full_like(x, v0)
    xs = []
    for t in range(1, T + 1):
        grad = g(t, x)
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad**2
        x = x - eta * m / (v.sqrt() + eps)
        xs.append(x)
    return xs
