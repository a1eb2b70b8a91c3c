"""The centralised methods. `g(t, x)` is the gradient on the batch of step t = 1, 2, ..."""

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


def storm_own(x, g, k, w, c, T):
    """STORM with its own steps: x_{t+1} for t = 1..T."""
    before, eta, xs = x, None, []
    for t in range(1, T + 1):
        if t == 1:
            d = g(t, x)
            total = d @ d
        else:
            a = min(1.0, c * float(eta) ** 2)
            d = g(t, x) + (1 - a) * (d - g(t, before))
            total = total + g(t, x) @ g(t, x)
        eta = k / (w + total) ** (1 / 3)
        before, x = x, x - eta * d
        xs.append(x)
    return xs


def spider(x, g, large, q, T, eta, *, normalised):
    """`large(t, x)` is the gradient on much data at the steps t = 1, q + 1, 2q + 1, ..."""
    before, v, xs = x, None, []
    for t in range(1, T + 1):
        v = large(t, x) if t % q == 1 % q else v + g(t, x) - g(t, before)
        before = x
        if not normalised:
            x = x - eta * v
        elif v.norm() > 0:
            x = x - eta * v / v.norm()
        xs.append(x)
    return xs


def superadam(x, g0, g, gamma, mu, alpha, beta, lam, T):
    """SuperAdam (tau = 1): x~ = x - gamma m/H, x = (1 - mu) x + mu x~; v starts at g0^2."""
    m = g0(x)
    v = m**2
    xs, before = [], x
    for t in range(T + 1):
        if t:
            m = g(t, x) + (1 - alpha(t)) * (m - g(t, before))
            v = beta * v + (1 - beta) * g(t, x) ** 2
        tilde = x - gamma * m / (v.sqrt() + lam)
        before, x = x, (1 - mu(t)) * x + mu(t) * tilde
        xs.append(x)
    return xs


def superadam_own(x, g, gamma, k, s, c, beta, lam, T, *, tau, corrected):
    """SuperAdam with its own mu_t and alpha_{t+1}, t = 1..T."""
    power = 1 / 3 if tau else 1 / 2
    v = torch.zeros_like(x)
    before, alpha, xs = x, None, []
    for t in range(1, T + 1):
        if t == 1:
            m = g(t, x)
        elif tau:
            m = g(t, x) + (1 - alpha) * (m - g(t, before))
        else:
            m = alpha * g(t, x) + (1 - alpha) * m
        v = g(t, x) ** 2 if t == 1 and not corrected else beta * v + (1 - beta) * g(t, x) ** 2
        H = (v / (1 - beta**t) if corrected else v).sqrt() + lam
        mu = k / (s + t) ** power
        tilde = x - gamma * m / H
        before, x = x, (1 - mu) * x + mu * tilde
        alpha = min(1.0, c * mu**2 if tau else c * mu)
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


def amsgrad(x, g, eta, beta1, beta2, vhat0, T):
    m, v, vhat = torch.zeros_like(x), torch.zeros_like(x), torch.full_like(x, vhat0)
    xs = []
    for t in range(1, T + 1):
        grad = g(t, x)
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad**2
        vhat = torch.maximum(vhat, v)
        x = x - eta * m / vhat.sqrt()
        xs.append(x)
    return xs
