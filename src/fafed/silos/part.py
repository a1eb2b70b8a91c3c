"""A silo's part in a run: what the server told it, its data, its model, and what may leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from fafed.core.algorithm import AnyAlgorithm
from fafed.data.checks import check_labels, check_numbers
from fafed.data.normalise import Normalisation
from fafed.data.sources.base import Source
from fafed.engines.wire import Wiring
from fafed.errors import ConfigError
from fafed.experiments import assemble, model_options
from fafed.experiments.config import Experiment
from fafed.objectives.module import Model
from fafed.silos import column_sums, compressed, memory, messages
from fafed.silos.limits import Refusal
from fafed.silos.messages import Facts, Refused
from fafed.silos.private import Ledger, PrivateSilo
from fafed.silos.site import SiloData, Site
from fafed.training.evaluation import Evaluator


class RunPlan(NamedTuple):
    """What the server told this silo about the run."""

    experiment: Facts
    client: int
    clients: int
    normalisation: Normalisation | None = None  # of the inputs; None: not known yet, or none


@dataclass(eq=False)
class Part:
    """A silo's part in a run, loaded and checked."""

    plan: RunPlan
    experiment: Experiment
    source: Source
    goal: Model
    evaluator: Evaluator | None  # of the numbers that may leave; None: none may
    sends: list[str]
    test_rows: int
    private: PrivateSilo | None = None  # with privacy.level = "example"
    # the last one asked for, by the number of steps of an epoch: memory must not fill up
    _algorithms: dict[int, AnyAlgorithm] = field(default_factory=dict)
    _wirings: dict[int, Wiring | None] = field(default_factory=dict)

    @property
    def spent(self) -> Facts:
        """What the server learns of the silo's epsilon."""
        return self.private.told() if self.private is not None else {}

    def algorithm(self, facts: Facts) -> AnyAlgorithm:
        epoch_steps = _epoch_steps(facts)
        if epoch_steps not in self._algorithms:
            made = self.experiment.bound_algorithm(epoch_steps, self.goal.shapes)
            self._algorithms = {epoch_steps: made}
        return self._algorithms[epoch_steps]

    def wiring(self, facts: Facts) -> Wiring | None:
        """How the run compresses its messages. Secure sums have their own way."""
        epoch_steps = _epoch_steps(facts)
        if epoch_steps not in self._wirings and not self.experiment.privacy_options().secure:
            made = compressed.wiring_of(
                self.experiment, self.algorithm(facts), self.goal.x0, self.plan.clients
            )
            self._wirings = {epoch_steps: made}
        return self._wirings.get(epoch_steps)


def _epoch_steps(facts: Facts) -> int:
    return messages.number(facts, "epoch_steps", whole=True)


def load(run: str, plan: RunPlan, experiment: Experiment, site: Site, ledger: Ledger) -> Part:
    """Load what a run needs, and check it."""
    torch.set_num_threads(experiment.threads)
    if not site.data.share:
        site.limits.check_column_sums(experiment)
    found = site.load(experiment, plan.client, plan.clients, plan.normalisation)
    model_options.check_inputs(experiment, found.source)
    model_options.check_outputs(experiment, found.source, plan.client)
    goal = assemble.model(experiment, text=found.text)
    memory.park(goal, site.folder)
    source = found.source.to(goal.x0.device, goal.dtype)
    (batch,) = source.batches(source.draw(("round",), plan.client, 0, 1))
    goal.probe(batch)
    check_labels(source, [plan.client], goal.classes, goal.averaged.ignored)
    check_numbers(source, [plan.client], goal.usable)
    sends = site.sends(experiment, found)
    private = None
    if experiment.privacy_options().level == "example":
        try:
            private = PrivateSilo(
                run, experiment, goal, source, plan.client, ledger=ledger, limits=site.limits
            )
        except ConfigError as cause:  # it names settings and the number of rows, which are public
            raise Refusal(str(cause)) from cause
    evaluator = _evaluator(experiment, goal, found, sends)
    return Part(plan, experiment, source, goal, evaluator, sends, found.test_rows, private)


def _evaluator(
    experiment: Experiment, goal: Model, found: SiloData, sends: Sequence[str]
) -> Evaluator | None:
    """What computes the numbers that leave, tried once."""
    if not sends or found.test is None:
        return None
    metrics = assemble.chosen(experiment, text=found.text)
    sent = {name: metric for name, metric in metrics.items() if name in sends}
    made = Evaluator(goal, {"test": found.test}, sent, workers=1, threads=experiment.threads)
    made.check()
    return made


def plan_of(facts: Facts) -> RunPlan:
    client = messages.number(facts, "client", whole=True)
    clients = messages.number(facts, "clients", whole=True)
    experiment = facts.get("experiment")
    if client >= clients or not isinstance(experiment, dict):
        raise Refused(f"client {client} of {clients} and its experiment make no plan")
    return RunPlan(experiment, client, clients, column_sums.told(facts))
