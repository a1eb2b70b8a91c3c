"""What dishonest clients do to a model, and which bounds on their messages help.

    python -m studies.privacy.attackers [--seeds 3]
    python -m studies.privacy.attackers --render-only

FedAvg on the data of configs/moderate.toml. One or three of its ten clients lie in every round:
they scale their message, turn its sign, or have learned from wrong labels. Messages have no bound;
that of secure sums; or that of differential privacy of a client, with next to no noise.

The results are in attackers.json, and in docs/privacy.md. Each one is kept as soon as it is there,
and is not measured again. About 10 minutes on one idle core.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fafed import Privacy
from fafed.core import tree
from fafed.core.algorithm import Exchange, HasX
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.tree import Tree
from fafed.engines.answered import AnsweredMean
from fafed.engines.backends.base import Found
from fafed.engines.backends.loop import Loop
from fafed.engines.simulation import Simulation
from fafed.engines.states import ClientStates
from fafed.experiments import assemble
from fafed.experiments.config import Experiment
from fafed.training.loop import Diverged, Run
from studies.markdown import replace_part, table
from studies.privacy.measurement import CONFIGS
from studies.privacy.page import PAGE

RESULTS = Path(__file__).parent / "attackers.json"
COMMAND = "python -m studies.privacy.attackers"
ETA, CLIP = 0.3, 1.0
ATTACKS: dict[str, float | None] = {  # what a message is multiplied by; None: wrong labels
    "none": 1.0,
    "times a million": 1e6,
    "times 5": 5.0,
    "sign turned": -1.0,
    "sign turned, times 5": -5.0,
    "wrong labels": None,
}
BOUNDS: dict[str, Privacy] = {
    "no bound": Privacy(),
    "secure sums": Privacy(secure=True),
    "clipped": Privacy(level="client", noise=1e-6, clip=CLIP, delta=1e-3),
}
BAD = (1, 3)  # of ten clients


class Hostile(Loop):
    """Some clients multiply what they send."""

    bad: Collection[int] = ()
    factor = 1.0

    def work(
        self,
        exchange: Exchange,
        down: HasX,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
        states: ClientStates,
        mean: AnsweredMean | None = None,
    ) -> Found:
        def lies(grad: Grad, down: HasX, local: Tree, batches: Batches) -> tuple[Tree, Tree]:
            local, message = exchange.client(grad, down, local, batches)
            return local, tree.map(lambda leaf: self.factor * leaf, message)

        used = exchange._replace(client=lies) if group[0] in self.bad else exchange
        return super().work(used, down, buffers, group, step, states, mean)


def attacked(run: Run, attack: str, bad: Collection[int]) -> Run:
    """The same run with these clients hostile. Their messages are differences, as FedAvg's are."""
    engine = run.engine
    assert isinstance(engine, Simulation)
    factor = ATTACKS[attack]
    if factor is None:
        source: Any = engine.task.source
        inputs, targets = source.pool[0], source.pool[1].clone()  # other runs share the pool
        classes = int(targets.max()) + 1
        for client in bad:
            rows = source.parts[client]
            targets[rows] = (targets[rows] + 1) % classes
        source.pool = inputs, targets
    backend = Hostile(engine.task)
    backend.bad, backend.factor = bad, 1.0 if factor is None else factor
    engine.backend = backend
    return run


def measured(attack: str, bound: str, bad: int, seed: int) -> float | None:
    """The accuracy on the test set after all rounds; None if the run diverged."""
    found = Experiment.read(CONFIGS / "moderate.toml").with_algorithm("fedavg", eta=ETA)
    found = found.changed(seed=seed, engine="loop", privacy=BOUNDS[bound].to_dict())
    prepared = assemble.prepare(found)
    try:
        *_, last = attacked(prepared.run, attack, range(bad))
    except Diverged:
        return None
    return round(last.test["accuracy"], 4)


def read() -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {}
    if RESULTS.is_file():
        found = json.loads(RESULTS.read_text("utf-8"))
    return found


def render(results: dict[str, dict[str, float | None]], page: str) -> str:
    """The page with its part. results: label -> seed -> accuracy."""
    if not results:
        return replace_part(page, "attackers", f"Not measured yet: `{COMMAND}`.\n")
    plan = Experiment.read(CONFIGS / "moderate.toml")
    head = ["what they do", "how many lie", *BOUNDS]
    rows = [
        [attack, *([bad] if attack != "none" else [0]), *cells]
        for attack in ATTACKS
        for bad in (BAD if attack != "none" else BAD[:1])
        if (cells := [_cell(results.get(_label(attack, bound, bad), {})) for bound in BOUNDS])
    ]
    seeds = sorted({int(seed) for own in results.values() for seed in own})
    text = (
        f"Test accuracy on Fashion-MNIST, moderate heterogeneity, after {plan.rounds} rounds of "
        f"{plan.local_steps} local steps of FedAvg with eta = {ETA:g}, {plan.data.clients} "
        f"clients, b = {plan.batch_size}, clip = {CLIP:g}: mean and standard deviation over the "
        f"seeds {seeds[0]} to {seeds[-1]}. Wrong labels are those of the next class. `{COMMAND}` "
        "repeats it.\n\n"
    )
    return replace_part(page, "attackers", text + table(head, rows, right=True))


def _cell(own: dict[str, float | None]) -> str:
    found = [value for value in own.values() if value is not None]
    if not own:
        return "not measured"
    if len(found) < len(own):
        return "diverges"
    spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.3f}{spread}"


def _label(attack: str, bound: str, bad: int) -> str:
    return f"{attack}, {bound}, {0 if attack == 'none' else bad}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    logging.getLogger("fafed").setLevel(logging.ERROR)  # it would say that it protects nobody
    jobs = [
        (attack, bound, bad, seed)
        for seed in range(1, options.seeds + 1)
        for attack in ATTACKS
        for bad in (BAD if attack != "none" else BAD[:1])
        for bound in BOUNDS
    ]
    for attack, bound, bad, seed in () if options.render_only else jobs:
        results = read()
        own = results.setdefault(_label(attack, bound, bad), {})
        if str(seed) not in own:
            own[str(seed)] = measured(attack, bound, bad, seed)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            print(f"{_label(attack, bound, bad)}, seed {seed}: {own[str(seed)]}", flush=True)
    PAGE.write_text(render(read(), PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
