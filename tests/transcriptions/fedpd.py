"""FedPD, round by round, with the paper's eta = 1/mu and a step eta_1."""

import torch


def mean(values):
    return sum(values) / len(values)


def fedpd(x0, g, N, q, rounds, eta_1, eta, *, talks=None, full=None, period=1):
    """(the server's x, the x_i, the lam_i) after each round.

    `talks(r)` says whether round r = 1, 2, ... communicates; `full(i, x)` switches to oracle II.
    """
    server, x0 = x0, [x0] * N
    x = list(x0)
    lam = [torch.zeros_like(server) for _ in range(N)]
    v = [None] * N
    found = []
    for r in range(rounds):
        z = []
        for i in range(N):
            y = x[i]
            if full and r % period == 0:
                v[i] = full(i, y)
            for t in range(r * q + 1, r * q + q + 1):
                direction = v[i] if full else g(i, t, y)
                new = y - eta_1(t) * (direction + lam[i] + (y - x0[i]) / eta)
                if full:
                    v[i] = v[i] + g(i, t, new) - g(i, t, y)
                y = new
            x[i] = y
            lam[i] = lam[i] + (x[i] - x0[i]) / eta
            z.append(x[i] + eta * lam[i])
        if talks is None or talks(r + 1):
            server = mean(z)
            x0 = [server] * N
        else:
            x0 = z
        found.append((server, list(x), list(lam)))
    return found
