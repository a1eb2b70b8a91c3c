"""FedAdamW, FedLADA and FedMuon, round by round. p are the clients' weights."""

import torch


def blockwise(v, blocks):
    """Every number replaced by the mean of its block; v itself without blocks."""
    if blocks is None:
        return v
    parts = torch.split(v, blocks)
    return torch.cat([torch.full_like(part, float(part.mean())) for part in parts])


def rounds_with_direction(x, state, visit, p, rounds, eta_g=1.0, cohorts=None):
    """visit(i, r, x, state, D) -> (y, a client's new state, the sum of its steps)."""
    D = torch.zeros_like(x)
    found = []
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(len(p))
        ends = [visit(i, r, x, state, D) for i in S]
        w = [p[i] / sum(p[i] for i in S) for i in S]
        mean = sum(a * (y - x) for a, (y, _, _) in zip(w, ends, strict=True))
        state = sum(a * own for a, (_, own, _) in zip(w, ends, strict=True))
        D = -mean / ends[0][2]
        x = x + eta_g * mean
        found.append((x, state, D))
    return found


def fedadamw(x, g, p, q, rounds, eta, alpha, b1, b2, eps, lam, blocks=None, cohorts=None):
    """(x, vbar, D) after each round."""

    def visit(i, r, x, v, D):
        y, m, used = x, torch.zeros_like(x), 0.0
        for k in range(1, q + 1):
            t = r * q + k
            gradient = g(i, t, y)
            m = b1 * m + (1 - b1) * gradient
            v = b2 * v + (1 - b2) * gradient**2
            mhat, vhat = m / (1 - b1**k), v / (1 - b2**t)
            y = y - eta(t) * (mhat / (vhat.sqrt() + eps) + alpha * D + lam * y)
            used += eta(t)
        return y, blockwise(v, blocks), used

    return rounds_with_direction(x, torch.zeros_like(x), visit, p, rounds, cohorts=cohorts)


def fedlada(x, g, p, q, rounds, eta, alpha, b1, b2, eps, eta_g=1.0, blocks=None, cohorts=None):
    """(x, vbar, D) after each round."""

    def visit(i, r, x, v, D):
        y, m, vhat, used = x, torch.zeros_like(x), v, 0.0
        for t in range(r * q + 1, r * q + q + 1):
            gradient = g(i, t, y)
            m = b1 * m + (1 - b1) * gradient
            v = b2 * v + (1 - b2) * gradient**2
            vhat = torch.maximum(vhat, v)
            y = y - eta(t) * (alpha * m / vhat.sqrt() + (1 - alpha) * D)
            used += eta(t)
        return y, blockwise(vhat, blocks), used

    start = torch.full_like(x, eps**2)
    return rounds_with_direction(x, start, visit, p, rounds, eta_g, cohorts)


def flattened_spectrum(M, steps):
    """Newton and Schulz by singular values: each s becomes a s + b s^3 + c s^5, again and again."""
    U, s, V = torch.linalg.svd(M, full_matrices=False)
    s = s / (M.norm() + 1e-7)
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return U @ torch.diag(s) @ V


def fedmuon(x, g, p, q, rounds, eta, alpha, beta, shape, others, b1, b2, eps, lam, cohorts=None):
    """x after each round, for one matrix of this shape, followed by a vector."""
    size = shape[0] * shape[1]

    def visit(i, r, x, state, D):
        y, m, used = x, torch.zeros_like(x[size:]), 0.0
        M, o = state[:size], state[size:]
        for k in range(1, q + 1):
            t = r * q + k
            gradient = g(i, t, y)
            M = beta * M + gradient[:size]
            own = 0.2 * max(shape) ** 0.5 * flattened_spectrum(M.reshape(shape), 5).reshape(-1)
            if others == "adamw":
                m = b1 * m + (1 - b1) * gradient[size:]
                o = b2 * o + (1 - b2) * gradient[size:] ** 2
                rest = m / (1 - b1**k) / ((o / (1 - b2**t)).sqrt() + eps)
            else:
                o = rest = beta * o + gradient[size:]
            y = y - eta(t) * ((1 - alpha) * torch.cat([own, rest]) + alpha * D + lam * y)
            used += eta(t)
        return y, torch.cat([M, o]), used

    log = rounds_with_direction(x, torch.zeros_like(x), visit, p, rounds, cohorts=cohorts)
    return [x for x, _, _ in log]
