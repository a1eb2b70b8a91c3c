"""FedDyn, round by round. p are the clients' weights."""

import torch


def feddyn(x, g, p, q, rounds, eta, alpha, cohorts=None):
    """(x, h, the clients' gradients) after each round, in the paper's order."""
    N = len(p)
    h, gradients = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(N)]
    found = []
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(N)
        thetas = {}
        for i in S:
            theta = x
            for t in range(r * q + 1, r * q + q + 1):
                theta = theta - eta(t) * (g(i, t, theta) - gradients[i] + alpha * (theta - x))
            gradients[i] = gradients[i] - alpha * (theta - x)
            thetas[i] = theta
        h = h - alpha * sum(p[i] * (thetas[i] - x) for i in S)
        x = sum(p[i] * thetas[i] for i in S) / sum(p[i] for i in S) - h / alpha
        found.append((x, h, list(gradients)))
    return found
