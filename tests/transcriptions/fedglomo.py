"""Fed-GLOMO, round by round, one whole local pass after the other. p are the clients' weights."""


def displacement(w, g, first, i, r, q, eta, lam):
    start = r * q + 1
    before, v = w, first(i, start, w)
    z = w - eta * v
    for t in range(start + 1, start + q):
        v = g(i, t, z) + lam * (v - g(i, t, before))
        before, z = z, z - eta * v
    return w - z


def fedglomo(w, g, first, p, q, rounds, eta, beta, lam):
    """(w_{k+1}, u_k) for each k; `first(i, t, x)` is the first gradient of the round from t on."""
    clients = range(len(p))
    w_before, found = w, []
    for k in range(rounds):
        D1 = [displacement(w, g, first, i, k, q, eta, lam) for i in clients]
        G = sum(p[i] * D1[i] for i in clients)
        if k == 0:
            u = G
        else:
            D0 = [displacement(w_before, g, first, i, k, q, eta, lam) for i in clients]
            dG = sum(p[i] * (D1[i] - D0[i]) for i in clients)
            u = beta(k) * G + (1 - beta(k)) * u + (1 - beta(k)) * dG
        w_before, w = w, w - u
        found.append((w, u))
    return found
