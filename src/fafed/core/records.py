"""The records of a run, one per round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """A flat dictionary: test_accuracy for test["accuracy"], server_train_loss for
        train["loss"] (train_loss is the clients'), and the diagnostics by their names."""
        row: dict[str, Any] = self.to_dict()
        parts = {"train": "server_train", "test": "test", "validation": "validation"}
        nested = {prefix: row.pop(part) for part, prefix in parts.items()}
        row |= row.pop("diagnostics")
        for prefix, values in nested.items():
            row |= {f"{prefix}_{name}": value for name, value in values.items()}
        return row


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
