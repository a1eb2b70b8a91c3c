"""Momentum on the server, which several algorithms offer."""

from __future__ import annotations

from torch import Tensor

from fafed.core.hyper import between, hyper


def server_momentum(note: str = "0 in the paper") -> float:
    """The hyper-parameter of that name."""
    about = f"how much of its last move the server adds to the next; {note}"
    return hyper(0.0, between(0, 1), f"{about}. With more of it, a smaller eta")


def add_server_momentum(x: Tensor, old: Tensor, last: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    """The server has moved from `old` to x. Add mu times its last move. Return the new x, and the
    whole move. With mu = 0 the move is not kept."""
    if not mu:
        return x, last
    x = x + mu * last
    return x, x - old
