"""fafed: federated optimisation in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fafed import metrics, schedules
    from fafed.algorithm import Algorithm
    from fafed.algorithms import (
        ALGORITHMS,
        DOMO,
        FAFED,
        PRSGDM,
        SCAFFOLD,
        SPIDER,
        STEM,
        STORM,
        Adam,
        AMSGrad,
        FedAdagrad,
        FedAdam,
        FedAMS,
        FedAvg,
        FedCAMS,
        FedGLOMO,
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
    from fafed.errors import ConfigError, DataError, FafedError
    from fafed.objective import Function, Model
    from fafed.records import History, Record
    from fafed.run import Diverged, Run
    from fafed.training import Result, train

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "DOMO",
    "FAFED",
    "PRSGDM",
    "SCAFFOLD",
    "SPIDER",
    "STEM",
    "STORM",
    "AMSGrad",
    "Adam",
    "Algorithm",
    "ConfigError",
    "DataError",
    "Diverged",
    "FafedError",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedCAMS",
    "FedGLOMO",
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

_HOMES = {
    "algorithm": ["Algorithm"],
    "errors": ["ConfigError", "DataError", "FafedError"],
    "objective": ["Function", "Model"],
    "records": ["History", "Record"],
    "run": ["Diverged", "Run"],
    "training": ["Result", "train"],
}


def __getattr__(name: str) -> Any:
    # Imported when first used: importing torch takes seconds, `fafed --help` should not.
    if name not in __all__:
        raise AttributeError(f"module 'fafed' has no attribute {name!r}")
    if name in ("metrics", "schedules"):
        return import_module(f"fafed.{name}")
    home = next((home for home, names in _HOMES.items() if name in names), "algorithms")
    return getattr(import_module(f"fafed.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
