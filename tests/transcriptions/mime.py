"""Mime and MimeLite, round by round, and SVRG. p are the clients' weights."""

import torch


def direction(base, g, m, v, beta1, beta2, eps):
    """U."""
    if base == "sgd":
        return g
    if base == "sgdm":
        return (1 - beta1) * g + beta1 * m
    if base == "adam":
        return ((1 - beta1) * g + beta1 * m) / (v.sqrt() + eps)
    return g / (v.sqrt() + eps)


def renewed(base, g, m, v, beta1, beta2, eps):
    """V."""
    if base in ("sgdm", "adam"):
        m = (1 - beta1) * g + beta1 * m
    if base == "adam":
        v = (1 - beta2) * g**2 + beta2 * v
    if base == "adagrad":
        v = v + g**2
    return m, v


def mime(x, g, anchor, p, q, rounds, eta, base, beta1, beta2, eps, *, lite, eta_g=1.0, cold=False):
    """(x, m, v) after each round; `anchor(i, t, x)` is the gradient at x of the round from t on."""
    N, numbers = len(p), (beta1, beta2, eps)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    if not cold:
        c = sum(p[i] * anchor(i, 1, x) for i in range(N))
        m, v = c, c**2
    found = []
    for r in range(rounds):
        c = sum(p[i] * anchor(i, r * q + 1, x) for i in range(N))
        ends = []
        for i in range(N):
            y = x
            for t in range(r * q + 1, r * q + q + 1):
                grad = g(i, t, y) if lite else g(i, t, y) - g(i, t, x) + c
                y = y - eta(t) * direction(base, grad, m, v, *numbers)
            ends.append(y)
        m, v = renewed(base, c, m, v, *numbers)
        x = x + eta_g * (sum(p[i] * ends[i] for i in range(N)) - x)
        found.append((x, m, v))
    return found


def svrg(x, g, full, q, epochs, eta):
    found = []
    for r in range(epochs):
        snapshot, c = x, full(x)
        for t in range(r * q + 1, r * q + q + 1):
            x = x - eta * (g(t, x) - g(t, snapshot) + c)
        found.append(x)
    return found
