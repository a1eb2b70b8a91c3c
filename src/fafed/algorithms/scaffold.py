"""SCAFFOLD (Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378).

    y <- x;  repeat q times:  y <- y - eta (g_i(y) - c_i + c)
    c_i <- c_i - c + (x - y) / (q eta)               control="drift"  (option II)
    c_i <- g_i(x) on the whole shard or one batch    control="full", "batch"  (option I)
    x <- x + eta_g mean_S(y - x);   c <- c + (|S|/N) mean_S(change of c_i)

With option II and all clients in every round, c is (x_old - x_new) / (q eta eta_g). So a client can
compute it from two consecutive models. `wire="compact"` (the default) uses this: it sends one
vector each way instead of two, and the client keeps one more. The method is the same.

Beyond the paper, `server_momentum` = mu adds mu times the server's last move to its next one. Then
a client finds c from the last two moves of the model, and keeps the move before the last, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.algorithms._momentum import add_server_momentum, server_momentum
from fafed.algorithms._wire import CompactWire, wire
from fafed.core.algorithm import Exchange, RoundInfo, counter
from fafed.core.batch import Batches, Draw
from fafed.core.gradient import Grad
from fafed.core.hyper import above, hyper, one_of
from fafed.core.schedules import Rate, along
from fafed.errors import ConfigError


class Shared(NamedTuple):
    x: Tensor
    c: Tensor  # mean of the c_i; compact: empty
    t: Tensor  # steps made
    last: Tensor  # server_momentum: the server's last move; else empty


class Down(NamedTuple):
    x: Tensor
    c: Tensor
    t: Tensor


class Local(NamedTuple):
    c: Tensor  # this client's control variate
    x: Tensor  # compact: the model of the last round; else empty
    reach: Tensor  # compact: eta_g times the sum of the last round's local steps
    last: Tensor  # compact, server_momentum: the server's move before its last one; else empty


class Message(NamedTuple):
    dy: Tensor
    dc: Tensor  # compact: empty


@dataclass(frozen=True)
class SCAFFOLD(CompactWire[Shared, Down, Local, Message]):
    """FedAvg whose local steps are corrected by a client's difference from the mean.

    Use it when data differ: no bias of local steps, at FedAvg's cost in bytes and gradients.
    Beware: the default wire needs all clients in every round, and each client keeps two vectors.
    With wire="full" clients may be absent. Then each keeps one vector and sends two each way.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    server_momentum: float = server_momentum()
    control: str = hyper(
        "drift", one_of("drift", "full", "batch"), "how c_i is renewed (option II, option I)"
    )
    wire: str = wire(
        "compact derives c instead of sending it; it needs control='drift' and all clients"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compact and self.control != "drift":
            raise ConfigError(
                f"SCAFFOLD.wire='compact' needs control='drift', got {self.control!r}: "
                "only then does c follow from the models; use wire='full'"
            )

    def init(self, x: Tensor) -> Shared:
        zero = torch.zeros_like(x)
        last = zero if self.server_momentum else x[:0]
        return Shared(x, x[:0] if self.compact else zero, counter(x), last)

    def join(self, x: Tensor) -> Local:
        kept, zero = x if self.compact else x[:0], torch.zeros_like(x)
        last = zero if self.compact and self.server_momentum else x[:0]
        return Local(zero, kept, torch.ones((), dtype=x.dtype, device=x.device), last)

    def exchanges(self) -> tuple[Exchange, ...]:
        extra: dict[str, tuple[Draw, ...]] = {"drift": (), "full": ("full",), "batch": ("anchor",)}
        draw: tuple[Draw, ...] = ("round", *extra[self.control])
        return (Exchange(self.local, self.server, self.send, draw),)

    def send(self, shared: Shared) -> Down:
        return Down(*shared[:3])

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, c, t = down
        move = local.last  # the server's last, if it must be kept
        if self.compact and self.server_momentum:
            move = x - local.x
            c = (self.server_momentum * local.last - move) / local.reach
        elif self.compact:
            c = (local.x - x) / local.reach
        correction = c - local.c
        rates = along(self.eta, t, len(batches))
        y = grad.sgd_steps(x, rates, batches, correction)
        reach = torch.zeros_like(local.reach) + sum(rates)
        if self.control == "drift":
            c_new = (x - y) / reach - correction
        else:
            c_new = grad(x, batches.full if self.control == "full" else batches.anchor)
        dc = x[:0] if self.compact else c_new - local.c
        kept = x if self.compact else x[:0]
        return Local(c_new, kept, self.eta_g * reach, move), Message(y - x, dc)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x = shared.x + self.eta_g * mean.dy
        x, last = add_server_momentum(x, shared.x, shared.last, self.server_momentum)
        return Shared(x, shared.c + info.share * mean.dc, shared.t + info.steps, last)
