"""FedKron: one matrix scale per layer, the same for all clients, at FedAvg's price.

FAFED shares its scale, a vector, because scales that differ between clients pull the mean model
away from the optimum. FedKron shares a matrix for each layer. The server makes it from the mean
gradient that it has anyway. So there is one gradient per step and one vector each way.

For a layer W (m x n, the bias as one more column) and its part G of a gradient:

    opening   g = gradient at x_0;   G0 = mean of g;   a = b = mean of |g|^2
              R = R0 = G0'G0 / m;   u = 0;   s = |W_0|_2 / sqrt(m)
    scale     P(G) = s G (R + phi I)^(-1/2),   phi = rho^2 (top(R) + rho^2 top(R0))
              d = min(1, reach sqrt(m tr(R) / b))
    client    q times:  g = gradient at y;   c = min(1, kappa sqrt(a) / |g|)
                        y <- y - d eta_r P(c g)
              sends h = mean of c g,   mean of |c g|^2,   |h|^2
    server    G = mean of h;   a <- beta a + (1 - beta) mean of |c g|^2
              b <- beta b + (1 - beta) mean of |h|^2
              R <- beta R + (1 - beta) G'G / m;   D = -eta_r q P(G) with the new R
              u <- mu u + D;   x <- x + D + mu u

top is the largest eigenvalue, tr the trace, |g| the Frobenius norm. In round r = 0, 1, ... of T,
eta_r = eta / sqrt(q T) (end + (1 - end) (1 - (r + 1/2) / T)).

d makes local steps shorter, for all clients alike. P is made for the mean gradient. The mean h of a
client's gradients in a round is longer: clients differ, and q batches leave some noise. m tr(R) is
the usual |G|^2 and b the usual |h|^2. So a client usually moves by at most reach times as much in a
round as the mean gradient would move it. The server's step does not depend on d.

c is a bound: R knows few directions in the first rounds, and gradients may become much longer
within one of them. A gradient of a layer counts as at most kappa times as long as those of all
clients were lately. So the bound can grow by sqrt(beta + (1 - beta) kappa^2) in a round, 26 % with
the defaults. It does not act where all are about equally long. A layer whose gradients have all
been 0 has no scale and no bound yet: its local steps are 0, and c = 1.

R has n^2 numbers. Kept are F with k = min(rank, n) rows at right angles and a number e, so that
R = F'F + e I: its k largest directions, and one number for all others. After each update e rises to
the next eigenvalue, so nothing is forgotten in favour of what is new: R is at least the R without
this limit (frequent directions, Liberty 2013, as Sketchy does for Shampoo). With n <= rank it is
exact. A step then costs two products of m n k more than FedAvg's, or one of m n^2 where 2 k >= n. A
process decomposes each layer once per round, a matrix of m + k or n columns.

Layers (`_layers.py`): convolutions are matrices of out x (in * k * k). Other tensors, and matrices
of which n and m + k are above `cap`, have a scale for each number: R is the mean of squares, m = 1.
A layer that starts at zero has the s of PyTorch's usual initial weights.

`wire="compact"` (the default) sends G down instead of x. A client keeps x, u, F and e and makes the
server's step itself, with the same digits. It needs all clients in every round. `wire="full"` sends
x, F and e. Then clients may be absent: G is the mean over those that answered. A client that
returns cannot get the whole state while the others get G: in an exchange the server sends the same
to all, on every engine.

What is proven, and tested, where the bound does not act, with exact gradients and a constant eta_r:

- The scale is the same for all clients, and its largest eigenvalue is at most sqrt(1 + 1 / rho^2)
  times its smallest.
- Where the server rests, the mean of what the clients send is 0, and so R is 0. Then d is 0: no
  client moves, and they send their gradients at x. So the mean gradient at x is 0. It rests at
  stationary points alone, without a bias from local steps.
- Without d (reach = 0) P(G) = h G / eta_r there, with h = eta_r s / (rho^2 sqrt(top(R0))). So on
  quadratics with gradients (W - B_i) H_i it would rest where FedAvg with the local step h rests:
  sum_i (W - B_i) (I - (I - h H_i)^q) = 0. d removes this bias.
- Near such a point of a quadratic a round has the eigenvalues z of z^2 - (1 + mu) b z + mu b = 0,
  for each eigenvalue b of I - q h mean_i H_i (without d: of mean_i (I - h H_i)^q). It is stable if
  and only if -1 / (1 + 2 mu) < b < 1 for all of them.

Not proven, only seen in experiments: that it gets there from far away. The bound c is a factor of
each client's own. Where it acts the scale is not shared. Without it some networks diverge in the
first round. Clients whose lengths stay in proportion do not feel it if none of them is more than
kappa times as long as their root mean square.

Relatives: Shampoo, SOAP, Sketchy and Muon for one machine; FedPM, FedPAC and FedMuon, which send
more.
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
from fafed.core.plain import number
from fafed.core.vmap import unbatched
from fafed.errors import ConfigError

EXACT = 512  # matrices of up to so many columns are decomposed in float64


class Replica(NamedTuple):
    """What decides the server's next step. With the compact wire clients hold it, too."""

    x: Tensor
    F: Tensor  # the factors of all layers, one after another
    e: Tensor  # what they leave out, a number for each layer
    u: Tensor  # momentum
    top: Tensor  # the largest eigenvalue of each layer's R0
    s: Tensor  # the size of each layer's weights


