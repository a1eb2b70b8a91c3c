"""Differential privacy of each example on a silo: its own noise, and what it has spent.

What has left the silo counts, whatever the server makes of it: an answer that came too late, or a
round that was made again. So the silo counts the batches of all its answers, in `privacy.json` in
its folder. The file is written before an answer leaves, and nothing makes its numbers smaller. It
covers all runs, because all of them use the same rows.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from fafed import files
from fafed.data.sources.base import Draws, Source
from fafed.data.sources.poisson import Poisson, sampling_rates
from fafed.engines.private import Private
from fafed.errors import FafedError
from fafed.experiments import assemble
from fafed.experiments.config import Experiment
from fafed.objectives.module import Model
from fafed.privacy.accounting import Released, Uses, epsilon_of
from fafed.privacy.secret import Secret
from fafed.silos.limits import LOCK_SECONDS, Limits, Refusal
from fafed.training.budget import Budget
from fafed.training.cohort import Cohort
from fafed.training.private import check_examples, example_budget, private_gradients

FILE = "privacy.json"
LARGEST = 1e300  # JSON has no infinity

Batches = Counter[Released]


class Ledger:
    """What a silo has released, run by run. The file is shared by all processes of the silo."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.inside = threading.Lock()

    def of_run(self, run: str) -> Batches:
        return self._read().get(run, Counter())

    def of_others(self, run: str) -> Batches:
        return _sum({name: own for name, own in self._read().items() if name != run})

    def add(self, run: str, batches: Batches, delta: float, most: float, limits: Limits) -> None:
        """Count these batches, or refuse to release them. most: the run's own limit of epsilon, at
        this delta."""
        lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        try:
            with self.inside, lock.acquire(timeout=LOCK_SECONDS):
                known = self._read()
                known[run] = known.get(run, Counter()) + batches
                if epsilon_of(known[run], delta) > most:
                    raise Refusal(
                        f"this answer would pass privacy.max_epsilon = {most:g} of the experiment: "
                        "this silo has answered as often as it may"
                    )
                check_total(_sum(known), limits)
                self._write(known)
        except (Timeout, OSError) as cause:
            raise FafedError(f"{self.path} cannot be used: {cause}") from cause

    def _write(self, known: Mapping[str, Batches]) -> None:
        runs = {
            run: [[*one, count] for one, count in sorted(own.items())] for run, own in known.items()
        }
        text = json.dumps(files.sealed({"runs": runs}))
        files.write(self.path, [text.encode()], private=True)

    def _read(self) -> dict[str, Batches]:
        if not self.path.is_file():
            return {}
        try:
            runs = files.unsealed(json.loads(self.path.read_text("utf-8")))["runs"]
            return {
                run: Counter({Released(float(r), float(s), int(k)): int(n) for r, s, k, n in rows})
                for run, rows in runs.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as cause:
            raise FafedError(
                f"{self.path} is damaged: restore it. Without it, this silo would forget what it "
                "has spent of max_epsilon"
            ) from cause


def check_total(batches: Batches, limits: Limits) -> None:
    """Refuse what passes the silo's own limit, over all runs."""
    total = epsilon_of(batches, limits.max_delta)
    if total > limits.max_epsilon:
        raise Refusal(
            f"all runs together would spend epsilon = {total:.3g} of this silo's rows: its file "
            f"has max_epsilon = {limits.max_epsilon:g} (at delta = {limits.max_delta:g}); use more "
            "noise, fewer rounds or a smaller privacy.max_epsilon, or ask who runs the silo"
        )


def plan(experiment: Experiment, goal: Model, examples: Sequence[int]) -> Budget:
    """What silos with so many examples will spend of their rows' privacy. It needs no data."""
    options = experiment.privacy_options()
    check_examples(options, goal, examples)
    sizes = assemble.sizes(experiment)
    batch, anchor = sizes["batch_size"], sizes["anchor_size"]
    return example_budget(
        options,
        experiment.bound_algorithm(1, goal.shapes),
        goal,
        [sampling_rates(n, batch, batch if anchor is None else anchor) for n in examples],
        Cohort(len(examples), participation=experiment.participation, seed=experiment.seed),
        rounds=experiment.rounds,
        local_steps=experiment.local_steps,
    )


class PrivateVisit:
    """One visit: noise and samples that were never used before."""

    def __init__(self, silo: PrivateSilo, gradients: Private, source: Poisson) -> None:
        self.silo = silo
        self.gradients = gradients
        self.source = source

    def looks(self, draws: Draws) -> int:
        """How many rows these draws have. It is the expected number, and says nothing of them."""
        return sum(int(one.rows[..., -1].sum()) for one in draws if one)

    def spend(self, draws: Draws) -> None:
        """Count what was computed, before any of it leaves."""
        kinds = zip(Draws._fields, draws, strict=True)
        kind_of = {int(key): kind for kind, one in kinds if one for key in one.key}
        uses = Counter(
            Released(self.silo.rates[kind_of[key]], self.silo.noise, count)
            for key, count in self.gradients.looks.items()
        )
        self.silo.spend(uses)


class PrivateSilo:
    """A silo's part in a run with privacy.level = "example"."""

    def __init__(
        self,
        run: str,
        experiment: Experiment,
        goal: Model,
        source: Source,
        client: int,
        *,
        ledger: Ledger,
        limits: Limits,
    ) -> None:
        options = experiment.privacy_options()
        assert options.noise is not None
        assert options.delta is not None
        self.run, self.ledger, self.limits = run, ledger, limits
        self.noise, self.delta = options.noise, options.delta
        self.most = options.max_epsilon or float("inf")
        # every silo is planned as this one: a silo knows only its own number of examples
        clients = len(source.examples)
        self.budget = plan(experiment, goal, [source.examples[client]] * clients)
        self.gradients, self.source = private_gradients(
            options,
            goal,
            source,
            client,
            rounds=experiment.rounds,
            local_steps=experiment.local_steps,
            seed=experiment.seed,
        )
        self.rates = self.source.rates(client)
        self.rounds = self.budget.affordable(experiment.rounds)
        if experiment.participation != 1:
            self.rounds = self.budget.accountant.rounds_of_clients(self.rounds)[client]

    def plan(self) -> Batches:
        """What the whole run will release."""
        first, later = self.budget.accountant.costs
        if not self.rounds:
            return Counter()
        return self._released(first) + _times(self._released(later), self.rounds - 1)

    def check_plan(self) -> None:
        """Refuse a run whose plan passes the silo's own limit. Later, each answer is checked."""
        others, own = self.ledger.of_others(self.run), self.ledger.of_run(self.run)
        check_total(others + (own | self.plan()), self.limits)

    def visit(self, exchange: int) -> PrivateVisit:
        """exchange: its place in the round."""
        found = self.fresh()
        found.gradients.exchange = exchange
        return found

    def fresh(self) -> PrivateVisit:
        secret = Secret()
        return PrivateVisit(
            self, self.gradients.for_silo(secret.stream), self.source.drawn_by(secret.uniform)
        )

    def spend(self, batches: Batches) -> None:
        self.ledger.add(self.run, batches, self.delta, self.most, self.limits)

    def told(self) -> dict[str, float]:
        """What the server learns: epsilon of this run so far, and after one more round. Both follow
        from the plan and from how often the silo was asked."""
        own = self.ledger.of_run(self.run)
        first, later = self.budget.accountant.costs
        more = own + self._released(later if own else first)
        return {
            "epsilon": min(epsilon_of(own, self.delta), LARGEST),
            "next_epsilon": min(epsilon_of(more, self.delta), LARGEST),
        }

    def _released(self, uses: Uses) -> Batches:
        return self.budget.accountant.released(uses, self.rates)


def _sum(runs: Mapping[str, Batches]) -> Batches:
    total: Batches = Counter()
    for own in runs.values():
        total += own
    return total


def _times(batches: Batches, times: int) -> Batches:
    return Counter({one: times * count for one, count in batches.items()})
