"""FedKron: one matrix scale per layer, the same for all clients, at FedAvg's price.

FAFED shares its scale, a vector, because scales that differ between clients pull the mean model
away from the optimum. FedKron shares a matrix for each layer. The server makes it from the mean
gradient that it has anyway. So there is one gradient per step and one vector each way.

For a layer W (m x n, the bias as one more column) and its part G of a gradient:

    opening   G0 = mean gradient at x_0;   R = R0 = G0'G0 / m;   u = 0;   s = |W_0|_2 / sqrt(m)
    scale     P(G) = s G (R + phi I)^(-1/2),   phi = rho^2 (top(R) + rho0^2 top(R0))
    client    q times:  g = gradient at y;   c = min(1, kappa_r s sqrt(m d_eff) / |P(g)|_F)
                        y <- y - eta_r P(c g)
              sends the mean of the q vectors c g
    server    G = mean;   R <- beta R + (1 - beta) G'G / m;   D = -eta_r q P(G) with the new R
              u <- mu u + D;   x <- x + D + mu u

top is the largest eigenvalue. d_eff = sum_j lambda_j / (lambda_j + phi) over the eigenvalues of R.
In round r = 0, 1, ... of T, eta_r = eta / sqrt(q T) (end + (1 - end) (1 - (r + 1/2) / T)), and
kappa_r = kappa sqrt(1 + r): R knows little in the first rounds.

Layers (`_layers.py`): convolutions are matrices of out x (in * k * k). Other tensors, and matrices
with more than `cap` columns, have a scale for each number: R is the mean of squares, m = 1. A layer
that starts at zero has the s of PyTorch's usual initial weights.

`wire="compact"` (the default) sends G down instead of x. A client keeps x, u and R and makes the
server's step itself, with the same digits. It needs all clients in every round. `wire="full"` sends
x and the scales. Then clients may be absent: G is the mean over those that answered. A client that
returns cannot get the whole state while the others get G: in an exchange the server sends the same
to all, on every engine, so one absent client would make it send the whole state to everybody.

A step costs one product of m n^2 more than FedAvg's. A process decomposes each R once per round,
and under vmap the products of all clients are made together.

What is proven, and tested, without the bound (kappa = 0) and with a constant eta_r:

- The scale is the same for all clients, and its largest eigenvalue is at most sqrt(1 + 1 / rho^2)
  times its smallest.
- Where the server rests, the mean gradient is 0, and so R is 0. There P(G) = h G / eta_r with
  h = eta_r s / (rho rho0 sqrt(top(R0))). So on quadratics with gradients (W - B_i) H_i it rests
  where FedAvg with the local step h rests: sum_i (W - B_i) (I - (I - h H_i)^q) = 0. This bias is
  in proportion to h for small h: it vanishes if eta_r falls to 0.
- Near that point a round has the eigenvalues z of z^2 - (1 + mu) a z + mu a = 0, for each
  eigenvalue a of mean_i (I - h H_i)^q. It is stable if and only if -1 / (1 + 2 mu) < a < 1 for all
  of them. If all eigenvalues of all h H_i are between 0 and 1, it is.

Not proven, only seen in experiments: that it gets there from far away, and what the bound does.

Relatives: Shampoo, SOAP and Muon for one machine; FedPM, FedPAC and FedMuon, which send more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fafed.algorithms._layers import Layer, joined, layers, parts
from fafed.algorithms._memo import Last
from fafed.algorithms._wire import CompactWire, wire
from fafed.core.algorithm import Exchange, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import Rule, above, at_least, between, hyper, integer
from fafed.core.vmap import unbatched
from fafed.errors import ConfigError

EXACT = 512  # matrices of up to so many columns are decomposed in float64
Numbers = tuple[Tensor, ...]  # one for each layer


class Replica(NamedTuple):
    """What decides the server's next step. With the compact wire clients hold it, too."""

    x: Tensor
    R: Tensor  # the matrices of all layers, one after another
    u: Tensor  # momentum
    top: Numbers  # the largest eigenvalue of R0
    s: Numbers  # the size of the weights


class Shared(NamedTuple):
    x: Tensor
    R: Tensor
    u: Tensor
    top: Numbers
    s: Numbers
    g: Tensor  # compact: the last mean gradient; else empty
    r: Tensor  # rounds made

    @property
    def replica(self) -> Replica:
        return Replica(*self[:5])


class Down(NamedTuple):
    x: Tensor  # compact: empty
    g: Tensor  # compact: the last mean gradient; else empty
    scale: Tensor  # full: the scales of all layers; else empty
    caps: Numbers  # full: the largest step of each layer
    r: Tensor


class Local(NamedTuple):
    kept: Replica  # compact: the server's state at the beginning of the last round; else empty


