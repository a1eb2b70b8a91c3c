"""FedProx with q gradient steps, round by round. p are the clients' weights."""


def fedprox(x, g, p, q, rounds, eta, mu):
    found = []
    for r in range(rounds):
        ends = []
        for i in range(len(p)):
            y = x
            for t in range(r * q + 1, r * q + q + 1):
                y = y - eta(t) * (g(i, t, y) + mu * (y - x))
            ends.append(y)
        x = x + sum(w * (y - x) for w, y in zip(p, ends, strict=True))
        found.append(x)
    return found
