"""Momentum on the server, which several algorithms offer."""

from __future__ import annotations

from torch import Tensor


def add_server_momentum(x: Tensor, old: Tensor, last: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    """Momentum on the server: its move from `old` to x, and mu times its last one on top; where
    that leads, and the whole move. Without mu nothing is kept."""
    if not mu:
        return x, last
    x = x + mu * last
    return x, x - old
