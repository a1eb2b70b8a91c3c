"""The part of docs/privacy.md that comes from the study."""

from __future__ import annotations

import statistics
from typing import Any

from fafed.experiments.config import Experiment
from studies.markdown import replace_part, table
from studies.privacy.measurement import CONFIGS, DATA, EPSILONS, METHODS, PRIVACY, ROOT

PAGE = ROOT / "docs" / "privacy.md"
NAMES = {
    "fedavg": "FedAvg",
    "fedadam": "FedAdam",
    "scaffold": "SCAFFOLD",
    "fafed": "FAFED",
    "fafed combined": "FAFED, `combine`",
}


def render(results: dict[str, Any], page: str) -> str:
    if not results:
        return replace_part(page, "accuracy", "Not measured yet: `python -m studies.privacy`.\n")
    found = {(e["data"], e["method"], e["epsilon"]): e for e in results["measured"]}
    plan = Experiment.read(CONFIGS / "high.toml")
    first, last = results["seeds"]["measuring"][0], results["seeds"]["measuring"][-1]
    text = (
        f"Test accuracy on Fashion-MNIST after {plan.rounds} rounds of {plan.local_steps} local "
        f"steps, {plan.data.clients} clients, a network with one layer of 32 units, b = "
        f"{plan.batch_size}, clip = {PRIVACY['clip']:g}, delta = {PRIVACY['delta']:g}. Mean and "
        f"standard deviation over the seeds {first} to {last}. Each cell has its own step size: "
        "the best of five on held-out data, with another seed. Choosing it is not counted in "
        "epsilon. The grid had three values at first. It was widened for every method after a "
        "first pass, because many of the best values were at its edge. "
        f"{_at_edge(results)} of {len(results['measured'])} cells still have their best value "
        "there. Without noise nothing is clipped either, and batches go through the data in "
        "epochs, so the last column differs from the others in more than the noise. "
        "`python -m studies.privacy` repeats it.\n\n"
    )
    for data in DATA:
        head = [f"{data} heterogeneity", *(f"epsilon {e:g}" if e else "no noise" for e in EPSILONS)]
        rows = [[NAMES[m], *(_cell(found.get((data, m, e))) for e in EPSILONS)] for m in METHODS]
        text += table(head, rows) + "\n"
    wins = [
        (data, e)
        for data in DATA
        for e in EPSILONS
        if e and _mean(found[data, "fafed combined", e]) > _mean(found[data, "fafed", e])
    ]
    cells = len(DATA) * (len(EPSILONS) - 1)
    text += (
        f"FAFED with one combined query is better than with two gradients in {len(wins)} of the "
        f"{cells} cells with noise. The two also differ in v, which collects squares of m in one "
        "and of noisy gradients in the other. What each of these differences contributes was not "
        "measured.\n"
    )
    return replace_part(page, "accuracy", text)


def _at_edge(results: dict[str, Any]) -> int:
    """Cells whose step size is the smallest or the largest that was tried."""
    steps = [(e["step"], [value for value, _ in e["trials"]]) for e in results["measured"]]
    return sum(step in (min(tried), max(tried)) for step, tried in steps)


def _mean(entry: dict[str, Any]) -> float:
    return statistics.fmean(entry["accuracy"])


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    return f"{_mean(entry):.3f} ± {statistics.stdev(entry['accuracy']):.3f}"
