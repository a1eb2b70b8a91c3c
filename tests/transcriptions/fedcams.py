"""FedCAMS, round by round, with compressors written out number by number."""

import torch


def scaled_sign(s):
    size = sum(abs(float(value)) for value in s) / len(s)
    return torch.tensor([size if value >= 0 else -size for value in s], dtype=s.dtype)


def top(k):
    def compressor(s):
        order = sorted(range(len(s)), key=lambda j: (-abs(float(s[j])), j))
        sent = torch.zeros_like(s)
        for j in order[:k]:
            sent[j] = s[j]
        return sent

    return compressor


def fedcams(x, g, p, q, rounds, eta, eta_g, beta1, beta2, tau, C, option="max", cohorts=None):
    """(x, the e_i, the D_i, what was sent) after each round."""
    N = len(p)
    m, v, vhat = (torch.zeros_like(x) for _ in range(3))
    e = [torch.zeros_like(x) for _ in range(N)]
    found = []
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(N)
        moves, sent = {}, {}
        for i in S:
            y = x
            for t in range(r * q + 1, r * q + q + 1):
                y = y - eta(t) * g(i, t, y)
            moves[i] = y - x
            s = moves[i] + e[i]
            sent[i] = C(s)
            e[i] = s - sent[i]
        D = sum(p[i] * sent[i] for i in S) / sum(p[i] for i in S)
        m = beta1 * m + (1 - beta1) * D
        v = beta2 * v + (1 - beta2) * D**2
        vhat = torch.maximum(vhat, v)
        if option == "max":
            vhat = torch.maximum(vhat, torch.full_like(vhat, tau**2))
            x = x + eta_g * m / vhat.sqrt()
        else:
            x = x + eta_g * m / (vhat.sqrt() + tau)
        found.append((x, list(e), moves, sent))
    return found
