"""DiLoCo, round by round, with torch's own AdamW and SGD. p are the clients' weights."""

import torch


def diloco(x, g, p, q, rounds, eta, eta_g, mu, betas, eps, decay, cohorts=None):
    """x after each round. Inner AdamW, one for each client and for good; outer Nesterov."""
    replicas = [torch.nn.Parameter(x.clone()) for _ in p]
    inner = [
        torch.optim.AdamW([y], lr=1.0, betas=betas, eps=eps, weight_decay=decay) for y in replicas
    ]
    theta = torch.nn.Parameter(x.clone())
    outer = torch.optim.SGD([theta], lr=eta_g, momentum=mu, nesterov=mu > 0)
    found = []
    for r in range(rounds):
        S = cohorts[r] if cohorts else range(len(p))
        for i in S:
            replicas[i].data.copy_(theta.data)
            for t in range(r * q + 1, r * q + q + 1):
                inner[i].param_groups[0]["lr"] = eta(t)
                replicas[i].grad = g(i, t, replicas[i].data)
                inner[i].step()
        share = sum(p[i] for i in S)
        theta.grad = sum(p[i] * (theta.data - replicas[i].data) for i in S) / share
        outer.step()
        found.append(theta.data.clone())
    return found
