"""The part of the page about defaults: the rule, and what it costs to choose nothing."""

from __future__ import annotations

from fafed.report.numbers import NOTHING, listing
from studies import markdown
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import ELSEWHERE, END, JOBS
from studies.which_algorithm.measurement import WORTH
from studies.which_algorithm.results import (
    TITLES,
    Results,
    class_name,
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
    judged = [name for name in asked if _is_judged(r, name)]
    better = [name for name in judged if _gain(r, name) > 0]
    kept = [name for name in asked if dict(jobs.default(name)) != _rules(r, name)]
    reference = [percent(_elsewhere(r, job, "fedavg", "tuned")) for job in ELSEWHERE]
    gap = r.untuned_gap("fafed")
    text = f"""\
## What it costs to choose nothing

Which setting is good on all jobs? One rule finds it for each method: of its four trials, take the
one that loses least to the best of them in the worst of the three settings, on held-out data. A
default that loses at most {100 * WORTH:g} points more than that stays.

The rule asks for new defaults of {len(asked)} of {len(every)} methods. We judged
{_how_many(judged, asked)} on three jobs that the rule had not seen, with seed
{r.content["seeds"]["one"]}:
{"; ".join(f"*{job}*: {about}" for job, about in ABOUT.items())}. There {len(better)} of the
{len(judged)} new settings are better than the old defaults in the mean of the three
({_not_better(judged, better)}). FedAvg, tuned on each of them, ends at {listing(reference)}.

These settings are the defaults by now{_but(r, kept)}.

Defaults are constant rates. The table has rates that fall, as in
`eta = {{ schedule = "linear", peak = 0.1, end = {END:g} }}`, with the default as the peak. On
skewed data falling is better for {_falling(r)}.

FAFED's default, falling, ends {points(abs(gap))} {"below" if gap > 0 else "above"} tuned FedAvg in
the worst of the three settings. On the jobs that the rule had not seen it ends {_against(r)} points
from tuned FedAvg. As it comes, constant, it ends {_as_it_comes(r)} points from tuned FedAvg, whose
rate falls, with one seed. {_options(r)} `FAFED.paper()` is still the paper's setting.

- *loss*: accuracy of the tuned method minus that with the rule's setting, in points, on the test
  set, with the same seed.
- *before*: the default before the rule. *before loses*: the same for it, on held-out data, in the
  worst of the three.
- *mnist*, *wide*, *scaled*: accuracy with the rule's setting. In brackets: with the default before
  the rule.

"""
    head = ["method", "rule's setting", *(f"loss, {TITLES[part]}" for part in JOBS)]
    head += ["before", "before loses", *ELSEWHERE]
    return text + markdown.table(head, [_row(r, name) for name in sorted(every, key=r.untuned_gap)])


def _rules(r: Results, name: str) -> dict[str, float]:
    return dict(r.parts[JOBS[0]][name]["default"])


def _is_judged(r: Results, name: str) -> bool:
    there = (r.elsewhere[job].get(name, {}) for job in ELSEWHERE)
    return all({"default", "before"} <= entry.keys() for entry in there)


def _how_many(judged: list[str], asked: list[str]) -> str:
    return "them" if judged == asked else f"{len(judged)} of them"


def _not_better(judged: list[str], better: list[str]) -> str:
    worse = [name for name in judged if name not in better]
    return f"not {listed(worse)}" if worse else "all of them"


def _but(r: Results, kept: list[str]) -> str:
    """Which defaults are older than the rule's, and why."""
    told = [
        f"{class_name(name)}: the old one loses {points(r.defaults[name]['before_loss'])} in the "
        f"worst of the three, but ends {points(-_gain(r, name) / len(ELSEWHERE))} higher in the "
        "mean of the other jobs"
        for name in kept
        if _is_judged(r, name)
    ]
    return f", except that of {'; '.join(told)}" if told else ""


def _options(r: Results) -> str:
    """The rule over more options of FAFED."""
    found = r.content["fafed_options"]
    best, default = found[0]["setting"], jobs.default("fafed")
    if any(best[key] != value for key, value in default):
        raise ValueError(f"the rule chose {best} for FAFED, the default is {default}")
    ends = [entry["accuracy"] for entry in found[:2]]
    leads = [100 * (ends[1][part]["linear"] - ends[0][part]["linear"]) for part in JOBS]
    told = [f"{lead:+.1f} ({TITLES[part]})" for part, lead in zip(JOBS, leads, strict=True)]
    return (
        f"The rule had {len(found)} candidates for it: other values of eta and rho, and momentum "
        "of the server, each with a rate that falls and with a constant one. It kept the default, "
        f"which loses at most {points(found[0]['worst_loss'])} to the best candidate. The next "
        f"one, `{written(found[1]['setting'])}`, loses at most {points(found[1]['worst_loss'])}. "
        f"Falling, it ends {listing(told)} points from the default, on held-out data."
    )


def _falling(r: Results) -> str:
    better = [name for name in r.falling if r.decay_gain(name) > 0]
    return f"{len(better)} of {len(r.falling)} methods"


def _against(r: Results) -> str:
    """FAFED's default, falling, minus tuned FedAvg, on the other jobs."""
    return _signed(
        {job: _elsewhere(r, job, "fafed", "default") - r.tuned_fedavg(job) for job in ELSEWHERE}
    )


def _as_it_comes(r: Results) -> str:
    """FAFED's default, constant, minus tuned FedAvg, on all jobs."""
    found: dict[str, float | None] = r.content["fafed_as_it_comes"]
    return _signed({job: (end or 0) - r.tuned_fedavg(job) for job, end in found.items()})


def _signed(gaps: dict[str, float]) -> str:
    named = {job: TITLES.get(job, job) for job in gaps}
    return listing([f"{100 * gap:+.1f} (*{named[job]}*)" for job, gap in gaps.items()])


def _row(r: Results, name: str) -> list[str]:
    entry = r.defaults[name]
    new = _rules(r, name)
    losses = [
        f"{100 * r.untuned_loss(part, name):.1f}" if name in r.parts[part] else NOTHING
        for part in JOBS
    ]
    cells = [_cell(r, job, name) for job in ELSEWHERE]
    before = "the same" if entry["before"] == new else written(entry["before"])
    lost = f"{100 * entry['before_loss']:.1f}"
    return [link(name), written(new), *losses, before, lost, *cells]


def _cell(r: Results, job: str, name: str) -> str:
    there = r.elsewhere[job].get(name, {})
    new, before = (
        percent(_elsewhere(r, job, name, which)) if which in there else NOTHING
        for which in ("default", "before")
    )
    return f"{new} ({before})" if r.asked_for(name) and before != NOTHING else new


def _elsewhere(r: Results, job: str, name: str, which: str) -> float:
    return float(r.elsewhere[job][name][which]["accuracy"] or 0)


def _gain(r: Results, name: str) -> float:
    return sum(
        _elsewhere(r, job, name, "default") - _elsewhere(r, job, name, "before")
        for job in ELSEWHERE
    )
