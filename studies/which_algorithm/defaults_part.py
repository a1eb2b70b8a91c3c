"""The part of the page about defaults: the rule, and what it costs to choose nothing."""

from __future__ import annotations

import math

from fafed.report.numbers import NOTHING, listing
from studies import markdown
from studies.which_algorithm import jobs
from studies.which_algorithm.fafed_default import CALLED
from studies.which_algorithm.jobs import ELSEWHERE, END, JOBS
from studies.which_algorithm.measurement import WORTH
from studies.which_algorithm.results import (
    NAIVE,
    TITLES,
    Results,
    link,
    listed,
    mark,
    points,
    written,
)

ABOUT = {
    "mnist": "MNIST, ten clients with different mixes of digits",
    "wide": "Fashion-MNIST, ten clients with five random classes each, another network",
    "low": "Fashion-MNIST, 20 clients that are nearly alike, another network",
    "moderate": "the same, clients that differ moderately",
    "high": "the same, two groups of clients with five classes each",
    "scaled": "a softmax regression whose inputs differ in size by a factor of 100",
    "characters": "a small language model: one block of a transformer guesses the next letter of "
    "Wikipedia's text",
}
SHOWN = 10  # methods in the short table


def defaults_part(r: Results) -> str:
    every = list(r.parts[JOBS[0]])
    asked = [name for name in every if r.asked_for(name)]
    judged = [name for name in asked if is_judged(r, name)]
    better = [name for name in judged if _gain(r, name) > 0]
    text = f"""\
## What it costs to choose nothing

Which setting is good on all jobs? One rule chose the defaults, for each method: of its four trials,
take the one that loses least to the best of them in the worst training job. An older default that
loses at most {100 * WORTH:g} points more than that stays.

**Training jobs**, on held-out data: {listing([f"*{TITLES[part]}*" for part in JOBS])}.

**Judged jobs**, which the rule had not seen, on the test set with seed
{r.content["seeds"]["one"]}:

{"".join(f"- *{job}*: {ABOUT[job]};" + chr(10) for job in r.judged)[:-2]}.
{_not_yet(r)}
The rule asked for new defaults of {len(asked)} of {len(every)} methods. On the judged jobs
{len(better)} of {_how_many(judged, asked)} are better than the old ones, in the mean
({_not_better(judged, better)}). They are the defaults by now.

Defaults are constant rates. Let them fall if you know how long you train:
`eta = {{ schedule = "linear", peak = ..., end = {END:g} }}` with the default as the peak, in Python
`eta=fafed.schedules.Linear(peak=..., end={END:g})`. On skewed data falling is better for
{_falling(r)}.

The table has the {SHOWN} best defaults, which fall: how far they end from tuned FedAvg, in points,
in the worst training job and in the worst judged job. Above 0 is better than tuned FedAvg. [All of
them](which-algorithm-numbers.md#defaults).

"""
    head = ["method", "default", "training", "judged"]
    ranked = sorted((n for n in every if n != NAIVE), key=r.worst_gap)
    rows = [
        [link(name), written(rules(r, name)), _signed(-r.untuned_gap(name)), _worst(r, name)]
        for name in ranked[:SHOWN]
    ]
    return text + markdown.table(head, rows) + "\n" + _fafed(r)


def default_tables(r: Results) -> str:
    """All defaults, in tables of few columns."""
    every = sorted(r.parts[JOBS[0]], key=r.untuned_gap)
    asked = [name for name in every if r.asked_for(name)]
    text = """\
## Defaults

[The rule](which-algorithm.md#what-it-costs-to-choose-nothing) chose them. *loss*: accuracy of the
tuned method minus that with the rule's setting, falling, in points, on the test set, with the same
seed.

"""
    head = ["method", "rule's setting", *(f"loss, {TITLES[part]}" for part in JOBS)]
    text += markdown.table(head, [_losses(r, name) for name in every])
    text += """
The defaults before the rule, and what they lose to the best trial in the worst training job, on
held-out data, in points:

"""
    rows = [
        [link(n), written(r.defaults[n]["before"]), f"{100 * r.defaults[n]['before_loss']:.1f}"]
        for n in asked
    ]
    text += markdown.table(["method", "before", "loss"], rows)
    text += "\nAccuracy with the rule's setting on the judged jobs, in %:\n\n"
    tuned = ["FedAvg, tuned", *(_percents(r.tuned_fedavg(job)) for job in r.judged)]
    rows = [[mark(n), *(_percents(r.elsewhere_end(job, n)) for job in r.judged)] for n in every]
    text += markdown.table(["method", *r.judged], [tuned, *rows])
    text += "\nWhat that is above the default before the rule, in points:\n\n"
    rows = [[link(n), *(_signed(_gain_on(r, job, n)) for job in r.judged)] for n in asked]
    return text + markdown.table(["method", *r.judged], rows)


