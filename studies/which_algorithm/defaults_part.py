"""The part of the page about defaults: the rule, and what it costs to choose nothing."""

from __future__ import annotations

from fafed.report.numbers import NOTHING, listing
from studies import markdown
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import ELSEWHERE, JOBS, JUDGED
from studies.which_algorithm.measurement import WORTH
from studies.which_algorithm.results import (
    TITLES,
    Results,
    link,
    listed,
    percent,
    points,
    written,
)

ABOUT = {
    "mnist": "MNIST, ten clients with different mixes of digits",
    "wide": "Fashion-MNIST, another width, other clients, steps and batches",
    "scaled": "a softmax regression whose inputs differ in size by a factor of 100",
}


def defaults_part(r: Results) -> str:
    every = list(r.parts[JOBS[0]])
    asked = [name for name in every if r.asked_for(name)]
    better = [name for name in JUDGED if _gain(r, name) > 0]
    reference = [percent(_elsewhere(r, job, "fedavg", "tuned")) for job in ELSEWHERE]
    gap = r.untuned_gap("fafed")
    text = f"""\
## What it costs to choose nothing

Which setting is good on all jobs? One rule finds it for each method: of its four trials, take the
one that loses least to the best of them in the worst of the three settings, on held-out data. A
default that loses at most {100 * WORTH:g} points more than that stays.

The rule asks for new defaults of {len(asked)} of {len(every)} methods. We judged it by
{len(JUDGED)} of them on three jobs that it had not seen, with seed {r.content["seeds"]["one"]}:
{"; ".join(f"*{job}*: {about}" for job, about in ABOUT.items())}. There {len(better)} of the
{len(JUDGED)} new settings are better than the old defaults in the mean of the three
({_not_better(better)}). FedAvg, tuned on each of them, ends at {listing(reference)}.

{listed(jobs.BEFORE)} {"has" if len(jobs.BEFORE) == 1 else "have"} the rule's setting as the default
by now. FAFED's, falling, ends {points(abs(gap))} {"below" if gap > 0 else "above"} tuned FedAvg in
the worst of the three settings. On the jobs that the rule had not seen it ends {_against(r)} points
from tuned FedAvg. As it comes, constant, it ends at {percent(r.constant("fafed"))} on skewed data.
`FAFED.paper()` is still the paper's setting. All other methods have the default of the column
*default* still: there, write the rule's setting into your file.

- *loss*: accuracy of the tuned method minus that with the rule's setting, in points, on the test
  set, with the same seed.
- *default loses*: the same for the default, on held-out data, in the worst of the three.
- *mnist*, *wide*, *scaled*: accuracy with the rule's setting. In brackets: with the default before
  the rule.

"""
    head = ["method", "rule's setting", *(f"loss, {TITLES[part]}" for part in JOBS)]
    head += ["default", "default loses", *ELSEWHERE]
    return text + markdown.table(head, [_row(r, name) for name in sorted(every, key=r.untuned_gap)])


def _not_better(better: list[str]) -> str:
    worse = [name for name in JUDGED if name not in better]
    return f"not {listed(worse)}" if worse else "all of them"


def _against(r: Results) -> str:
    """FAFED's new default minus tuned FedAvg, on the other jobs."""
    gaps = [
        _elsewhere(r, job, "fafed", "default") - _elsewhere(r, job, "fedavg", "tuned")
        for job in ELSEWHERE
    ]
    return listing(
        [f"{100 * gap:+.1f} (*{job}*)" for job, gap in zip(ELSEWHERE, gaps, strict=True)]
    )


def _row(r: Results, name: str) -> list[str]:
    entry = r.defaults[name]
    new = dict(r.parts[JOBS[0]][name]["default"])
    losses = [
        f"{100 * r.untuned_loss(part, name):.1f}" if name in r.parts[part] else NOTHING
        for part in JOBS
    ]
    cells = [_cell(r, job, name) for job in ELSEWHERE]
    today, cost = dict(jobs.default(name)), entry["before_loss"]
    if today == new:
        today_cells = ["the same", NOTHING if r.asked_for(name) else f"{100 * cost:.1f}"]
    else:
        today_cells = [written(today), f"{100 * cost:.1f}"]
    return [link(name), written(new), *losses, *today_cells, *cells]


def _cell(r: Results, job: str, name: str) -> str:
    if name not in r.elsewhere[job]:
        return NOTHING
    new = percent(_elsewhere(r, job, name, "default"))
    return f"{new} ({percent(_elsewhere(r, job, name, 'before'))})" if r.asked_for(name) else new


def _elsewhere(r: Results, job: str, name: str, which: str) -> float:
    return float(r.elsewhere[job][name][which]["accuracy"] or 0)


def _gain(r: Results, name: str) -> float:
    return sum(
        _elsewhere(r, job, name, "default") - _elsewhere(r, job, name, "before")
        for job in ELSEWHERE
    )
