"""DOMO, round by round. p are the clients' weights."""

import torch


def domo(x, g, p, q, rounds, eta, alpha_s, mu_s, mu_l, beta, fusion):
    """(x, m, the clients' final models) after each round."""
    m = torch.zeros_like(x)
    found = []
    for r in range(rounds):
        D, ends = [], []
        for i in range(len(p)):
            u, total = torch.zeros_like(x), torch.zeros_like(x)
            y = x - eta * beta * q * m if fusion == "pre" else x
            for t in range(r * q + 1, r * q + q + 1):
                u = mu_l * u + g(i, t, y)
                y = y - eta * u - (eta * beta * m if fusion == "intra" else 0)
                total = total + u
            D.append(total / q)
            ends.append(y)
        m = mu_s * m + sum(w * d for w, d in zip(p, D, strict=True))
        x = x - alpha_s * eta * q * m
        found.append((x, m, ends))
    return found