class Shared(NamedTuple):
    x: Tensor
    F: Tensor
    e: Tensor
    u: Tensor
    top: Tensor
    s: Tensor
    a: Tensor  # the usual square of the length of each layer's gradients
    b: Tensor  # that of their mean over a client's round
    g: Tensor  # compact: the last mean gradient; else empty
    r: Tensor  # rounds made

    @property
    def replica(self) -> Replica:
        return Replica(*self[:6])


class Down(NamedTuple):
    """With the compact wire a, b, g and r alone, with the full one all but g. Others are empty."""

    x: Tensor
    F: Tensor
    e: Tensor
    top: Tensor
    s: Tensor
    a: Tensor
    b: Tensor
    g: Tensor  # the last mean gradient
    r: Tensor


class Local(NamedTuple):
    kept: Replica  # compact: the server's state at the beginning of the last round; else empty


class Message(NamedTuple):
    g: Tensor  # mean of the bounded gradients
    a: Tensor  # mean of the squares of their lengths, for each layer
    b: Tensor  # square of the length of their mean, for each layer


class Scale(NamedTuple):
    """A layer's P(G) = largest G - G V' less. Or all in one: a matrix or a diagonal."""

    whole: Tensor | None
    largest: Tensor
    V: Tensor
    less: Tensor
    usual: Tensor  # the usual square of the length of the mean gradient, m tr(R)

    def times(self, d: Tensor) -> Scale:
        whole = None if self.whole is None else d * self.whole
        return self._replace(whole=whole, largest=d * self.largest, less=d * self.less)

    def __call__(self, G: Tensor) -> Tensor:
        if self.whole is not None:
            return G @ self.whole if self.whole.ndim == 2 else G * self.whole
        return self.largest * G - (G @ self.V.T) @ self.less


