"""One paper, one file. `ALGORITHMS` is the registry: name -> class."""

from __future__ import annotations

from fafed.algorithm import Algorithm
from fafed.algorithms.fafed import FAFED
from fafed.algorithms.fedavg import FedAvg
from fafed.algorithms.fedopt import FedAdagrad, FedAdam, FedAMS, FedYogi
from fafed.algorithms.naive import NaiveAdaptiveFedAvg
from fafed.algorithms.scaffold import SCAFFOLD
from fafed.algorithms.stem import STEM

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fafed": FAFED,
    "stem": STEM,
    "fedavg": FedAvg,
    "scaffold": SCAFFOLD,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedams": FedAMS,
    "naive": NaiveAdaptiveFedAvg,
}

__all__ = [
    "ALGORITHMS",
    "FAFED",
    "SCAFFOLD",
    "STEM",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedYogi",
    "NaiveAdaptiveFedAvg",
]
