"""One paper, one file. `ALGORITHMS` is the registry: name -> class."""

from __future__ import annotations

from fafed.algorithm import Algorithm
from fafed.algorithms.amsgrad import LocalAMSGrad
from fafed.algorithms.central import SPIDER, STORM, Adam, AMSGrad, SuperAdam
from fafed.algorithms.domo import DOMO
from fafed.algorithms.fafed import FAFED
from fafed.algorithms.fedavg import FedAvg
from fafed.algorithms.fedcams import FedCAMS
from fafed.algorithms.fedglomo import FedGLOMO
from fafed.algorithms.fedopt import FedAdagrad, FedAdam, FedAMS, FedYogi
from fafed.algorithms.fedpd import FedPD
from fafed.algorithms.fedprox import FedProx
from fafed.algorithms.mime import Mime, MimeAdam, MimeLite
from fafed.algorithms.naive import NaiveAdaptiveFedAvg
from fafed.algorithms.prsgdm import PRSGDM
from fafed.algorithms.scaffold import SCAFFOLD
from fafed.algorithms.stem import STEM

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fafed": FAFED,
    "stem": STEM,
    "fedavg": FedAvg,
    "prsgdm": PRSGDM,
    "fedprox": FedProx,
    "fedpd": FedPD,
    "scaffold": SCAFFOLD,
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
    "naive": NaiveAdaptiveFedAvg,
    # for one client
    "adam": Adam,
    "amsgrad": AMSGrad,
    "storm": STORM,
    "spider": SPIDER,
    "superadam": SuperAdam,
}

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
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedCAMS",
    "FedGLOMO",
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
