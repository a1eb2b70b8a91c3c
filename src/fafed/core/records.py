"""What a run tells about itself, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """One finished round. Counts are sums since the start, over all clients."""

    round: int
    steps: int  # local steps of each client
    gradients: float  # gradient evaluations, in units of one step's batch
    samples: int
    bytes_up: int
    bytes_down: int
    seconds: float  # spent in rounds, evaluation not counted
    clients: int  # how many answered in this round
    train_loss: float | None  # of the clients' models, mean over local steps; None if nobody came,
    # or if all labels were ignored
    train: Mapping[str, float] = field(default_factory=dict)  # the server's model on training data
    test: Mapping[str, float] = field(default_factory=dict)  # loss and metrics; {} if not measured
    validation: Mapping[str, float] = field(default_factory=dict)  # the same on held-out data
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """One level: test_accuracy for test["accuracy"], server_train_loss for train["loss"] (the
        clients' is train_loss), and the diagnostics by their names."""
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


# As a file: one line of JSON per round, each with a checksum. Files from before there were any are
# read as well; a line without one behind a line with one is damaged.
