"""Plain numbers: what counts as one."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np


def plain(value: Any) -> Any:
    """A NumPy number as a Python number. Other values are not changed."""
    return value.item() if isinstance(value, np.generic) else value


def number(value: object) -> TypeGuard[float]:
    """Whether this is a finite number. True and False are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