@dataclass(frozen=True)
class FedKron(CompactWire[Shared, Down, Local, Message]):
    """A shared matrix scale for each layer, made from the mean gradient.

    Use it when layers are badly scaled: one gradient per step and one vector each way, as FedAvg.
    Beware: it is fafed's own and experimental. It needs the number of rounds, and a matrix
    decomposition per layer and round. The default wire needs all clients in every round.
    """

    eta: float = hyper(0.18, above(0), "the step size; it falls over the run")
    mu: float = hyper(0.8, between(0, 1), "the momentum of the server")
    beta: float = hyper(0.8, between(0, 1), "the memory of the scale and of the bound")
    rank: int = hyper(64, integer(1), "how many directions of a layer the scale tells apart")
    rho: float = hyper(0.02, above(0), "the smallest scale, relative to the largest")
    reach: float = hyper(
        1.0, at_least(0), "how far a client moves, relative to the mean gradient; 0: no limit"
    )
    kappa: float = hyper(
        2.0,
        Rule("0 or a number > 1", lambda v: number(v) and (v == 0 or v > 1)),
        "the longest gradient of a layer, relative to the usual ones; 0: no bound",
    )
    end: float = hyper(0.02, between(0, 1), "the last step size, as a share of the first")
    cap: int = hyper(2048, integer(1), "the largest matrix that is decomposed")
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
        return layers(self.shapes, self.rank, self.cap)

    @cached_property
    def _last_scale(self) -> Last[list[Scale]]:
        return Last()

    @cached_property
    def _last_step(self) -> Last[Replica]:
        return Last()

    @property
    def squares(self) -> tuple[str, ...]:
        return ("a", "b")

    # The server.

    def init(self, x: Tensor) -> Shared:
        g = torch.zeros_like(x) if self.compact else x[:0]
        replica = self._first(x)
        zeros = torch.zeros_like(replica.s)
        return Shared(*replica, zeros, zeros, g, counter(x))

    def opening(self) -> tuple[Exchange, ...]:
        return (Exchange(self.estimate, self.first_scale, self.send_x, ("anchor",)),)

    def send_x(self, shared: Shared) -> Down:
        empty = shared.x[:0]
        return Down(shared.x, empty, empty, empty, empty, empty, empty, empty, shared.r)

    def first_scale(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return self._next(shared, mean, 0, info)

    def send(self, shared: Shared) -> Down:
        x, F, e, _, top, s, a, b, g, r = shared
        if self.compact:
            empty = x[:0]
            return Down(empty, empty, empty, empty, empty, a, b, g, r)
        return Down(x, F, e, top, s, a, b, g, r)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return self._next(shared, mean, 1, info)

    def _next(self, shared: Shared, mean: Message, rounds: int, info: RoundInfo) -> Shared:
        r = shared.r + rounds
        replica = self._after(shared.replica, mean.g, int(r), info.steps)
        old = self.beta if rounds else 0.0
        a, b = (
            old * before + (1 - old) * now
            for before, now in ((shared.a, mean.a), (shared.b, mean.b))
        )
        return Shared(*replica, a, b, mean.g if self.compact else shared.g, r)

    # A client.

    def join(self, x: Tensor) -> Local:
        return Local(self._first(x) if self.compact else Replica(*[x[:0]] * 6))

    def estimate(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        g = grad(down.x, batches.anchor)
        squares = self._lengths(g).square()
        return local, Message(g, squares, squares)

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        q, r = len(batches), int(down.r)
        if self.compact:
            local = Local(self._after(unbatched(local.kept), down.g, r, q))
        known = local.kept if self.compact else down
        y, scale = known.x, self._shorter(self._scale(known), down.b)
        sent, squares = torch.zeros_like(y), torch.zeros_like(down.a)
        for batch in batches:
            g = grad(y, batch)
            lengths = self._lengths(g)
            c = self._bound(lengths, down.a)
            g = g * self._spread(c)
            steps = [P(G) for P, G in zip(scale, parts(g, self.layers), strict=True)]
            sent, squares = sent + g, squares + (c * lengths).square()
            y = torch.add(y, joined(steps, self.layers), alpha=-self._rate(r, q))
        h = sent / q
        return local, Message(h, squares / q, self._lengths(h).square())

    def _lengths(self, g: Tensor) -> Tensor:
        split = torch.split(g, [layer.numbers for layer in self.layers])
        return torch.stack([torch.linalg.vector_norm(part) for part in split])

    def _bound(self, lengths: Tensor, a: Tensor) -> Tensor:
        """c of each layer."""
        if not self.kappa:
            return torch.ones_like(a)
        longest = self.kappa * a.sqrt()
        c = (longest / lengths.clamp(min=torch.finfo(a.dtype).tiny)).clamp(max=1)
        return torch.where(a > 0, c, 1.0)

    def _spread(self, c: Tensor) -> Tensor:
        """A number for each layer as one for each number of x."""
        pairs = zip(c, self.layers, strict=True)
        return torch.cat([own.expand(layer.numbers) for own, layer in pairs])

    # The rule, for server and clients alike.

    def _after(self, replica: Replica, g: Tensor, r: int, q: int) -> Replica:
        """The server's state after the exchange before round r, whose mean was g. With the compact
        wire clients make it, too."""

        def step() -> Replica:
            return self._moved(replica, g, r - 1, q) if r else self._with_scale(replica, g)

        return self._last_step.get((g, replica), step)

    def _first(self, x: Tensor) -> Replica:
        """The state before the first gradient."""
        found = self.layers or (Layer(x.numel(), False),)  # without shapes: single numbers
        if not x.numel():  # of a message that has no x: the shape of what is kept
            x = x.new_zeros(sum(layer.numbers for layer in found))
        pairs = zip(found, parts(x, found), strict=True)
        s = torch.stack([layer.weight_size(w) for layer, w in pairs])
        F = x.new_zeros(sum(layer.factor_size for layer in found))
        zeros = torch.zeros_like(s)
        return Replica(x, F, zeros, torch.zeros_like(x), zeros, s)

    def _with_scale(self, replica: Replica, g: Tensor) -> Replica:
        """The state with the first scale."""
        return self._remembering(replica, g, 0, 1)

    def _moved(self, replica: Replica, g: Tensor, r: int, q: int) -> Replica:
        """The server's step."""
        replica = self._remembering(replica, g, self.beta, 1 - self.beta)
        pairs = zip(self._scale(replica), parts(g, self.layers), strict=True)
        D = -self._rate(r, q) * q * joined([P(G) for P, G in pairs], self.layers)
        u = self.mu * replica.u + D
        return replica._replace(x=replica.x + D + self.mu * u, u=u)

    def _factors(self, F: Tensor) -> list[Tensor]:
        """Those of all layers: rows at right angles, F'F + e I = R. For single numbers R itself."""
        split = torch.split(F, [layer.factor_size for layer in self.layers])
        pairs = zip(split, self.layers, strict=True)
        return [F.view(layer.kept, layer.width) if layer.matrix else F for F, layer in pairs]

    def _remembering(self, replica: Replica, g: Tensor, old: float, new: float) -> Replica:
        """The state with old R + new G'G / m in place of R. The first R that is not 0 is R0."""
        factors, rest = [], []
        every = zip(
            self.layers, self._factors(replica.F), replica.e, parts(g, self.layers), strict=True
        )
        for layer, F, e, G in every:
            if layer.matrix:
                rows = torch.cat([math.sqrt(old) * F, math.sqrt(new / layer.rows) * G])
                F, left = _largest(rows, layer.kept)
            else:
                F, left = old * F + new * G * G, torch.zeros_like(e)
            factors.append(F.reshape(-1))
            rest.append(old * e + left)
        F, e = torch.cat(factors), torch.stack(rest)
        top = torch.where(replica.top > 0, replica.top, self._tops(F, e))
        return replica._replace(F=F, e=e, top=top)

    def _tops(self, F: Tensor, e: Tensor) -> Tensor:
        """The largest eigenvalue of each layer's R."""
        pairs = zip(self._factors(F), e, strict=True)
        return torch.stack([_eigenvalues(own).max() + rest for own, rest in pairs])

    def _scale(self, known: Replica | Down) -> list[Scale]:
        key = known.F, known.e, known.top, known.s
        return self._last_scale.get(key, lambda: self._new_scale(*key))

    def _shorter(self, scales: list[Scale], b: Tensor) -> list[Scale]:
        """Those of the clients' steps: d P for each layer."""
        if not self.reach:
            return scales
        usual = torch.stack([P.usual for P in scales])
        d = (self.reach * (usual / b.clamp(min=torch.finfo(b.dtype).tiny)).sqrt()).clamp(max=1)
        return [P.times(own) for P, own in zip(scales, d, strict=True)]

    def _new_scale(self, F: Tensor, e: Tensor, top: Tensor, s: Tensor) -> list[Scale]:
        every = zip(self.layers, self._factors(F), e, top, s, strict=True)
        return [self._of_layer(*each) for each in every]

    def _of_layer(self, layer: Layer, F: Tensor, e: Tensor, top0: Tensor, s: Tensor) -> Scale:
        w = _eigenvalues(F)  # less e, as the other width - kept ones
        phi = self.rho**2 * (w.max() + e + self.rho**2 * top0)
        s = torch.where(phi > 0, s, 0.0)  # a layer that has had no gradient does not move
        phi = phi.clamp(min=torch.finfo(F.dtype).tiny)
        largest = s * (e + phi) ** -0.5
        if not layer.matrix:
            return Scale(s * (w + phi) ** -0.5, largest, F, F, w.sum())
        usual = layer.rows * (w.sum() + layer.width * e)
        V = torch.where(w > 0, F.T / w.sqrt(), 0.0).T
        less = (largest - s * (w + e + phi) ** -0.5)[:, None] * V
        if layer.kept * 2 < layer.width:
            return Scale(None, largest, V, less, usual)
        eye = torch.eye(layer.width, dtype=F.dtype, device=F.device)
        return Scale(largest * eye - V.T @ less, largest, V, less, usual)

    def _rate(self, r: int, q: int) -> float:
        if not self.rounds:
            raise ConfigError(
                "FedKron does not know how many rounds the run has: give it rounds=, or call "
                "bind_run(rounds, local_steps) first, as fafed.train does"
            )
        left = max(0.0, 1 - (r + 0.5) / self.rounds)
        return self.eta / math.sqrt(q * self.rounds) * (self.end + (1 - self.end) * left)


def _eigenvalues(F: Tensor) -> Tensor:
    """Those of F'F, for rows at right angles; single numbers are their own."""
    return F.square().sum(1) if F.ndim == 2 else F


def _largest(S: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """S'S by its k largest directions and a rest, as frequent directions do (Liberty 2013).

    The rest e is the next eigenvalue. F has k rows at right angles, with F'F + e I = S'S along
    them. So F'F + e I is at least S'S, and at most S'S + e I.
    """
    exact = S.double() if min(S.shape) <= EXACT else S
    wide = S.shape[0] < S.shape[1]
    w, U = torch.linalg.eigh(exact @ exact.T if wide else exact.T @ exact)
    w, rows = w.flip(0), U.T.flip(0)[:k]
    w = torch.where(w > len(w) * torch.finfo(w.dtype).eps * w[0], w, 0.0)  # less is rounding alone
    left = w[k] if len(w) > k else torch.zeros_like(w[0])
    F = rows @ exact if wide else w[:k, None].sqrt() * rows
    share = torch.where(w[:k] > left, 1 - left / w[:k], 0.0)
    return (share.sqrt()[:, None] * F).to(S.dtype), left.to(S.dtype)
