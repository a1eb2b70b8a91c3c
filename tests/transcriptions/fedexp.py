"""FedExP, round by round. p are the clients' weights."""

from transcriptions.fedavg import local_sgd


def fedexp(x, g, p, q, rounds, eta, eps):
    """(x, the server's step) after each round."""
    found = []
    for r in range(rounds):
        deltas = [local_sgd(x, g, i, r * q + 1, q, eta) - x for i in range(len(p))]
        mean = sum(w * delta for w, delta in zip(p, deltas, strict=True))
        squares = sum(w * delta.norm() ** 2 for w, delta in zip(p, deltas, strict=True))
        eta_g = max(1.0, float(squares / (2 * (mean.norm() ** 2 + eps))))
        x = x + eta_g * mean
        found.append((x, eta_g))
    return found
