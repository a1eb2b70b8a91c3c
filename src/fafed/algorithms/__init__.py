"""One paper, one file. `ALGORITHMS` is the registry: name -> class."""

from __future__ import annotations

from fafed.algorithms.amsgrad import LocalAMSGrad
from fafed.algorithms.central import SPIDER, STORM, Adam, AMSGrad, SuperAdam
from fafed.algorithms.diloco import DiLoCo
from fafed.algorithms.domo import DOMO
from fafed.algorithms.fafed import FAFED
from fafed.algorithms.fedadamw import FedAdamW
from fafed.algorithms.fedavg import FedAvg
from fafed.algorithms.fedcams import FedCAMS
from fafed.algorithms.fedcm import FedCM
from fafed.algorithms.feddyn import FedDyn
from fafed.algorithms.fedexp import FedExP
from fafed.algorithms.fedglomo import FedGLOMO
from fafed.algorithms.fedkron import FedKron
from fafed.algorithms.fedlada import FedLADA
from fafed.algorithms.fedmuon import FedMuon
from fafed.algorithms.fedopt import FedAdagrad, FedAdam, FedAMS, FedYogi
from fafed.algorithms.fedpac import FedPAC
from fafed.algorithms.fedpd import FedPD
from fafed.algorithms.fedprox import FedProx
from fafed.algorithms.mime import Mime, MimeAdam, MimeLite
from fafed.algorithms.naive import NaiveAdaptiveFedAvg
from fafed.algorithms.prsgdm import PRSGDM
from fafed.algorithms.scaffold import SCAFFOLD
from fafed.algorithms.scaffoldm import SCAFFOLDM
from fafed.algorithms.stem import STEM
from fafed.core import plugins
from fafed.core.algorithm import Algorithm, AnyAlgorithm
from fafed.errors import ConfigError, nearest

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {
    "fafed": FAFED,
    "stem": STEM,
    "fedavg": FedAvg,
    "prsgdm": PRSGDM,
    "fedprox": FedProx,
    "fedpd": FedPD,
    "scaffold": SCAFFOLD,
    "fedcm": FedCM,
    "scaffoldm": SCAFFOLDM,
    "feddyn": FedDyn,
    "fedexp": FedExP,
    "diloco": DiLoCo,
    "fedadamw": FedAdamW,
    "fedlada": FedLADA,
    "fedmuon": FedMuon,
    "fedpac": FedPAC,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedams": FedAMS,
    "fedcams": FedCAMS,
    "localamsgrad": LocalAMSGrad,
    "mime": Mime,
    "mimelite": MimeLite,
    "mimeadam": MimeAdam,
    "fedglomo": FedGLOMO,
    "domo": DOMO,
    "fedkron": FedKron,
    "naive": NaiveAdaptiveFedAvg,
    # for one client
    "adam": Adam,
    "amsgrad": AMSGrad,
    "storm": STORM,
    "spider": SPIDER,
    "superadam": SuperAdam,
}


def find(name: str) -> type[AnyAlgorithm]:
    """The algorithm of this name, or the user's own as "module:Class"."""
    if ":" in name:
        own = plugins.find(name, "algorithm.name")
        if not (isinstance(own, type) and issubclass(own, Algorithm)):
            raise ConfigError(
                f"algorithm.name {name!r} must be a subclass of fafed.Algorithm, got {own!r}"
            )
        return own
    if name not in ALGORITHMS:
        raise ConfigError(
            f"algorithm.name: no algorithm is called {name!r}; {nearest(name, ALGORITHMS)}; "
            "your own is 'module:Class'"
        )
    return ALGORITHMS[name]


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
    "DiLoCo",
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
    "LocalAMSGrad",
    "Mime",
    "MimeAdam",
    "MimeLite",
    "NaiveAdaptiveFedAvg",
    "SuperAdam",
]
