"""FAFED (Wu et al., Faster Adaptive Federated Learning, AAAI 2023, https://arxiv.org/abs/2212.00974).

    m_t     = g(x_t) + (1 - alpha_t) (m_{t-1} - g(x_{t-1}))     both g on the batch of step t
    v_t     = beta v_{t-1} + (1 - beta) g(x_t)^2
    x_{t+1} = x_t - eta_t m_t / A,   A = sqrt(v_s) + rho        v_s: mean v at the last exchange

Every q steps x, m and v become their means, and the server makes the q-th step with the new A.
x_{t-1} inside g is each client's own, across exchanges too. With the mean in its place, the drift
of local steps would come back for every alpha.

Departures from the paper: the indices that its Algorithm 2 leaves out are added. alpha is at most
1. The paper does not say what happens when the clients change: here m then restarts at the current
gradient. The first step has no A, as in the paper's line 3, unless `first_step_precond`.

`FAFED.paper()` is FAFED with the paper's setting: eta = 0.01, alpha = 0.9, beta = 0.9, rho = 0.01.
Presets tune eta, and beta for some data.

Beyond the paper, `server_momentum` = mu adds mu times the server's last move to its next one:
x <- x' + mu (x_r - x_{r-1}). Here x_r is the model at the start of round r, and x' the paper's next
model. This costs neither gradients nor bytes. m stays exact, because its two gradients are taken at
the client's current and last point, however it got there. `old_grad_scale` = c puts c g(x_{t-1})
into m instead of g(x_{t-1}), as the authors' code for images does with c = 0.95. Below 1, m
accumulates momentum, up to (1 - (1 - alpha) c) / alpha times the gradient. At 0 there is only
momentum and no variance reduction, and a step takes one gradient instead of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fafed.algorithms._momentum import add_server_momentum, server_momentum
from fafed.core.algorithm import Algorithm, Exchange, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.codes import Code, Powers, from_powers, to_powers
from fafed.core.gradient import Grad, StormPoint, StormSettings
from fafed.core.hyper import Rule, above, at_least, between, hyper, one_of, sizes, switch
from fafed.core.schedules import Rate, along, at
from fafed.core.vectors import scaled_step

Statistic = Callable[[Tensor | None, Tensor], Tensor]


class Shared(NamedTuple):
    x: Tensor
    m: Tensor  # estimate of the gradient
    v: Tensor  # A = sqrt(v) + rho: a vector, a few numbers or empty
    t: Tensor  # steps made
    keep: Tensor  # 1, or 0 if the next step must restart m
    ema: Tensor  # amsgrad: the running mean that v is the maximum of; else empty
    last: Tensor  # server_momentum: the server's last move; else empty


class Opening(NamedTuple):
    x: Tensor


class Estimate(NamedTuple):
    m: Tensor
    v: Tensor


class Down(NamedTuple):
    x: Tensor
    m: Tensor
    v: Tensor
    t: Tensor
    keep: Tensor


class Local(NamedTuple):
    x: Tensor  # this client's own last iterate, never averaged


class Message(NamedTuple):
    x: Tensor
    m: Tensor
    v: Tensor


@dataclass(frozen=True)
class FAFED(Algorithm[Shared, Down, Local, Message]):
    """Adaptive, variance-reduced local steps whose scale is shared by all clients.

    Use it when all clients take part, coordinates differ much in scale, and two gradients per step
    and three vectors each way are affordable.
    Beware: a small alpha removes drift, and the adaptive scale does not. At alpha = 0.9 the bias is
    about FedAvg's. Clipping can keep sqrt(v) below rho almost everywhere. Then A is nearly rho, and
    the step nearly eta / rho. When the clients change, the estimate m restarts.
    """

    eta: Rate = hyper(0.003, above(0, schedule=True), "the step size")
    alpha: Rate = hyper(
        0.9,
        between(0, 1, schedule=True),
        "the share of new information in m: 1 is plain local SGD, small values remove drift",
    )
    beta: float = hyper(0.9, between(0, 1), "the memory of the second moment v")
    rho: float = hyper(0.01, above(0), "it keeps sqrt(v) + rho away from zero")
    adaptivity: str | Statistic = hyper(
        "adam",
        one_of("adam", "amsgrad", "global", "adagrad_norm", "block", "identity", function=True),
        "what v collects; a function (v or None, g) -> new v >= 0 is your own",
    )
    per_dim: bool = hyper(False, switch, "global, adagrad_norm: divide the squared norm by d")
    sync_precond: str = hyper(
        "fresh", one_of("fresh", "stale"), "the q-th step uses the new A (paper) or the old one"
    )
    first_step_precond: bool = hyper(False, switch, "divide the very first step by A, too")
    coupled_masks: bool = hyper(True, switch, "both gradients of a step use the same dropout masks")
    old_grad_scale: float = hyper(
        1.0,
        at_least(0),
        "factor of g(x_{t-1}); 1 in the paper. Below 1 m gathers momentum, and eta must be smaller",
    )
    v_bits: int = hyper(
        32,
        Rule("32 or 8", lambda v: v in (32, 8)),
        "a number of v on its way up: as it is, or rounded to a power of 2^(1/4)",
    )
    server_momentum: float = server_momentum()
    blocks: tuple[int, ...] = hyper(
        (),
        sizes,
        "block: sizes of the parameter tensors; filled in from the model",
    )

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """FAFED with the options of the paper, and the values that most presets have. Changes, such
        as eta=0.001, come on top. The defaults of the class may change; these do not."""
        settings: dict[str, Any] = {
            "eta": 0.01,
            "alpha": 0.9,
            "beta": 0.9,
            "rho": 0.01,
            "adaptivity": "adam",
            "sync_precond": "fresh",
            "first_step_precond": False,
            "coupled_masks": True,
            "old_grad_scale": 1.0,
            "v_bits": 32,
            "server_momentum": 0.0,
        }
        return cls(**settings | changes)

    def init(self, x: Tensor) -> Shared:
        none = x.new_empty(0)
        t = counter(x)
        last = torch.zeros_like(x) if self.server_momentum else none
        return Shared(x, torch.zeros_like(x), none, t, t.double(), none, last)

    def join(self, x: Tensor) -> Local:
        return Local(x)

    @property
    def squares(self) -> tuple[str, ...]:
        return ("v",)

    # The opening: a first estimate from one larger batch, and one step along it.

    def opening(self) -> tuple[Exchange, ...]:
        return (Exchange(self.estimate, self.first_step, lambda s: Opening(s.x), ("anchor",)),)

    def estimate(
        self, grad: Grad, down: Opening, local: Local, batches: Batches
    ) -> tuple[Local, Estimate]:
        g = grad(down.x, batches.anchor.for_step())
        return local, Estimate(g, self.sent(self.collect(None, g)))

    def first_step(self, shared: Shared, mean: Estimate, info: RoundInfo) -> Shared:
        m, v = mean
        A = self.scale(v) if self.first_step_precond else 1.0
        x = shared.x - at(self.eta, shared.t) * m / A
        ema = v if self.adaptivity == "amsgrad" else shared.ema
        return Shared(x, m, v, shared.t, torch.ones_like(shared.keep), ema, shared.last)

    # A round.

    def send(self, shared: Shared) -> Down:
        return Down(*shared[:5])

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, m, v, t, keep = down
        rates = along(self.eta, t, len(batches))
        remember = [1 - alpha for alpha in along(self.alpha, t, len(batches))]
        remember[0] = remember[0] * keep
        settings = StormSettings(rates, remember, self.beta, self.scale(v))
        if self.adaptivity == "amsgrad":  # v is a maximum, so the running mean is needed
            v = torch.zeros_like(v)
        start, fresh = StormPoint(x, local.x, m, v), self.sync_precond == "fresh"
        if self.plain:
            x, before, m, v = grad.storm_steps(start, settings, batches, keep_x=not fresh)
        else:
            x, before, m, v = self.other_steps(grad, start, settings, batches)
        last = before if fresh else x  # fresh: the server makes the q-th step
        return Local(before), Message(last, m, self.sent(v))

    def other_steps(
        self, grad: Grad, start: StormPoint, settings: StormSettings, batches: Batches
    ) -> StormPoint:
        """The local steps with options that are not the paper's."""
        x, before, m, v = start
        scale = self.old_grad_scale
        for rate, remember, batch in zip(settings.rates, settings.keeps, batches, strict=True):
            g = grad(x, batch)
            if scale:
                again = batch if self.coupled_masks else batch.redrawn()
                old = grad(before, again)
                m = grad.storm_estimate(g, remember, m, old if scale == 1 else scale * old)
                del old  # free a vector as large as the model
            else:
                m = g + remember * m
            if self.adaptivity in ("adam", "amsgrad"):
                v = grad.ema_of_squares(v, self.beta, g)
            else:
                v = self.collect(v, g)
            before, x = x, scaled_step(x, rate, m, settings.A)
        return StormPoint(x, before, m, v)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x, m, v = mean
        t, ema = shared.t + info.steps, shared.ema
        if self.adaptivity == "amsgrad":
            ema = self.beta**info.steps * ema + v
            v = torch.maximum(shared.v, ema)
        if self.sync_precond == "fresh":
            x = scaled_step(x, at(self.eta, t), m, self.scale(v))
        x, last = add_server_momentum(x, shared.x, shared.last, self.server_momentum)
        return Shared(x, m, v, t, torch.ones_like(shared.keep), ema, last)

    def regroup(self, shared: Shared) -> Shared:
        return shared._replace(keep=torch.zeros_like(shared.keep))

    @property
    def plain(self) -> bool:
        """Whether a local step is that of the paper."""
        known = self.adaptivity in ("adam", "amsgrad", "identity")
        return known and self.coupled_masks and self.old_grad_scale == 1

    # The adaptive matrix: the update of v, and A = sqrt(v) + rho.

    def collect(self, v: Tensor | None, g: Tensor) -> Tensor:
        """The statistic after gradient g; v is None at the very first."""
        if callable(self.adaptivity):
            return self.adaptivity(v, g)
        match self.adaptivity:
            case "adam" | "amsgrad":
                new = g**2
            case "global" | "adagrad_norm":
                new = (g @ g).reshape(1) / (len(g) if self.per_dim else 1)
            case "block":
                new = torch.stack(
                    [part.square().mean() for part in torch.split(g, list(self.blocks))]
                )
            case _:
                new = g[:0]
        if v is None:
            return new
        if self.adaptivity == "adagrad_norm":
            return v + new
        return self.beta * v + (1 - self.beta) * new

    def scale(self, v: Tensor) -> float | Tensor:
        """The diagonal of A."""
        if self.adaptivity == "identity":
            return 1.0
        if self.adaptivity == "block":
            v = torch.cat([s.expand(n) for s, n in zip(v.unbind(), self.blocks, strict=True)])
        return v.sqrt() + self.rho

    def sent(self, v: Tensor) -> Tensor:
        """What arrives of a client's v. All clients still share one A >= rho, which is all that
        the theory asks of it."""
        if self.v_bits == 32:
            return v
        return torch.where(v.isnan(), v, from_powers(to_powers(v), v.dtype))

    @property
    def coded(self) -> Mapping[str, Code]:
        return {"v": Powers()} if self.v_bits == 8 else {}

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        if self.adaptivity == "block" and not self.blocks:
            return replace(self, blocks=tuple(math.prod(shape) for shape in shapes))
        return self

    def diagnostics(self, shared: Shared) -> Mapping[str, Tensor]:
        seen = {"m_norm": shared.m.norm()}
        if self.adaptivity != "identity" and shared.v.numel():  # none before the first answer
            seen["adaptive_fraction"] = (shared.v.sqrt() > self.rho).double().mean()
        return seen
