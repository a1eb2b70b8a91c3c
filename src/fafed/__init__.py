"""fafed: federated optimisation in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fafed import data, models
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
        FedAdamW,
        FedAMS,
        FedAvg,
        FedCAMS,
        FedCM,
        FedDyn,
        FedExP,
        FedGLOMO,
        FedKron,
        FedLADA,
        FedMuon,
        FedPAC,
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
    from fafed.core.wire import Wire
    from fafed.errors import ConfigError, DataError, FafedError
    from fafed.experiments.api import start, train
    from fafed.experiments.model_file import load
    from fafed.experiments.training import Result, Training
    from fafed.objectives import metrics
    from fafed.objectives.function import Function
    from fafed.objectives.module import Model
    from fafed.privacy.options import Privacy
    from fafed.report.compare import Comparison, compare
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
    "Comparison",
    "ConfigError",
    "DataError",
    "DiLoCo",
    "Diverged",
    "FafedError",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAdamW",
    "FedAvg",
    "FedCAMS",
    "FedCM",
    "FedDyn",
    "FedExP",
    "FedGLOMO",
    "FedKron",
    "FedLADA",
    "FedMuon",
    "FedPAC",
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
    "Privacy",
    "Record",
    "Result",
    "Run",
    "SuperAdam",
    "Training",
    "Wire",
    "compare",
    "data",
    "load",
    "metrics",
    "models",
    "schedules",
    "start",
    "train",
]

_MODULES = {
    "data": "data",
    "metrics": "objectives.metrics",
    "models": "models",
    "schedules": "core.schedules",
}
_HOMES = {
    "core.algorithm": ["Algorithm"],
    "core.records": ["History", "Record"],
    "core.wire": ["Wire"],
    "errors": ["ConfigError", "DataError", "FafedError"],
    "experiments.model_file": ["load"],
    "objectives.function": ["Function"],
    "objectives.module": ["Model"],
    "privacy.options": ["Privacy"],
    "experiments.api": ["start", "train"],
    "experiments.training": ["Result", "Training"],
    "report.compare": ["Comparison", "compare"],
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
