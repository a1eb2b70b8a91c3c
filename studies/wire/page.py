"""The part of docs/wire.md that comes from the study."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fafed.experiments.config import Experiment
from studies.markdown import replace_part, table
from studies.wire.measurement import CONFIGS, EXPERIMENT, ROOT, Curve, Plan, Row

PAGE = ROOT / "docs" / "wire.md"
NAMES = {"fafed": "FAFED", "fedavg": "FedAvg", "fedadam": "FedAdam"}
MB = 10**6


def render(plan: Plan, results: Mapping[str, Curve], page: str) -> str:
    measured = [row for row in plan.rows if curves(plan, results, row)]
    if not measured:
        return replace_part(page, "accuracy", "Not run yet: `python -m studies.wire`.\n")
    base = Experiment.read(CONFIGS / f"{EXPERIMENT}.toml")
    seeds = ", ".join(map(str, plan.seeds))
    text = (
        f"Fashion-MNIST, {base.data.clients} clients in two groups of five classes, the paper's "
        f"network, {base.rounds} rounds of {base.local_steps} local steps with b = "
        f"{base.batch_size}. Settings are those that [the study of the paper](paper.md) chose for "
        f"whole messages. Nothing was chosen again. Seeds {seeds}. `python -m studies.wire` "
        "repeats it.\n\n"
        "The end is the mean test accuracy of the last "
        f"{plan.tail} evaluations: mean and standard deviation over the seeds. The other columns "
        "are the accuracy at the last evaluation before all clients together have sent so many "
        "MB. A run that ends before them has its last evaluation there. Bytes per number are those "
        "of a round after the first, divided by the model's numbers. What comes down is not "
        "compressed in any row: 12 bytes per number for FAFED, 4 for the others.\n\n"
    )
    budgets = [f"{budget} MB" for budget in plan.budgets]
    head = ["method", "messages", "bytes per number", "MB up", "at the end", *budgets]
    numbers = _numbers(base)
    rows = [_cells(plan, row, curves(plan, results, row), numbers) for row in measured]
    text += table(head, rows) + "\n"
    text += "".join(
        f"- {sentence}\n" for name in NAMES if (sentence := _holds(plan, results, name))
    )
    missing = sum(f"{row.label} {seed}" not in results for row in plan.rows for seed in plan.seeds)
    if missing:
        text += f"\n{missing} of {len(plan.rows) * len(plan.seeds)} runs are not run yet. A row "
        text += "whose seeds are not all there says how many it has.\n"
    return replace_part(page, "accuracy", text)


def curves(plan: Plan, results: Mapping[str, Curve], row: Row) -> list[Curve]:
    found = [results.get(f"{row.label} {seed}") for seed in plan.seeds]
    return [curve for curve in found if curve is not None]


def end(plan: Plan, curve: Curve) -> float:
    """The accuracy at the end; 0 if the run diverged."""
    if curve.failure is not None or not curve.accuracy:
        return 0.0
    return statistics.fmean(curve.accuracy[-plan.tail :])


def within(curve: Curve, budget: int) -> float | None:
    """The accuracy before so many bytes are sent. None if there is no evaluation before."""
    if curve.failure is not None:
        return 0.0
    pairs = zip(curve.bytes_up, curve.accuracy, strict=True)
    seen = [accuracy for sent, accuracy in pairs if sent <= budget]
    return seen[-1] if seen else None


def per_round(curve: Curve) -> float:
    """Bytes that all clients send in a round, without the first rounds."""
    if len(curve.round) < 2:
        return 0.0
    return (curve.bytes_up[-1] - curve.bytes_up[0]) / (curve.round[-1] - curve.round[0])


def _cells(plan: Plan, row: Row, found: list[Curve], numbers: int) -> list[str]:
    count = "" if len(found) == len(plan.seeds) else f" ({len(found)} of {len(plan.seeds)} seeds)"
    at = [[within(curve, budget * MB) for curve in found] for budget in plan.budgets]
    up = found[0].bytes_up[-1] / MB if found[0].bytes_up else 0.0
    return [
        NAMES[row.algorithm],
        messages(row) + count,
        f"{per_round(found[0]) / numbers:.2f}",
        f"{up:.0f}",
        _spread([end(plan, curve) for curve in found]),
        *(_spread([one for one in column if one is not None]) for column in at),
    ]


def messages(row: Row) -> str:
    """How the messages are sent, in words."""
    up, share = row.wire.get("up"), row.wire.get("share")
    words = {
        None: "whole",
        "bf16": "bf16",
        "int8": "int8",
        "topk": f"top {100 * share:g} %" if share else "topk",
    }[up]
    return f"{words}, v in 8 bits" if row.settings.get("v_bits") == 8 else words


def _holds(plan: Plan, results: Mapping[str, Curve], name: str) -> str:
    """Which messages are the smallest with the accuracy of whole ones."""
    rows = [row for row in plan.rows if row.algorithm == name]
    found = {row.label: curves(plan, results, row) for row in rows}
    if not rows or any(len(own) < len(plan.seeds) for own in found.values()):
        return ""
    whole = statistics.fmean(end(plan, curve) for curve in found[rows[0].label])
    ends = {label: statistics.fmean(end(plan, c) for c in own) for label, own in found.items()}
    good = [row for row in rows if ends[row.label] >= whole - plan.holds]
    best = min(good, key=lambda row: per_round(found[row.label][0]))
    share = per_round(found[best.label][0]) / per_round(found[rows[0].label][0])
    return (
        f"{NAMES[name]}: the smallest messages whose accuracy is at most {plan.holds:g} below that "
        f"of whole ones ({whole:.3f}) are {messages(best)!r}: {ends[best.label]:.3f} with "
        f"{100 * share:.0f} % of the bytes up."
    )


def _numbers(base: Experiment) -> int:
    from fafed import models

    made = models.build(base.model.name, seed=0, **base.model.options)
    return base.data.clients * sum(p.numel() for p in made.parameters())


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"
