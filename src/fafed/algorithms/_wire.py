"""Which vectors a message holds: all, or only those that a client cannot derive by itself."""

from __future__ import annotations

from typing import Literal

from fafed.core.hyper import hyper, one_of

Wire = Literal["compact", "full"]
FULL_CURE = "wire='full'"  # with it, clients may be absent


def wire(about: str) -> Wire:
    """The hyper-parameter of that name."""
    return hyper("compact", one_of("compact", "full"), about)
