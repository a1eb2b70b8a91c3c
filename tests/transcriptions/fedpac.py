"""FedPAC with SOAP, round by round, for one matrix that a vector follows. p are the weights."""

import torch


def settled(A):
    """A ramp decides between eigenvalues that are equal."""
    n = len(A)
    ramp = torch.diag(torch.tensor([(n - j) / n for j in range(n)], dtype=A.dtype))
    return A + 2.0**-26 * torch.trace(A).clamp(min=1e-100) * ramp


def vectors(A):
    """Eigenvectors, the first for the largest eigenvalue."""
    w, U = torch.linalg.eigh(settled(A))
    return U[:, torch.argsort(w, descending=True)]


def iterated(A, U):
    """Gram and Schmidt on the columns of A U."""
    found = []
    for column in (settled(A) @ U).T:
        for _ in range(2):  # the second time removes what rounding left
            for other in found:
                column = column - (column @ other) * other
        found.append(column / column.norm())
    return torch.stack(found, 1)


def fedpac(
    x, g, p, q, rounds, eta, shape, alpha, b1, b2, b, refresh, eps, lam, sides="LR", cohorts=None
):
    """(x, L, R) after each round. Sides that are not named have no basis."""
    m, n = shape
    size = m * n
    L, R = torch.zeros(m, m, dtype=x.dtype), torch.zeros(n, n, dtype=x.dtype)
    D, log = torch.zeros_like(x), []
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(len(p))
        total = sum(p[i] for i in S)
        dx, newL, newR = torch.zeros_like(x), torch.zeros_like(L), torch.zeros_like(R)
        for i in S:
            y, Li, Ri, used = x, L, R, 0.0
            U = vectors(L) if "L" in sides else torch.eye(m, dtype=x.dtype)
            V = vectors(R) if "R" in sides else torch.eye(n, dtype=x.dtype)
            M, sq = torch.zeros_like(x), torch.zeros_like(x)

            def turned(z, U=None, V=None):
                return torch.cat([(U.T @ z[:size].reshape(m, n) @ V).reshape(-1), z[size:]])

            for k in range(1, q + 1):
                t = r * q + k
                gradient = g(i, t, y)
                M = b1 * M + (1 - b1) * gradient
                sq = b2 * sq + (1 - b2) * turned(gradient, U, V) ** 2
                N = turned(M, U, V) / (1 - b1**k) / ((sq / (1 - b2**k)).sqrt() + eps)
                P = turned(N, U.T, V.T)
                y = y - eta(t) * ((1 - alpha) * (P + lam * y) + alpha * D)
                used += eta(t)
                G = gradient[:size].reshape(m, n)
                Li, Ri = b * Li + (1 - b) * G @ G.T, b * Ri + (1 - b) * G.T @ G
                if k % refresh == 0:
                    U = iterated(Li, U) if "L" in sides else U
                    V = iterated(Ri, V) if "R" in sides else V
            w = p[i] / total
            dx, newL, newR = dx + w * (y - x), newL + w * Li, newR + w * Ri
        x, L, R, D = x + dx, newL, newR, -dx / used
        log.append((x, L, R))
    return log
