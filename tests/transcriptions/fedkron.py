"""FedKron, layer by layer. `layers` are (rows, columns, bias) of matrices, or None for a vector."""

import math

import torch


def cut(x, layers, sizes):
    found = []
    for part, layer in zip(torch.split(x, sizes), layers, strict=True):
        if layer is None:
            found.append(part)
            continue
        m, n, bias = layer
        W = part[: m * n].reshape(m, n)
        found.append(torch.cat([W, part[m * n :].reshape(m, 1)], 1) if bias else W)
    return found


def glued(parts, layers):
    found = []
    for W, layer in zip(parts, layers, strict=True):
        if layer is None:
            found.append(W)
            continue
        _, n, bias = layer
        found.append(W[:, :n].reshape(-1))
        if bias:
            found.append(W[:, n])
    return torch.cat(found)


def gram(G):
    return G * G if G.ndim == 1 else G.T @ G / len(G)


def told_apart(R, rank):
    """All eigenvalues but the `rank` largest are raised to the largest of the others."""
    if R.ndim == 1 or rank >= len(R):
        return R
    w, U = torch.linalg.eigh(R)
    return U @ torch.diag(w.clamp(min=w[-rank - 1])) @ U.T


def top(R):
    return R.max() if R.ndim == 1 else torch.linalg.eigvalsh(R)[-1]


def trace(R):
    return R.sum() if R.ndim == 1 else R.trace()


def scale(R, top0, s, rho):
    """P."""
    phi = rho**2 * (top(R) + rho**2 * top0)
    if R.ndim == 1:
        return lambda G: s * G / (R + phi).sqrt()
    M = R + phi * torch.eye(len(R), dtype=R.dtype)
    w, U = torch.linalg.eigh(M)
    root = U @ torch.diag(w**-0.5) @ U.T
    return lambda G: s * G @ root


def fedkron(
    x, g, g0, p, q, T, layers, sizes, eta, mu, beta, rank, rho, reach, kappa, end, rounds=None
):
    N = len(p)
    s = []
    for W, layer in zip(cut(x, layers, sizes), layers, strict=True):
        if layer is None:
            s.append(W.square().mean().sqrt())
        else:
            s.append(torch.linalg.svdvals(W[:, : layer[1]])[0] / math.sqrt(layer[0]))
    opening = [g0(i, x) for i in range(N)]
    first = cut(sum(p[i] * opening[i] for i in range(N)), layers, sizes)
    a = [
        sum(p[i] * cut(opening[i], layers, sizes)[j].norm() ** 2 for i in range(N))
        for j in range(len(layers))
    ]
    b = list(a)
    R = [told_apart(gram(G), rank) for G in first]
    tops = [top(r) for r in R]
    u, found = torch.zeros_like(x), []
    for r in range(rounds or T):
        rate = eta / math.sqrt(q * T) * (end + (1 - end) * (1 - (r + 0.5) / T))
        sent, lengths, shorter = [], [0.0] * len(layers), [1.0] * len(layers)
        for j, G in enumerate(first):
            m = len(G) if G.ndim == 2 else 1
            if reach and b[j] > 0:
                shorter[j] = min(1.0, float(reach * (m * trace(R[j]) / b[j]).sqrt()))
        for i in range(N):
            y, total = x, torch.zeros_like(x)
            for t in range(r * q + 1, r * q + q + 1):
                clipped, steps = [], []
                for j, G in enumerate(cut(g(i, t, y), layers, sizes)):
                    c = min(1.0, float(kappa * a[j].sqrt() / G.norm())) if kappa else 1.0
                    clipped.append(c * G)
                    steps.append(shorter[j] * scale(R[j], tops[j], s[j], rho)(c * G))
                    lengths[j] += p[i] * (c * G.norm()) ** 2 / q
                total = total + glued(clipped, layers)
                y = y - rate * glued(steps, layers)
            sent.append(total / q)
        mean = cut(sum(w * m for w, m in zip(p, sent, strict=True)), layers, sizes)
        a = [beta * old + (1 - beta) * new for old, new in zip(a, lengths, strict=True)]
        for j in range(len(layers)):
            squares = [cut(h, layers, sizes)[j].norm() ** 2 for h in sent]
            b[j] = beta * b[j] + (1 - beta) * sum(
                w * own for w, own in zip(p, squares, strict=True)
            )
        R = [
            told_apart(beta * old + (1 - beta) * gram(G), rank)
            for old, G in zip(R, mean, strict=True)
        ]
        steps = [scale(R[j], tops[j], s[j], rho)(G) for j, G in enumerate(mean)]
        D = -rate * q * glued(steps, layers)
        u = mu * u + D
        x = x + D + mu * u
        found.append(x)
    return found