class Message(NamedTuple):
    g: Tensor  # mean of the clipped gradients


class Scale(NamedTuple):
    matrices: list[Tensor]  # s (R + phi I)^(-1/2); for single numbers the diagonal
    caps: list[Tensor]  # s sqrt(m d_eff)


@dataclass(frozen=True)
class FedKron(CompactWire[Shared, Down, Local, Message]):
    """A shared matrix scale for each layer, made from the mean gradient.

    Use it when layers are badly scaled: one gradient per step and one vector each way, as FedAvg.
    Beware: it is fafed's own and experimental. It needs the number of rounds, and a matrix
    decomposition per layer and round. The default wire needs all clients in every round.
    """

    eta: float = hyper(0.18, above(0), "the step size; it falls over the run")
    mu: float = hyper(0.8, between(0, 1), "the momentum of the server")
    beta: float = hyper(0.9, between(0, 1), "the memory of the scale")
    rho: float = hyper(0.05, above(0), "the smallest scale, relative to the largest")
    rho0: float = hyper(0.1, at_least(0), "the share of the first scale in it")
    kappa: float = hyper(4.0, at_least(0), "the bound on a local step; it rises; 0: no bound")
    end: float = hyper(0.02, between(0, 1), "the last step size, as a share of the first")
    cap: int = hyper(2048, integer(1), "the most columns of a matrix scale")
    wire: str = wire("compact sends the mean gradient in place of x; it needs all clients")
    rounds: int = hyper(0, integer(0), "the length over which eta falls; 0: that of the run")
    shapes: tuple[tuple[int, ...], ...] = hyper(
        (),
        Rule("shapes", lambda v: isinstance(v, tuple)),
        "those of the parameter tensors; filled in from the model",
    )

    filled_from_run = ("rounds",)

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        own = tuple(tuple(shape) for shape in shapes)
        return self if self.shapes else dataclasses.replace(self, shapes=own)

    def bind_run(self, rounds: int, local_steps: int) -> Self:
        return self if self.rounds else dataclasses.replace(self, rounds=rounds)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return layers(self.shapes, self.cap)

    @cached_property
    def _last_scale(self) -> Last[Scale]:
        return Last()

    @cached_property
    def _last_step(self) -> Last[Replica]:
        return Last()

    # The server.

    def init(self, x: Tensor) -> Shared:
        replica = self._first(x)
        g = torch.zeros_like(x) if self.compact else x[:0]
        return Shared(*replica, g, counter(x))

    def opening(self) -> tuple[Exchange, ...]:
        return (Exchange(self.estimate, self.first_scale, self.send_x, ("anchor",)),)

    def send_x(self, shared: Shared) -> Down:
        empty = shared.x[:0]
        return Down(shared.x, empty, empty, (), shared.r)

    def first_scale(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        replica = self._with_scale(shared.replica, mean.g)
        return Shared(*replica, mean.g if self.compact else shared.g, shared.r)

    def send(self, shared: Shared) -> Down:
        empty = shared.x[:0]
        if self.compact:
            return Down(empty, shared.g, empty, (), shared.r)
        found = self._scale(shared.replica)
        flat = torch.cat([matrix.reshape(-1) for matrix in found.matrices])
        return Down(shared.x, empty, flat, tuple(found.caps), shared.r)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        replica = self._moved(shared.replica, mean.g, int(shared.r), info.steps)
        return Shared(*replica, mean.g if self.compact else shared.g, shared.r + 1)

    # A client.

    def join(self, x: Tensor) -> Local:
        return Local(self._first(x) if self.compact else Replica(x[:0], x[:0], x[:0], (), ()))

    def estimate(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        return local, Message(grad(down.x, batches.anchor))

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        q, r = len(batches), int(down.r)
        if self.compact:
            local = Local(self._replayed(unbatched(local.kept), down.g, r, q))
            x, scale = local.kept.x, self._scale(local.kept)
        else:
            x, scale = down.x, self._received(down)
        y, sent = x, torch.zeros_like(x)
        for batch in batches:
            g, step = self._clipped(grad(y, batch), scale, r)
            sent = sent + g
            y = y - self._rate(r, q) * step
        return local, Message(sent / q)

    def _clipped(self, g: Tensor, scale: Scale, r: int) -> tuple[Tensor, Tensor]:
        """c g and P(c g), where c bounds the step of each layer."""
        gradients = parts(g, self.layers)
        steps = _scaled(gradients, scale)
        if self.kappa:
            kappa = self.kappa * math.sqrt(1 + r)
            for i, (step, most) in enumerate(zip(steps, scale.caps, strict=True)):
                size = step.norm().clamp(min=torch.finfo(g.dtype).tiny)
                c = (kappa * most / size).clamp(max=1)
                gradients[i], steps[i] = c * gradients[i], c * step
        return joined(gradients, self.layers), joined(steps, self.layers)

    def _replayed(self, kept: Replica, g: Tensor, r: int, q: int) -> Replica:
        """The server's state after the last exchange, from what the client kept and the mean."""

        def step() -> Replica:
            return self._with_scale(kept, g) if r == 0 else self._moved(kept, g, r - 1, q)

        return self._last_step.get((g, kept), step)

    def _received(self, down: Down) -> Scale:
        sizes = [layer.scale_size for layer in self.layers]
        split = torch.split(down.scale, sizes)
        matrices = [_square(part, layer) for part, layer in zip(split, self.layers, strict=True)]
        return Scale(matrices, list(down.caps))

    # The rule, for server and clients alike.

    def _first(self, x: Tensor) -> Replica:
        """The state before the first gradient."""
        found = self.layers or (Layer(x.numel(), False),)  # without shapes: single numbers
        if not x.numel():  # of a message that has no x: the shape of what is kept
            x = x.new_zeros(sum(layer.numbers for layer in found))
        pairs = zip(found, parts(x, found), strict=True)
        sizes = tuple(layer.weight_size(w) for layer, w in pairs)
        R = x.new_zeros(sum(layer.scale_size for layer in found))
        zeros = tuple(torch.zeros_like(size) for size in sizes)
        return Replica(x, R, torch.zeros_like(x), zeros, sizes)

    def _gram(self, g: Tensor) -> Tensor:
        """G'G / m of all layers; for single numbers their squares."""
        found = zip(parts(g, self.layers), self.layers, strict=True)
        grams = (G.T @ G / layer.rows if layer.matrix else G * G for G, layer in found)
        return torch.cat([gram.reshape(-1) for gram in grams])

    def _with_scale(self, replica: Replica, g: Tensor) -> Replica:
        """The state with the first scale."""
        R = self._gram(g)
        split = torch.split(R, [layer.scale_size for layer in self.layers])
        top = tuple(
            _eigen(part, layer)[0].max().to(R.dtype)
            for part, layer in zip(split, self.layers, strict=True)
        )
        return replica._replace(R=R, top=top)

    def _moved(self, replica: Replica, g: Tensor, r: int, q: int) -> Replica:
        """The server's step."""
        R = self.beta * replica.R + (1 - self.beta) * self._gram(g)
        replica = replica._replace(R=R)
        steps = _scaled(parts(g, self.layers), self._scale(replica))
        D = -self._rate(r, q) * q * joined(steps, self.layers)
        u = self.mu * replica.u + D
        return replica._replace(x=replica.x + D + self.mu * u, u=u)

    def _scale(self, replica: Replica) -> Scale:
        key = replica.R, replica.top, replica.s
        return self._last_scale.get(key, lambda: self._new_scale(*key))

    def _new_scale(self, R: Tensor, top: Numbers, s: Numbers) -> Scale:
        matrices, caps = [], []
        split = torch.split(R, [layer.scale_size for layer in self.layers])
        for layer, part, top0, size in zip(self.layers, split, top, s, strict=True):
            w, U = _eigen(part, layer)
            phi = self.rho**2 * (w.max() + self.rho0**2 * top0.to(w.dtype))
            phi = phi.clamp(min=torch.finfo(R.dtype).tiny)  # a layer without a gradient
            root = size.to(w.dtype) * (w + phi) ** -0.5
            matrices.append((root if U is None else (U * root) @ U.T).to(R.dtype))
            caps.append(
                (size.to(w.dtype) * (layer.rows * (w / (w + phi)).sum()).sqrt()).to(R.dtype)
            )
        return Scale(matrices, caps)

    def _rate(self, r: int, q: int) -> float:
        if not self.rounds:
            raise ConfigError(
                "FedKron does not know how many rounds the run has: give it rounds=, or call "
                "bind_run(rounds, local_steps) first, as fafed.train does"
            )
        left = max(0.0, 1 - (r + 0.5) / self.rounds)
        return self.eta / math.sqrt(q * self.rounds) * (self.end + (1 - self.end) * left)


def _eigen(part: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues and eigenvectors of a layer's R; for single numbers R itself and None."""
    if not layer.matrix:
        return part, None
    R = _square(part, layer)
    w, U = torch.linalg.eigh(R.double() if len(R) <= EXACT else R)
    return w.clamp(min=0), U


def _square(part: Tensor, layer: Layer) -> Tensor:
    return part.view(layer.width, layer.width) if layer.matrix else part


def _scaled(gradients: list[Tensor], scale: Scale) -> list[Tensor]:
    pairs = zip(gradients, scale.matrices, strict=True)
    return [G @ Q if Q.ndim == 2 else G * Q for G, Q in pairs]
