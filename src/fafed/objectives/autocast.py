"""Mixed precision: which operations torch may compute in bfloat16.

`torch.autocast` holds for one thread. A `with` statement around `fafed.train` would be lost in the
worker threads. So an objective has its own setting, `amp`, and uses it in every thread, for
training and for evaluation.
"""

from __future__ import annotations

import contextlib
import logging

import torch

from fafed.errors import ConfigError

log = logging.getLogger("fafed")

BF16 = "bf16"


def setting(amp: str | None, device: torch.device) -> torch.dtype | None:
    """The type for autocast, or None. An autocast that is active here is adopted."""
    if amp not in (None, BF16):
        cure = "float16 needs a scaled loss, which fafed does not have; use 'bf16'"
        raise ConfigError(f"amp must be 'bf16' or None, got {amp!r}: {cure}")
    active = _active(device.type)
    if amp == BF16:
        return torch.bfloat16
    if active is None:
        return None
    if active != torch.bfloat16:
        raise ConfigError(
            f"torch.autocast is active with {active}: float16 needs a scaled loss, which fafed "
            "does not have; use torch.bfloat16, or give amp='bf16' to fafed"
        )
    log.info("torch.autocast is active: fafed uses amp='bf16' in all its threads")
    return active


def _active(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def autocast(dtype: torch.dtype | None, device: str) -> contextlib.AbstractContextManager[None]:
    """The context for a forward pass. It does not depend on what is active around it."""
    if dtype is None and not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    # no cache: the parameters are other tensors in every call
    return torch.autocast(device, dtype, enabled=dtype is not None, cache_enabled=False)
