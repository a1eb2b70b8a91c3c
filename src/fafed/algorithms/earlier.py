"""Defaults that have been replaced, as they were before.

A run whose file does not name such a setting began with the earlier value. So it must not go on
with the new one: `Experiment` tells the two apart (`fafed.experiments.earlier`). Whoever replaces a
default adds the earlier value here.
"""

from __future__ import annotations

EARLIER: dict[str, dict[str, float]] = {
    "fafed": {"eta": 0.01, "alpha": 0.1},
    "stem": {"eta": 0.01, "alpha": 0.1},
    "fedavg": {"eta": 0.01},
    "fedprox": {"eta": 0.01},
    "fedpd": {"eta": 0.01},
    "scaffold": {"eta": 0.01},
    "fedcm": {"eta": 0.01},
    "scaffoldm": {"eta": 0.01},
    "feddyn": {"eta": 0.01},
    "fedexp": {"eta": 0.01},
    "diloco": {"eta": 4e-4},
    "fedadamw": {"eta": 3e-4},
    "fedlada": {"eta": 0.001},
    "fedpac": {"cap": 2048},
    "fedadam": {"eta": 0.01},
    "fedyogi": {"eta": 0.01},
    "fedadagrad": {"eta": 0.01, "eta_g": 0.01},
    "fedams": {"eta": 0.01, "eta_g": 0.01},
    "fedcams": {"eta": 0.01, "eta_g": 0.01},
    "mime": {"eta": 0.01},
    "mimelite": {"eta": 0.01},
    "mimeadam": {"eta": 0.01},
    "domo": {"eta": 0.001},
    "fedkron": {"beta": 0.9, "rho": 0.05, "reach": 0.0},
}
