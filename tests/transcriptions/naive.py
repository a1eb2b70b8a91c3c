"""Algorithm 1 of the FAFED paper, with v_{t,j} in line 8."""

import torch


def naive(x0, g, N, q, T, eta, beta, rho=0.0, beta1=None):
    x = [x0] * N
    v = [torch.zeros_like(x0)] * N
    m = [torch.zeros_like(x0)] * N
    found = []
    for t in range(1, T + 1):
        y = []
        for i in range(N):
            grad = g(i, t, x[i])
            v[i] = beta * v[i] + (1 - beta) * grad**2
            if beta1 is not None:
                m[i] = beta1 * m[i] + (1 - beta1) * grad
                grad = m[i]
            ratio = grad / (v[i].sqrt() + rho)
            ratio[torch.isnan(ratio)] = 0
            y.append(x[i] - eta(t) * ratio)
        if t % q == 0:
            x = [sum(y) / N] * N
            found.append(x[0])
        else:
            x = y
    return found