def _not_yet(r: Results) -> str:
    missing = [f"*{job}*" for job in ELSEWHERE if job not in r.judged]
    return f"\nNot run yet: {listing(missing)}.\n" if missing else ""


def rules(r: Results, name: str) -> dict[str, float]:
    return dict(r.parts[JOBS[0]][name]["default"])


def is_judged(r: Results, name: str) -> bool:
    return all(math.isfinite(_gain_on(r, job, name)) for job in r.judged)


def _how_many(judged: list[str], asked: list[str]) -> str:
    return "them" if judged == asked else f"the {len(judged)} that have been run"


def _not_better(judged: list[str], better: list[str]) -> str:
    worse = [name for name in judged if name not in better]
    return f"not {listed(worse)}" if worse else "all of them"


def _falling(r: Results) -> str:
    better = [name for name in r.falling if r.decay_gain(name) > 0]
    return f"{len(better)} of {len(r.falling)} methods"


def _fafed(r: Results) -> str:
    """FAFED's default on all jobs."""
    comes: dict[str, float | None] = r.content["fafed_as_it_comes"]
    every = [job for job in (*JOBS, *r.judged) if job in comes]
    found = r.content["fafed_options"]
    best, default = found[0]["setting"], jobs.default("fafed")
    if any(best[key] != value for key, value in default):
        raise ValueError(f"the rule chose {best} for FAFED, the default is {default}")
    worst = max(r.tuned_fedavg(job) - (comes[job] or 0) for job in every)
    text = f"""\
**FAFED as it comes**, `fafed.FAFED()` with its constant rate, ends at most {points(worst)} below
tuned FedAvg on these {len(every)} jobs, with one seed. The rule had {len(found)} candidates for it:
other values of eta and rho, and momentum of the server, each with a rate that falls and with a
constant one. It kept `{written(best)}`. `FAFED.paper()` is the paper's setting. Accuracy in %:

"""
    head = ["job", "FedAvg, tuned", "FAFED()", "FAFED, falling"]
    rows = [
        [
            TITLES.get(job, job),
            *map(_percents, (r.tuned_fedavg(job), comes[job] or 0, _fafed_falls(r, job))),
        ]
        for job in every
    ]
    return text + markdown.table(head, rows) + _called(r)


def _called(r: Results) -> str:
    """FAFED's default with the sizes of a first call of `fafed.train`."""
    found: dict[str, dict[str, float]] = r.content.get("fafed_as_called", {})
    if not found:
        return ""
    worst = max(one["fedavg"] - one["fafed"] for one in found.values())
    sizes = CALLED
    text = f"""
A first call is `fafed.train(model, clients, fafed.FAFED(), rounds={sizes["rounds"]})`: with
{sizes["local_steps"]} local steps and batches of {sizes["batch_size"]}, the defaults. So run, FAFED
ends at most {points(worst)} below FedAvg on these {len(found)} jobs, with one seed. FedAvg has the
same sizes here, and for each job the best of four step sizes, which fall.

"""
    rows = [
        [TITLES.get(job, job), _percents(one["fedavg"]), _percents(one["fafed"])]
        for job, one in found.items()
    ]
    return text + markdown.table(["job", "FedAvg, tuned", "FAFED()"], rows)


def _fafed_falls(r: Results, job: str) -> float:
    return r.untuned(job, "fafed") if job in JOBS else r.elsewhere_end(job, "fafed")


def _worst(r: Results, name: str) -> str:
    gaps = [r.elsewhere_end(job, name) - r.tuned_fedavg(job) for job in r.judged]
    return _signed(min(gaps)) if all(map(math.isfinite, gaps)) else NOTHING


def _losses(r: Results, name: str) -> list[str]:
    losses = [
        f"{100 * r.untuned_loss(part, name):.1f}" if name in r.parts[part] else NOTHING
        for part in JOBS
    ]
    return [link(name), written(rules(r, name)), *losses]


def _gain_on(r: Results, job: str, name: str) -> float:
    return r.elsewhere_end(job, name) - r.elsewhere_end(job, name, "before")


def _gain(r: Results, name: str) -> float:
    return sum(_gain_on(r, job, name) for job in r.judged)


def _signed(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}" if math.isfinite(value) else NOTHING


def _percents(value: float) -> str:
    return f"{100 * value:.1f}" if math.isfinite(value) else NOTHING
