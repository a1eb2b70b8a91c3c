"""`fafed.compare`: algorithms x seeds on your own model and clients."""

from __future__ import annotations

import inspect
import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from fafed.algorithms import ALGORITHMS
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.arguments import checked
from fafed.core.run_data import RunData
from fafed.core.words import named
from fafed.errors import ConfigError
from fafed.experiments.api import start
from fafed.experiments.once import each_warning_once
from fafed.experiments.training import Result, Training
from fafed.report import write
from fafed.report.static import write_figures
from fafed.report.tables import rich_table
from fafed.training.build import check_algorithm
from fafed.training.loop import Diverged

log = logging.getLogger("fafed")
WIDTH = 100  # characters of the printed table


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs of a comparison. It prints as a table, mean and spread over the seeds."""

    results: dict[tuple[str, int], Result]  # of each algorithm and seed
    runs: list[RunData]  # the same, as reports take them
    finished: bool  # False: Ctrl-C came before the last run

    def frame(self) -> Any:
        """A pandas.DataFrame with one row per algorithm, seed and round (needs pandas)."""
        try:
            import pandas
        except ImportError as cause:
            raise ImportError("Comparison.frame needs pandas: pip install pandas") from cause
        return pandas.DataFrame(
            {"algorithm": name, "seed": seed, **record.flat()}
            for (name, seed), result in self.results.items()
            for record in result.history
        )

    def figures(self, folder: str | Path) -> list[Path]:
        """Write the pictures of the report as SVG and PNG."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return write_figures(self.runs, path)

    def report(
        self, folder: str | Path, *, title: str | None = None, target: float | None = None
    ) -> Path:
        """Write report.html, one file that needs no network, and the pictures. `target` is a value
        to reach, such as an accuracy of 0.9. Return the path of the page."""
        return write(self.runs, Path(folder), title=title or "Comparison", target=target)

    def __repr__(self) -> str:
        if not any(run.records for run in self.runs):
            return "Comparison: no round is finished"
        console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_jupyter=False)
        with console.capture() as told:
            console.print(rich_table(self.runs))
        diverged = [f"{run.name}: {run.failure}" for run in self.runs if run.failure]
        return "\n".join([told.get().rstrip(), *diverged])


_OPTIONS = set(inspect.signature(start).parameters) - {"algorithm", "seed"}


@named(further=_OPTIONS)
def compare(
    model: nn.Module | Callable[[int], nn.Module],
    clients: Sequence[object],
    algorithms: Mapping[str, AnyAlgorithm] | Sequence[AnyAlgorithm],
    *,
    rounds: int,
    seeds: Sequence[int] = (1, 2, 3),
    folder: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Train with each algorithm and each seed, one run after another.

        found = fafed.compare(model, clients, [fafed.FedAvg(eta=0.1), fafed.FAFED(eta=0.01)],
                              rounds=50, test=test, metrics={"accuracy": fafed.metrics.accuracy})
        print(found)                      # a table
        found.frame()                     # pandas: a row per algorithm, seed and round
        found.report("report")            # the page that `fafed report` writes

    model: a module, which every run begins with, or a function of the seed that makes one.
    algorithms: objects such as fafed.FedAvg(eta=0.1): a list, or name -> object.
    seeds: one run for each. All algorithms see the same batches with the same seed.
    folder: has a folder for each run. The same call goes on where it was stopped. Without it
        nothing is written.
    rounds and all other options: those of `fafed.start`, the same for every run.

    A run that diverges does not stop the others. Ctrl-C returns what is finished.
    """
    named = _named(algorithms)
    if not isinstance(seeds, Sequence | range) or isinstance(seeds, str):
        raise ConfigError(f"seeds must be a list of seeds, such as (1, 2, 3), got {seeds!r}")
    if not seeds:
        raise ConfigError("seeds is empty: give at least one, such as seeds=(1, 2, 3)")
    if len(set(map(str, seeds))) < len(seeds):
        raise ConfigError(f"seeds names one twice, got {seeds!r}: each seed is one run")
    for seed in seeds:
        checked("seed", seed)
    results: dict[tuple[str, int], Result] = {}
    runs: list[RunData] = []

    def add(name: str, run: Training, seed: int, failure: str | None = None) -> None:
        data = run.data(failure)
        config = data.config | {"algorithm": data.config["algorithm"] | {"name": name}}
        runs.append(replace(data, name=f"{name}-seed{seed}", config=config))
        results[name, seed] = run.result()

    def begins(seed: int) -> nn.Module:
        return model if isinstance(model, nn.Module) or not callable(model) else model(seed)

    with each_warning_once():
        if len(named) > 1:  # what is wrong with the last one comes before hours of work
            for algorithm in named.values():
                with torch.random.fork_rng():
                    quietly = options | {"track": (), "on_record": ()}
                    start(begins(seeds[0]), clients, algorithm, rounds=rounds, **quietly)
        for name, algorithm, seed in ((n, a, s) for n, a in named.items() for s in seeds):
            own = None if folder is None else Path(folder) / _file_name(f"{name}-seed{seed}")
            run = start(
                begins(seed), clients, algorithm, rounds=rounds, seed=seed, folder=own, **options
            )
            try:
                for _ in run:
                    pass
            except Diverged as error:
                add(name, run, seed, str(error))
                continue
            except KeyboardInterrupt:
                if run.impatient:
                    raise
                log.warning("interrupted: %s-seed%d: %r", name, seed, run)
                add(name, run, seed)
                return Comparison(results, runs, finished=False)
            add(name, run, seed)
    return Comparison(results, runs, finished=True)


def _named(
    algorithms: Mapping[str, AnyAlgorithm] | Sequence[AnyAlgorithm],
) -> dict[str, AnyAlgorithm]:
    """Name -> algorithm. In a list, the second FedAvg is fedavg-2."""
    if isinstance(algorithms, Mapping):
        found = dict(algorithms)
    else:
        if not isinstance(algorithms, Sequence):
            algorithms = [algorithms]  # one, as for `fafed.train`
        found = {}
        known = {kind: name for name, kind in ALGORITHMS.items()}
        for algorithm in algorithms:
            name = known.get(type(algorithm), type(algorithm).__name__)
            taken = [one for one in found if one == name or re.fullmatch(rf"{name}-\d+", one)]
            found[f"{name}-{len(taken) + 1}" if taken else name] = algorithm
    for algorithm in found.values():
        check_algorithm(algorithm)
    if not found:
        raise ConfigError("algorithms is empty: give at least one, such as [fafed.FedAvg(eta=0.1)]")
    return found


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)
