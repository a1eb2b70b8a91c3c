"""What an experiment may ask of a silo: the [limits] in the silo's own file. Safe by default.

    min_batch_size = 32             examples behind one gradient
    min_local_steps = 2             with one, what leaves is a plain gradient
    min_rows = 64                   rows to train on, without those that are held out
    max_validation = 0.5            share of the rows that validation or client_test holds out
    max_batch_share = 0.5           share of the rows to train on that one gradient may see
    max_visits_per_run = 1000.0     times that a run may look at each row, on average
    max_visits_per_day = 2000.0     the same for all runs of a day, by UTC
    models_from_given_weights = []  models whose first weights the server may choose
    join_late = true                whether a run may begin here after its first round
    column_sums = "secure"          whether sums of columns may leave, for a shared normalisation:
                                    "never", "secure" (in a secure sum alone), "open"
    require_secure = false          whether a run must have secure aggregation
    min_silos_in_sum = 3            fewest silos in a secure sum
    require_private = false         whether a run must have differential privacy of each example
    min_noise = 0.0                 least noise of such a run, in units of its clip
    max_epsilon = inf               that all runs together may spend, at max_delta
    max_delta = 1e-5                of such a run
    max_local_steps = 1000
    max_threads = 16
    max_clients = 1000
    max_parameters = 1000000000     of a model that fafed brings

The first nine limits protect the rows. They do not apply where `share = true`, because there the
experiment brings its own data. The next seven protect what leaves the silo. The last four protect
the machine. They are checked before anything is loaded or built. A silo with `require_private`, a
`min_noise` above 0 or a finite `max_epsilon` refuses every run without privacy.level = "example".
"""

from __future__ import annotations

import json
import math
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypedDict

import torch
from filelock import FileLock, Timeout
from pydantic import Field
from torch import Tensor

from fafed import files, models
from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, exchanges_of_round
from fafed.errors import ConfigError, FafedError
from fafed.experiments.config import Experiment, Part
from fafed.privacy.options import LEAST_SILOS, Privacy
from fafed.silos import payload

LOCK_SECONDS = 60.0  # the longest wait for another process; it needs the budget for milliseconds


class Refusal(ConfigError):
    """The silo's or the server's own file does not allow this experiment."""


