"""FedAvg, SCAFFOLD and the server optimisers, round by round. p are the clients' weights."""

import torch


def local_sgd(x, g, i, first, q, eta):
    for t in range(first, first + q):
        x = x - eta(t) * g(i, t, x)
    return x


def fedavg(x, g, p, q, rounds, eta, eta_g=1.0, mu=0.0):
    """With mu: FedAvgM."""
    found, v = [], torch.zeros_like(x)
    for r in range(rounds):
        ends = [local_sgd(x, g, i, r * q + 1, q, eta) for i in range(len(p))]
        v = mu * v + sum(w * (y - x) for w, y in zip(p, ends, strict=True))
        x = x + eta_g * v
        found.append(x)
    return found


def scaffold(x, g, p, q, rounds, eta, eta_g=1.0, cohorts=None, option_one=None, mu=0.0):
    """Two vectors each way; `option_one(i, r, x)` is the extra gradient of option I."""
    N = len(p)
    c, ci = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(N)]
    found, v = [], torch.zeros_like(x)
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(N)
        dys, dcs = [], []
        for i in S:
            y, used = x, 0.0
            for t in range(r * q + 1, r * q + q + 1):
                y = y - eta(t) * (g(i, t, y) - ci[i] + c)
                used += eta(t)
            new = option_one(i, r, x) if option_one else ci[i] - c + (x - y) / used
            dys.append(y - x)
            dcs.append(new - ci[i])
            ci[i] = new
        share = sum(p[i] for i in S)
        v = mu * v + sum(p[i] * dy for i, dy in zip(S, dys, strict=True)) / share
        x = x + eta_g * v
        c = c + share * sum(p[i] * dc for i, dc in zip(S, dcs, strict=True)) / share
        found.append((x, c, list(ci)))
    return found


def server_optimiser(x, g, p, q, rounds, eta, eta_g, rule, beta1, beta2, tau, v0=None, bias=False):
    """rule: adam, yogi, adagrad, ams-max, ams-amsgrad. bias: divide m and v, of ams-... vhat, by
    1 - beta^r where they are used, as the public code does; what is kept is not divided. eta_g may
    be a function of the round's last step."""
    rate = eta_g if callable(eta_g) else lambda t: eta_g
    ams = rule.startswith("ams")
    m = torch.zeros_like(x)
    v = torch.full_like(x, 0.0 if ams else (tau**2 if v0 is None else v0))
    vhat = torch.zeros_like(x)
    found = []
    for r in range(rounds):
        ends = [local_sgd(x, g, i, r * q + 1, q, eta) for i in range(len(p))]
        D = sum(w * (y - x) for w, y in zip(p, ends, strict=True))
        m = beta1 * m + (1 - beta1) * D
        if rule == "adagrad":
            v = v + D**2
        elif rule == "yogi":
            v = v - (1 - beta2) * D**2 * torch.sign(v - D**2)
        else:
            v = beta2 * v + (1 - beta2) * D**2
        by1, by2 = (1 - beta1 ** (r + 1), 1 - beta2 ** (r + 1)) if bias else (1.0, 1.0)
        if rule == "ams-max":
            vhat = torch.maximum(torch.maximum(vhat, v), torch.full_like(v, tau**2))
            x = x + rate(r * q + q) * (m / by1) / (vhat / by2).sqrt()
        elif rule == "ams-amsgrad":
            vhat = torch.maximum(vhat, v)
            x = x + rate(r * q + q) * (m / by1) / ((vhat / by2).sqrt() + tau)
        else:
            x = x + rate(r * q + q) * (m / by1) / ((v / by2).sqrt() + tau)
        found.append((x, v, vhat))
    return found
