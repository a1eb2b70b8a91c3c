"""FedCM and SCAFFOLD-M, round by round. p are the clients' weights."""

import torch


def scaffold_m(x, g, p, q, rounds, eta, alpha, eta_g=1.0, cohorts=None, control=True):
    """(x, D, c, the c_i) after each round. Without `control` all c are 0: that is FedCM."""
    N = len(p)
    D, c, ci = torch.zeros_like(x), torch.zeros_like(x), [torch.zeros_like(x) for _ in range(N)]
    found = []
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(N)
        deltas, changes = [], []
        for i in S:
            y, total, used = x, torch.zeros_like(x), 0.0
            for t in range(r * q + 1, r * q + q + 1):
                gradient = g(i, t, y)
                y = y - eta(t) * (alpha * (gradient - ci[i] + c) + (1 - alpha) * D)
                total, used = total + eta(t) * gradient, used + eta(t)
            deltas.append(y - x)
            new = total / used if control else torch.zeros_like(x)
            changes.append(new - ci[i])
            ci[i] = new
        share = sum(p[i] for i in S)
        mean = sum(p[i] * delta for i, delta in zip(S, deltas, strict=True)) / share
        D = -mean / used
        x = x + eta_g * mean
        c = c + sum(p[i] * change for i, change in zip(S, changes, strict=True))
        found.append((x, D, c, list(ci)))
    return found


def fedcm(x, g, p, q, rounds, eta, alpha, eta_g=1.0, cohorts=None):
    """(x, D) after each round."""
    log = scaffold_m(x, g, p, q, rounds, eta, alpha, eta_g, cohorts, control=False)
    return [(x, D) for x, D, _, _ in log]