class Limits(Part):
    min_batch_size: int = Field(default=32, ge=1)
    min_local_steps: int = Field(default=2, ge=1)
    min_rows: int = Field(default=64, ge=1)
    max_validation: float = Field(default=0.5, ge=0, lt=1, strict=False)
    max_batch_share: float = Field(default=0.5, gt=0, strict=False)
    max_visits_per_run: float = Field(default=1000.0, gt=0, strict=False)
    max_visits_per_day: float = Field(default=2000.0, gt=0, strict=False)
    models_from_given_weights: list[str] = Field(default_factory=list)
    join_late: bool = True
    column_sums: Literal["never", "secure", "open"] = "secure"
    require_secure: bool = False
    min_silos_in_sum: int = Field(default=LEAST_SILOS, ge=LEAST_SILOS)
    require_private: bool = False
    min_noise: float = Field(default=0.0, ge=0, strict=False)
    max_epsilon: float = Field(default=math.inf, gt=0, strict=False)
    max_delta: float = Field(default=1e-5, gt=0, lt=1, strict=False)
    max_local_steps: int = Field(default=1000, ge=1)
    max_threads: int = Field(default=16, ge=1)
    max_clients: int = Field(default=1000, ge=1)
    max_parameters: int = Field(default=10**9, ge=1)

    def check_machine(self, experiment: Experiment, clients: int) -> None:
        """Refuse what would block or kill this silo, before anything is loaded or built."""
        refuse_client_level(experiment)
        self._check_noise(experiment.privacy_options())
        if experiment.privacy_options().secure:
            self._at_least("the number of silos in a secure sum", clients, "min_silos_in_sum")
        elif self.require_secure:
            raise Refusal(
                "this silo takes part only under secure aggregation: its file has require_secure = "
                "true; add [privacy] secure = true to the experiment, or ask who runs the silo"
            )
        self._at_most("local_steps", experiment.local_steps, "max_local_steps")
        self._at_most("threads", experiment.threads, "max_threads")
        self._at_most("the number of clients", clients, "max_clients")
        self._at_most("the model's number of parameters", _size(experiment), "max_parameters")

    def _check_noise(self, options: Privacy) -> None:
        given = self.model_dump(include={"require_private", "min_noise", "max_epsilon"})
        asked = {n: v for n, v in given.items() if v != type(self).model_fields[n].default}
        if not asked:
            return
        if options.level is None:
            name, value = next(iter(asked.items()))
            raise Refusal(
                "this silo takes part only in runs with differential privacy of each example: its "
                f"file has {name} = {json.dumps(value)}; add [privacy] level = 'example' to the "
                "experiment, or ask who runs the silo"
            )
        self._at_least("privacy.noise", options.noise or 0.0, "min_noise")
        self._at_most("privacy.delta", options.delta or 0.0, "max_delta")

    def check_column_sums(self, experiment: Experiment) -> None:
        """Refuse to send sums of columns, if the experiment asks for them."""
        if experiment.data.normalise is None or self.column_sums == "open":
            return
        if self.column_sums == "never" or not experiment.privacy_options().secure:
            raise Refusal(
                f"data.normalise = {experiment.data.normalise!r} sends the sums of this silo's "
                f"columns, and its file has column_sums = {self.column_sums!r}: "
                + ("" if self.column_sums == "never" else "add [privacy] secure = true, ")
                + "leave normalise out, or ask who runs the silo"
            )

    def check_rows(self, experiment: Experiment, algorithm: AnyAlgorithm, rows: int) -> None:
        """Refuse what would show single rows. `rows` is the number of rows to train on. The error
        goes to the server, so it does not tell this number."""
        name = type(algorithm).__name__
        self._at_least("local_steps", experiment.local_steps, "min_local_steps")
        self._at_most("data.validation", experiment.data.validation, "max_validation")
        self._at_most("data.client_test", experiment.data.client_test, "max_validation")
        if rows < self.min_rows:
            raise Refusal(
                "too few of this silo's rows are left to train on: the silo's file has min_rows = "
                f"{self.min_rows}; hold out less, or ask who runs the silo"
            )
        draws = {
            kind
            for exchange in exchanges_of_round(algorithm, opening=True)
            for kind in exchange.draw
        }
        looks: list[tuple[str, int | str]] = [("batch_size", experiment.batch_size)]
        if "anchor" in draws:
            looks.append(("opening_batch_size", _anchor(experiment)))
        if "full" in draws:
            looks.append((f"the batch of {name}'s full gradient", "full"))
        for what, size in looks:
            count = rows if isinstance(size, str) else size
            self._at_least(what, count, "min_batch_size")
            if count > self.max_batch_share * rows:
                raise Refusal(
                    f"{what} = {size!r} is too large a share of this silo's rows: the silo's file "
                    f"has max_batch_share = {self.max_batch_share:g}; take smaller batches"
                    + (" (Mime and Fed-GLOMO have anchor = 'batch')" if size == "full" else "")
                    + ", or ask who runs the silo"
                )

    def check_start(
        self,
        experiment: Experiment,
        algorithm: AnyAlgorithm,
        x0: Tensor,
        found: object,
        buffers: tuple[Tensor, ...],
    ) -> None:
        """Refuse a first message that differs from the initial state of the model and the
        algorithm. The last digits may differ, because processors round differently."""
        if experiment.model.name in self.models_from_given_weights:
            return
        first = exchanges_of_round(algorithm, opening=True)[0]
        begun = first.send(algorithm.init(x0)), buffers
        for name, leaf in tree.flatten(begun).items():
            given = tree.flatten(found)[name].to(leaf.device)
            if given.shape != leaf.shape or not all(
                _close(a, b)
                for a, b in zip(payload.stretches(given), payload.stretches(leaf), strict=True)
            ):
                raise Refusal(
                    f"the first message does not hold what {experiment.model.name!r} begins with "
                    f"by its seed, but something that the server chose ({name}); who runs the "
                    "silo can add the model to models_from_given_weights in the silo's file"
                )

    def _at_least(self, what: str, value: float, limit: str) -> None:
        low = getattr(self, limit)
        if value < low:
            raise Refusal(
                f"{what} = {value:g} is too small for this silo: its file has {limit} = {low:g}; "
                "take more, or ask who runs the silo"
            )

    def _at_most(self, what: str, value: float, limit: str) -> None:
        high = getattr(self, limit)
        if value > high:
            raise Refusal(
                f"{what} = {value:g} is too large for this silo: its file has {limit} = {high:g}; "
                "take less, or ask who runs the silo"
            )


