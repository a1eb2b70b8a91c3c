"""STEM in its own indexing: t = 1..T, the warm-up is t = 1."""


def mean(values):
    return sum(values) / len(values)


def stem(x1, g, g0, N, q, T, eta, a):
    """x_{t+2} for t = 1..T after each synchronisation (t mod q = 0), and dbar there."""
    d = [mean([g0(i, x1) for i in range(N)])] * N
    x_now = [x1] * N
    x_next = [x1 - eta(1) * d[0]] * N
    found = []
    for t in range(1, T + 1):
        d = [g(i, t, x_next[i]) + (1 - a(t + 1)) * (d[i] - g(i, t, x_now[i])) for i in range(N)]
        if t % q == 0:
            d = [mean(d)] * N
            x_now, x_next = x_next, [mean(x_next) - eta(t + 1) * d[0]] * N
            found.append((x_next[0], d[0]))
        else:
            x_now, x_next = x_next, [x_next[i] - eta(t + 1) * d[i] for i in range(N)]
    return found
