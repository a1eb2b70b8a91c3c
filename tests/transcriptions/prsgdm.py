"""PR-SGD with momentum, step by step."""

import torch


def mean(values):
    return sum(values) / len(values)


def prsgdm(x0, g, N, q, T, eta, beta, kind="polyak", sync="average"):
    """(x_{t+1,i}, u_{t,i}, the gradients used) at t = 1..T."""
    x, u = [x0] * N, [torch.zeros_like(x0)] * N
    log = []
    for t in range(1, T + 1):
        grads = [g(i, t, x[i]) for i in range(N)]
        u = [beta * u[i] + grads[i] for i in range(N)]
        if kind == "polyak":
            x = [x[i] - eta(t) * u[i] for i in range(N)]
        else:
            x = [x[i] - eta(t) * (beta * u[i] + grads[i]) for i in range(N)]
        used = u
        if t % q == 0:
            x = [mean(x)] * N
            if sync == "average":
                u = [mean(u)] * N
            elif sync == "reset":
                u = [torch.zeros_like(x0)] * N
        log.append((x, used, grads))
    return log


def heavy_ball(x, g, eta, beta, T):
    u, xs = torch.zeros_like(x), []
    for t in range(1, T + 1):
        u = beta * u + g(t, x)
        x = x - eta * u
        xs.append(x)
    return xs