def refuse_client_level(experiment: Experiment) -> None:
    """Refuse an option that would promise something here and do nothing."""
    if experiment.privacy_options().level == "client":
        raise Refusal(
            f"privacy.level = 'client' of {experiment.name} works in simulation and on ranks, not "
            "over silos, where everybody knows who takes part: use level = 'example', or leave it "
            "out (docs/privacy.md)"
        )


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-5)


def _anchor(experiment: Experiment) -> int | str:
    """How many rows the first estimate takes, as in `assemble.sizes`."""
    if experiment.opening_batch_size is not None:
        return experiment.opening_batch_size
    size = experiment.batch_size
    return size if isinstance(size, str) else size * experiment.local_steps


def _size(experiment: Experiment) -> int:
    """The number of parameters of one of fafed's own models, without allocating them."""
    if ":" in experiment.model.name:
        return 0  # own code is on the allow-list: the silo's administrator trusts it
    with torch.device("meta"):
        made = models.build(experiment.model.name, **experiment.model.options)
    return sum(p.numel() for p in (*made.parameters(), *made.buffers()))


class Spent(TypedDict):
    """How often each row was looked at, on average."""

    day: str  # the last one, by UTC
    visits: float  # on that day
    runs: dict[str, float]


class Budget:
    """How often the rows of this silo have been used. The count is on disk, shared by all processes
    of the silo, and written before each use. A restarted silo continues the count."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "budget.json"
        self.inside = threading.Lock()

    def spend(self, run: str, visits: float, limits: Limits) -> None:
        """Count `visits` of each row, or refuse them."""
        lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        try:
            with self.inside, lock.acquire(timeout=LOCK_SECONDS):
                self._spend(run, visits, limits)
        except (Timeout, OSError) as cause:
            raise FafedError(f"{self.path} cannot be used: {cause}") from cause

    def _spend(self, run: str, visits: float, limits: Limits) -> None:
        today = datetime.now(UTC).date().isoformat()
        known = self._read()
        before = known["visits"] if known["day"] == today else 0.0
        spent = {"run": known["runs"].get(run, 0.0) + visits, "day": before + visits}
        for period, total in spent.items():
            limit = getattr(limits, f"max_visits_per_{period}")
            if total > limit:
                raise Refusal(
                    f"the rows of this silo have been looked at as often as they may: its file has "
                    f"max_visits_per_{period} = {limit:g}; ask who runs the silo"
                )
        runs = known["runs"] | {run: spent["run"]}
        content = {"day": today, "visits": spent["day"], "runs": runs}
        files.write(self.path, [json.dumps(content).encode()], private=True)

    def _read(self) -> Spent:
        if not self.path.is_file():
            return {"day": "", "visits": 0.0, "runs": {}}
        try:
            known: Spent = json.loads(self.path.read_text("utf-8"))
            good = isinstance(known["visits"], float) and isinstance(known["runs"], dict)
        except (ValueError, TypeError, KeyError):
            good = False
        if not good:  # without the file, the full budget could be spent again
            raise FafedError(f"{self.path} is damaged: restore it, or delete it to count from zero")
        return known
