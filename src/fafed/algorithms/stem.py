"""STEM (Khanduri et al., NeurIPS 2021, https://arxiv.org/abs/2106.10435).

    d_t     = g(x_t) + (1 - alpha_t) (d_{t-1} - g(x_{t-1}))     both g on the batch of step t
    x_{t+1} = x_t - eta_t d_t

Every q steps x and d become their means. This is FAFED with A = 1, step for step (the paper's index
is our t plus one), so the code calls FAFED's functions. `schedules.StemStep` and
`schedules.StemMomentum` are the step sizes of STEM's theory. `server_momentum` and `old_grad_scale`
are those of FAFED, and not in STEM's paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fafed.algorithms._momentum import server_momentum
from fafed.algorithms.fafed import FAFED, Down, Local, Message, Shared
from fafed.core.algorithm import Algorithm, Exchange, RoundInfo
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, at_least, between, hyper
from fafed.core.schedules import Rate


@dataclass(frozen=True)
class STEM(Algorithm[Shared, Down, Local, Message]):
    """Variance-reduced local steps: FAFED without the adaptive scale.

    Use it when all clients take part, data differ, and coordinates have similar scales: it sends
    two vectors each way instead of FAFED's three.
    Beware: two gradients per step. Only a small alpha removes drift. alpha = 1 is plain local SGD.
    When the clients change, the estimate d restarts.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the step size")
    alpha: Rate = hyper(
        0.9,
        between(0, 1, schedule=True),
        "the share of new information in d: 1 is plain local SGD, small values remove drift",
    )
    server_momentum: float = server_momentum()
    old_grad_scale: float = hyper(
        1.0,
        at_least(0),
        "factor of g(x_{t-1}); 1 in the paper. Below 1 d gathers momentum, and eta must be smaller",
    )

    @cached_property
    def fafed(self) -> FAFED:
        return FAFED(
            eta=self.eta,
            alpha=self.alpha,
            server_momentum=self.server_momentum,
            old_grad_scale=self.old_grad_scale,
            adaptivity="identity",
        )

    def init(self, x: Tensor) -> Shared:
        return self.fafed.init(x)

    def join(self, x: Tensor) -> Local:
        return self.fafed.join(x)

    def opening(self) -> tuple[Exchange, ...]:
        return self.fafed.opening()

    def send(self, shared: Shared) -> Down:
        return self.fafed.send(shared)

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        return self.fafed.local(grad, down, local, batches)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return self.fafed.server(shared, mean, info)

    def regroup(self, shared: Shared) -> Shared:
        return self.fafed.regroup(shared)

    def diagnostics(self, shared: Shared) -> Mapping[str, Tensor]:
        return self.fafed.diagnostics(shared)
