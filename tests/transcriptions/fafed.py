"""Algorithm 2 of the FAFED paper, step by step, indices put right."""

import torch


def mean(values):
    return sum(values) / len(values)


def fafed(
    x0,
    g,
    g0,
    N,
    q,
    T,
    eta,
    alpha,
    beta,
    rho,
    *,
    stale=False,
    first=False,
    ext=1.0,
    ams=False,
    mu=0.0,
):
    """Everything that happens at t = 0..T, as lists indexed by t."""
    # lines 1-3
    grads = [g0(i, x0) for i in range(N)]
    m = [mean(grads)] * N
    v = [mean([ghat**2 for ghat in grads])] * N
    top = v[0]
    A = top.sqrt() + rho
    x_before = [x0] * N
    x = [x0 - eta(0) * m[0] / (A if first else 1)] * N
    log = {
        "x": [x_before],  # log["x"][t][i] is x_{t,i}
        "m": [m],
        "v": [v],
        "A": [A],
        "A_used": [A if first else torch.ones_like(A)],
        "next": [x],
    }
    begins = [x[0], x[0]]  # models that rounds began with, the last two
    # lines 4-15
    for t in range(1, T + 1):
        new_m, new_v = [], []
        for i in range(N):
            g_new, g_old = g(i, t, x[i]), g(i, t, x_before[i])
            new_m.append(g_new + (1 - alpha(t)) * (m[i] - ext * g_old))
            new_v.append(beta * v[i] + (1 - beta) * g_new**2)
        x_before, m, v = x, new_m, new_v
        log["x"].append(x_before)
        used = A
        if t % q == 0:
            m_bar, v_bar, x_bar = mean(m), mean(v), mean(x_before)
            top = torch.maximum(top, v_bar) if ams else v_bar
            A = top.sqrt() + rho
            if stale:
                x = [mean([x_before[i] - eta(t) * m[i] / used for i in range(N)])] * N
            else:
                used = A
                x = [x_bar - eta(t) * m_bar / A] * N
            if mu:  # not in the paper
                x = [x[0] + mu * (begins[1] - begins[0])] * N
                begins = [begins[1], x[0]]
            m, v = [m_bar] * N, [v_bar] * N
        else:
            x = [x_before[i] - eta(t) * m[i] / A for i in range(N)]
        log["m"].append(m)
        log["v"].append(v)
        log["A"].append(A)
        log["A_used"].append(used)
        log["next"].append(x)
    return log
