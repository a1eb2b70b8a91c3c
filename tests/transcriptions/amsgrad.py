"""Local AMSGrad with a shared second moment, step by step."""

import torch


def mean(values):
    return sum(values) / len(values)


def local_amsgrad(
    x0, g, N, q, T, eta, beta1, beta2, eps0, *, timing="fresh", v_sync="local", warm=None
):
    """(x, vhat, m_i, v_i) after each synchronisation; `warm(i, x)` are gradients at x_0."""
    x = [x0] * N
    m = [torch.zeros_like(x0)] * N
    v = [torch.zeros_like(x0)] * N
    vhat = torch.full_like(x0, eps0)
    if warm:
        vhat = torch.maximum(vhat, mean([warm(i, x0) ** 2 for i in range(N)]))
    found = []
    for t in range(1, T + 1):
        grads = [g(i, t, x[i]) for i in range(N)]
        m = [beta1 * m[i] + (1 - beta1) * grads[i] for i in range(N)]
        v = [beta2 * v[i] + (1 - beta2) * grads[i] ** 2 for i in range(N)]
        if t % q:
            x = [x[i] - eta(t) * m[i] / vhat.sqrt() for i in range(N)]
            continue
        new = torch.maximum(mean(v), vhat)
        used = new if timing == "fresh" else vhat
        x = [mean([x[i] - eta(t) * m[i] / used.sqrt() for i in range(N)])] * N
        vhat = new
        if v_sync == "average":
            v = [mean(v)] * N
        found.append((x[0], vhat, m, v))
    return found
