"""The records of a run, one per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# A metric with one of these in its name is better if it is higher, unless the metric itself says
# otherwise. All other metrics, and losses, are better if they are lower.
HIGHER_IS_BETTER = (
    *("accuracy", "top5", "auc", "auroc", "f1", "precision", "recall", "score", "r2"),
    *("dice", "iou", "jaccard", "kappa", "mcc"),
)
MOST_CLIENTS = 1000  # of so many clients a record keeps the value of each

Summary = Mapping[str, Mapping[str, float]]  # metric -> statistic over the clients -> number


@dataclass(frozen=True)
class Record:
    """One finished round. Counts are sums since the start, over all clients."""

    round: int
    steps: int  # local steps of each client
    gradients: float  # gradient evaluations; the unit is one step's batch
    samples: int
    bytes_up: int
    bytes_down: int
    seconds: float  # time in rounds, without evaluation
    clients: int  # how many answered in this round
    # Mean loss of the clients' models over their local steps. None if no client answered, or if all
    # labels were ignored.
    train_loss: float | None
    train: Mapping[str, float] = field(default_factory=dict)  # the server's model on training data
    test: Mapping[str, float] = field(default_factory=dict)  # loss and metrics; {} if not evaluated
    validation: Mapping[str, float] = field(default_factory=dict)  # the same on held-out data
    # The server's model on each client's own test data: metric -> mean, weighted, std, worst,
    # worst_decile and clients (see `summary`).
    clients_test: Summary = field(default_factory=dict)
    # The same after a few steps of each client on its own data.
    personalised: Summary = field(default_factory=dict)
    # The numbers of each client behind these two, for at most MOST_CLIENTS clients.
    client_values: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def tested(self) -> list[str]:
        """The test numbers in words. The clients' stand there if nothing else was measured."""
        if self.test:
            return [f"test {name} {value:.4f}" for name, value in self.test.items()]
        return [
            f"clients' test {name} {own['mean']:.4f} (worst {own['worst']:.4f})"
            for name, own in self.clients_test.items()
        ]

    def flat(self) -> dict[str, Any]:
        """A flat dictionary: test_accuracy for `test["accuracy"]`, server_train_loss for
        `train["loss"]` (train_loss is the clients'), clients_test_accuracy_worst for
        `clients_test["accuracy"]["worst"]`, and the diagnostics by their names. The numbers of each
        client are left out."""
        row: dict[str, Any] = self.to_dict()
        row.pop("client_values")
        of_clients = {part: row.pop(part) for part in ("clients_test", "personalised")}
        parts = {"train": "server_train", "test": "test", "validation": "validation"}
        nested = {prefix: row.pop(part) for part, prefix in parts.items()}
        row |= row.pop("diagnostics")
        for prefix, values in nested.items():
            row |= {f"{prefix}_{name}": value for name, value in values.items()}
        for part, metrics in of_clients.items():
            for name, values in metrics.items():
                row |= {f"{part}_{name}_{what}": value for what, value in values.items()}
        return row


def higher_is_better(name: str) -> bool:
    """Whether a metric of this name is better if it is higher."""
    return any(word in name.lower() for word in HIGHER_IS_BETTER)


def summary(values: Sequence[float], weights: Sequence[float], *, higher: bool) -> dict[str, float]:
    """One number per client, in a few: the mean, the mean weighted by examples, the standard
    deviation over the clients, the worst, and the mean of the worst tenth (at least one client).

    The worst is the lowest if `higher` is better, and the highest otherwise. A client whose number
    is NaN, for example an AUC without any 1 among the targets, does not count. `clients` says how
    many do.
    """
    known = [(v, w) for v, w in zip(values, weights, strict=True) if not math.isnan(v)]
    n = len(known)
    if not n:
        names = ("mean", "weighted", "std", "worst", "worst_decile")
        return dict.fromkeys(names, math.nan) | {"clients": 0}
    ordered = sorted((v for v, _ in known), reverse=not higher)
    mean = math.fsum(ordered) / n if all(map(math.isfinite, ordered)) else sum(ordered) / n
    tail = ordered[: max(1, n // 10)]
    return {
        "mean": mean,
        "weighted": sum(v * w for v, w in known) / sum(w for _, w in known),
        "std": math.sqrt(sum((v - mean) ** 2 for v in ordered) / n),
        "worst": ordered[0],
        "worst_decile": sum(tail) / len(tail),
        "clients": n,
    }


class History(list[Record]):
    """The records of a run, in order."""

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per round (needs pandas)."""
        try:
            import pandas
        except ImportError as cause:
            raise ImportError("History.to_pandas needs pandas: pip install pandas") from cause
        return pandas.DataFrame([record.flat() for record in self])


# In a file there is one line of JSON per round, with a checksum. Old files without checksums are
# read as well. A line without a checksum after a line with one is damaged.
