"""The picture: accuracies, and costs relative to FedAvg."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fafed.report.palette import LIGHT
from fafed.report.static import save, styled
from studies.which_algorithm.results import SKEWED, Results, class_name

SETTINGS = (("iid", "alike", "o"), ("skewed", "skewed", "s"), ("partial", "partial", "D"))
COSTS = (("rounds", "rounds", "o"), ("gradients", "gradients", "s"), ("bytes", "bytes", "D"))
DODGE = (0.2, 0.0, -0.2)  # so that equal values do not hide each other


def draw(r: Results, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    names = r.ranked("skewed")[::-1]
    with styled():
        picture = Figure(figsize=(8, 9.2), layout="constrained")
        left, right = picture.subplots(1, 2, sharey=True, width_ratios=(1.3, 1))
        for i, (part, label, marker) in enumerate(SETTINGS):
            rows = [(y, r.accuracy(part, n)) for y, n in enumerate(names) if n in r.parts[part]]
            left.errorbar(
                [stat.mean for _, stat in rows],
                [y + DODGE[i] for y, _ in rows],
                xerr=[stat.std or 0 for _, stat in rows],
                label=label,
                **_dots(i, marker),
            )
        for i, (axis, label, marker) in enumerate(COSTS):
            base = r.cost("skewed", "fedavg", axis)
            ratios = [(y, r.cost("skewed", n, axis) / base) for y, n in enumerate(names)]
            shown = [(y + DODGE[i], ratio) for y, ratio in ratios if math.isfinite(ratio)]
            xs, ys = [ratio for _, ratio in shown], [y for y, _ in shown]
            right.errorbar(xs, ys, label=label, **_dots(i + 3, marker))
        for y, name in enumerate(names):
            if not r.parts["skewed"][name]["to_target"]:
                words, box = "not reached by every seed", {"fc": LIGHT.background, "ec": "none"}
                right.text(1.1, y, words, fontsize=8, va="center", color=LIGHT.muted, bbox=box)
        left.set_title("Test accuracy at the end")
        left.set_yticks(range(len(names)), [class_name(name) for name in names])
        left.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        right.set_title(f"Cost to {r.target(SKEWED)}, skewed; FedAvg = 1")
        right.set_xscale("log", base=2)
        right.set_xlim(left=0.44)
        right.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 4, 8]))
        right.xaxis.set_minor_locator(NullLocator())
        right.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        right.axvline(1, color=LIGHT.muted, linewidth=0.8)
        for panel in (left, right):
            panel.set_ylim(-0.7, len(names) - 0.3)
            panel.tick_params(length=0)
            panel.set_axisbelow(True)
            place = {"loc": "lower left", "bbox_to_anchor": (0, -0.085), "ncols": 3}
            panel.legend(**place, frameon=False, handletextpad=0.2, columnspacing=1.2)
        path.parent.mkdir(exist_ok=True)
        save(picture, [path])


def _dots(hue: int, marker: str) -> dict[str, Any]:
    return {"fmt": marker, "color": LIGHT.hues[hue], "markersize": 4.5, "elinewidth": 1.2}
