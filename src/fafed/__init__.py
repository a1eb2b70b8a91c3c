"""fafed: federated optimisation in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fafed.algorithms import (
        ALGORITHMS,
        DOMO,
        FAFED,
        PRSGDM,
        SCAFFOLD,
        SCAFFOLDM,
        SPIDER,
        STEM,
        STORM,
        Adam,
        AMSGrad,
        DiLoCo,
        FedAdagrad,
        FedAdam,
        FedAMS,
        FedAvg,
        FedCAMS,
        FedCM,
        FedDyn,
        FedExP,
        FedGLOMO,
        FedKron,
        FedPD,
        FedProx,
        FedYogi,
        LocalAMSGrad,
        Mime,
        MimeAdam,
        MimeLite,
        NaiveAdaptiveFedAvg,
        SuperAdam,
    )
    from fafed.core import schedules
    from fafed.core.algorithm import Algorithm
    from fafed.core.records import History, Record
    from fafed.errors import ConfigError, DataError, FafedError
    from fafed.objectives import metrics
    from fafed.objectives.function import Function
    from fafed.objectives.module import Model
    from fafed.training.api import Result, train
    from fafed.training.loop import Diverged, Run

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "DOMO",
    "FAFED",
    "PRSGDM",
    "SCAFFOLD",
    "SCAFFOLDM",
    "SPIDER",
    "STEM",
    "STORM",
    "AMSGrad",
    "Adam",
    "Algorithm",
    "ConfigError",
    "DataError",
    "DiLoCo",
    "Diverged",
    "FafedError",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedCAMS",
    "FedCM",
    "FedDyn",
    "FedExP",
    "FedGLOMO",
    "FedKron",
    "FedPD",
    "FedProx",
    "FedYogi",
    "Function",
    "History",
    "LocalAMSGrad",
    "Mime",
    "MimeAdam",
    "MimeLite",
    "Model",
    "NaiveAdaptiveFedAvg",
    "Record",
    "Result",
    "Run",
    "SuperAdam",
    "metrics",
    "schedules",
    "train",
]

_MODULES = {"metrics": "objectives.metrics", "schedules": "core.schedules"}
_HOMES = {
    "core.algorithm": ["Algorithm"],
    "core.records": ["History", "Record"],
    "errors": ["ConfigError", "DataError", "FafedError"],
    "objectives.function": ["Function"],
    "objectives.module": ["Model"],
    "training.api": ["Result", "train"],
    "training.loop": ["Diverged", "Run"],
}


def __getattr__(name: str) -> Any:
    # Imported on first use: importing torch takes seconds, and `fafed --help` must be quick.
    if name not in __all__:
        raise AttributeError(f"module 'fafed' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"fafed.{_MODULES[name]}")
    home = next((home for home, names in _HOMES.items() if name in names), "algorithms")
    return getattr(import_module(f"fafed.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
