"""Measure every federated algorithm on one small job, and write docs/which-algorithm.md from it.

    python docs/which_algorithm.py                 # measures, then renders: a quarter of an hour
    python docs/which_algorithm.py --render-only   # renders results/which-algorithm.json again

The job is in experiments/which-algorithm/. Runs live below --runs (runs/which-algorithm); what is
finished is not run again, so the command can be stopped and started at will.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fafed.algorithms import ALGORITHMS
from fafed.catalogue import Card, card
from fafed.experiment import Experiment
from fafed.jobs import run_all
from fafed.report.curves import make_curves
from fafed.report.numbers import NOTHING, Stat, listing
from fafed.report.palette import LIGHT
from fafed.report.quantities import find_quantity
from fafed.report.static import save, styled
from fafed.report.target import Target, reaches
from fafed.rundir import RunDir
from fafed.tuning import space

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments" / "which-algorithm"
RESULTS = ROOT / "results" / "which-algorithm.json"
PAGE = ROOT / "docs" / "which-algorithm.md"
PICTURE = ROOT / "docs" / "images" / "which-algorithm.svg"

TUNING_SEED, SEEDS = 0, (1, 2, 3)
TAIL = 5  # evaluations that count as the end: on skewed data, one alone is a matter of luck
TARGETS = {"skewed": 0.75, "iid": 0.8, "partial": 0.65, "second-setting": 0.75}  # test accuracy

Step = tuple[tuple[str, float], ...]  # (("eta", 0.1),)

# FAFED and STEM warn in every round of "partial" that they start their estimate anew; here that is
# no news. At the top of the file, because worker processes import it.
logging.getLogger("fafed").setLevel(logging.ERROR)


# Measuring.


def measure(root: Path, jobs: int) -> dict[str, Any]:
    """Choose step sizes with one seed by the training loss, then measure with other seeds."""
    files = {part: Experiment.read(EXPERIMENTS / f"{part}.toml") for part in TARGETS}
    trials = {
        (part, name, step): experiment.with_algorithm(name, **dict(step)).changed(seed=TUNING_SEED)
        for part, experiment in files.items()
        for name in experiment.search
        for step in dict.fromkeys([*_grid(experiment, name), _default(experiment, name)])
    }
    print(f"choosing: {len(trials)} runs", flush=True)
    tried = dict(zip(trials, run_all(list(trials.values()), root, jobs), strict=True))
    losses = {key: _loss(place) for key, place in tried.items()}
    chosen = {
        (part, name): min(_grid(experiment, name), key=lambda step: losses[part, name, step])
        for part, experiment in files.items()
        for name in experiment.search
    }
    for part, name in list(chosen):
        partial = files["partial"].with_algorithm(name).algorithm_object(1)
        if part == "skewed" and not partial.everyone:
            chosen["partial", name] = chosen[part, name]
    final = {
        (part, name, seed): files[part].with_algorithm(name, **dict(step)).changed(seed=seed)
        for (part, name), step in chosen.items()
        for seed in SEEDS
    }
    print(f"measuring: {len(final)} runs", flush=True)
    places = dict(zip(final, run_all(list(final.values()), root, jobs), strict=True))

    found: dict[str, dict[str, Any]] = {part: {} for part in TARGETS}
    for (part, name), step in chosen.items():
        entry = {"step": dict(step)}
        entry |= _measured([places[part, name, seed] for seed in SEEDS], TARGETS[part])
        if part != "partial":
            entry["trials"] = [
                {
                    "step": dict(point),
                    "train_loss": _rounded(losses[part, name, point]),
                    "accuracy": _accuracy(tried[part, name, point]),
                }
                for point in _grid(files[part], name)
            ]
            entry["default"] = _accuracy(tried[part, name, _default(files[part], name)])
        found[part][name] = entry
    made = json.loads((places["iid", "fedavg", SEEDS[0]].path / "environment.json").read_text())
    return {
        "made_with": {name: made[name] for name in ("fafed", "torch")},
        "parameters": made["parameters"],
        "seeds": {"choosing": TUNING_SEED, "measuring": list(SEEDS)},
        "targets": TARGETS,
        "measured": found,
    }


def _grid(experiment: Experiment, name: str) -> list[Step]:
    choices = space(experiment, name)
    return [
        tuple(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def _default(experiment: Experiment, name: str) -> Step:
    """The step size that the algorithm has if nobody chooses one."""
    return tuple((key, getattr(ALGORITHMS[name](), key)) for key in space(experiment, name))


def _loss(place: RunDir) -> float:
    """What step sizes are chosen by: the training loss of the server's model at the end."""
    loss = _end(place, "train", "loss")
    return math.inf if loss is None else loss


def _accuracy(place: RunDir) -> float | None:
    return _end(place, "test", "accuracy")


def _end(place: RunDir, part: str, metric: str) -> float | None:
    """Mean over the last evaluations; None if the run diverged."""
    if place.failure():
        return None
    found = [values[metric] for record in place.records() if (values := getattr(record, part))]
    return _rounded(statistics.fmean(found[-TAIL:]))


def _measured(places: Sequence[RunDir], target: float) -> dict[str, Any]:
    """Final accuracies by seed, and what it cost one client to reach the target."""
    runs = [place.data() for place in places]
    accuracy = find_quantity(runs, "accuracy")
    (curve,) = make_curves(runs)
    (reach,) = reaches([curve], Target(accuracy, target, "as asked for"))
    clients = runs[0].config["data"]["clients"]
    shares = {"rounds": 1, "gradients": clients, "bytes": clients}
    costs = {key: _rounded(reach.costs[key].mean / n) for key, n in shares.items() if reach.costs}
    return {
        "accuracy": [_accuracy(place) for place in places],
        "last": [_rounded(run.records[-1]["test"].get("accuracy", math.nan)) for run in runs],
        "reached": reach.reached,
        "to_target": costs,
    }


def _rounded(value: float) -> float | None:
    """Six digits; JSON knows no infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


# Rendering. Numbers come from the results, and findings appear only where these bear them out.

SKEWED, ALIKE, PARTIAL, SECOND = TARGETS  # "alike" in the text is "iid" in the files


class Results:
    """results/which-algorithm.json, as the page speaks of it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.parts: dict[str, dict[str, Any]] = content["measured"]

    @cached_property
    def cards(self) -> dict[str, Card]:
        return {name: card(name) for name in self.parts[SKEWED]}

    def advisable(self, fits: Callable[[Card], bool] = lambda card: True) -> list[str]:
        """The methods that fit, without the counterexample."""
        return [name for name, card in self.cards.items() if name != "naive" and fits(card)]

    def accuracy(self, part: str, name: str) -> Stat:
        ends = self.parts[part][name]["accuracy"]
        return Stat.of([math.nan if end is None else end for end in ends])

    def mean(self, part: str, name: str) -> float:
        return self.accuracy(part, name).mean

    def lead(self, part: str, name: str) -> float:
        """How far ahead of FedAvg."""
        base = SKEWED if part == SECOND else part
        return self.mean(part, name) - self.mean(base, "fedavg")

    def cost(self, part: str, name: str, axis: str) -> float:
        """What a client spent to reach the target; infinite if not every seed reached it."""
        return float(self.parts[part][name]["to_target"].get(axis, math.inf))

    def default(self, part: str, name: str) -> float:
        """The accuracy with the default step size."""
        return float(self.parts[part][name]["default"] or 0)

    def near(self, part: str, name: str) -> int:
        """How many of the tried step sizes ended within three points of the best of them."""
        ends = [trial["accuracy"] or 0 for trial in self.parts[part][name]["trials"]]
        return sum(end >= max(ends) - 0.03 for end in ends)

    def at_the_end_of_a_grid(self, part: str) -> list[str]:
        return [
            cls(name)
            for name, entry in self.parts[part].items()
            if entry["step"] in (entry["trials"][0]["step"], entry["trials"][-1]["step"])
        ]

    def ranked(self, part: str) -> list[str]:
        return sorted(self.parts[part], key=lambda name: -self.mean(part, name))

    def best(self, part: str, among: Iterable[str]) -> str:
        return max(among, key=lambda name: self.mean(part, name))

    def cheapest(self, axis: str, among: Iterable[str]) -> tuple[str, str]:
        """The two that reach the target on skewed data at the lowest cost."""
        first, second, *_ = sorted(among, key=lambda name: self.cost(SKEWED, name, axis))
        return first, second

    # The same in words.

    def end(self, part: str, name: str) -> str:
        stat = self.accuracy(part, name)
        return f"{100 * stat.mean:.1f} ± {100 * (stat.std or 0):.1f} %"

    def took(self, part: str, name: str, axis: str = "rounds") -> str:
        cost = self.cost(part, name, axis)
        return f"{cost / 1e6:.1f} MB" if axis == "bytes" else f"{cost:.0f}"

    def target(self, part: str) -> str:
        return f"{100 * self.content['targets'][part]:g} %"


def cls(name: str) -> str:
    return ALGORITHMS[name].__name__


def link(*names: str) -> str:
    links = (f"[{cls(name)}](algorithms.md#{cls(name).lower()})" for name in dict.fromkeys(names))
    return " or ".join(links)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def points(difference: float | None) -> str:
    return f"{100 * (difference or 0):.1f} points"


def job(part: str) -> Experiment:
    return Experiment.read(EXPERIMENTS / f"{part}.toml")


def render(r: Results) -> str:
    """The page."""
    parts = [_introduction(r), _advice(r), FIGURE, _numbers(r), _findings(r), _limits(r)]
    return "\n".join(parts)


FIGURE = """\
![Final accuracies, and costs relative to FedAvg](images/which-algorithm.svg)

*Left: accuracy at the end, mean and standard deviation over the seeds. Right: what a client spent
until the target was reached on skewed data, as a multiple of FedAvg's.*
"""


def _introduction(r: Results) -> str:
    e, seeds = job(SKEWED), r.content["seeds"]
    some = job(PARTIAL).participation * e.data.clients
    return f"""\
# Which algorithm should I use?

We measured all {len(r.cards)} federated methods of fafed on one small job: the same clients, the
same batches, four trials of the step size for each (seed {seeds["choosing"]}, chosen by the
training loss), then seeds {listing([str(s) for s in seeds["measuring"]])}. The job is Fashion-MNIST
on {e.data.clients} clients, a network with {e.model.options["hidden"][0]} hidden units
({r.content["parameters"]:,} parameters), {e.rounds} rounds of {e.local_steps} local steps with
batches of {e.batch_size}, in three settings:

- *skewed*: each client holds {e.data.partition["k"]} of the 10 classes, everyone in every round;
- *alike*: every client holds the same mix, everyone in every round;
- *partial*: skewed, but only {some:.0f} clients in each round, drawn anew.

All numbers below are put in by the script that measured them. What they cannot say is under
[Limits](#limits); what each method is and costs is in [Algorithms](algorithms.md).
"""


def _advice(r: Results) -> str:
    every = r.advisable()
    plain = r.advisable(lambda c: (c.up, c.down, c.gradients, c.besides) == (1, 1, 1, ()))
    costly = r.advisable(lambda c: c.gradients >= 2)
    mixed, mixed_plain = r.best(ALIKE, every), r.best(ALIKE, plain)
    quick, high = r.cheapest("rounds", plain)[0], r.best(SKEWED, plain)
    there = r.best(PARTIAL, (name for name in every if name in r.parts[PARTIAL]))
    stateless = r.best(PARTIAL, r.advisable(lambda c: c.kept == 0))
    light, light_next = r.cheapest("bytes", every)
    brief, brief_next = r.cheapest("gradients", every)
    untuned, untuned_next, *_ = sorted(
        every, key=lambda name: -min(r.default(SKEWED, name), r.default(ALIKE, name))
    )
    behind = r.mean(ALIKE, mixed) - r.mean(ALIKE, "fedavg")
    rows = {
        ("You begin", link("fedavg")): [
            "No method that sends whole vectors costs less: one each way, one gradient per step,",
            "nothing kept by clients, one step size. On data that are alike it ends at",
            f"{r.end(ALIKE, 'fedavg')}, {points(behind)} behind the best.",
        ],
        ("Data are alike", link(mixed, mixed_plain)): [
            f"{cls(mixed)} ends at {r.end(ALIKE, mixed)} and is at {r.target(ALIKE)} after",
            f"{r.took(ALIKE, mixed)} rounds, FedAvg after {r.took(ALIKE, 'fedavg')}. Of the",
            f"methods at FedAvg's price per round, {cls(mixed_plain)} ends highest:",
            f"{r.end(ALIKE, mixed_plain)}.",
        ],
        ("Data differ strongly, everyone is there in every round", link(quick, high)): [
            f"At FedAvg's price per round, {cls(quick)} is at {r.target(SKEWED)} after",
            f"{r.took(SKEWED, quick)} rounds (FedAvg: {r.took(SKEWED, 'fedavg')}), and",
            f"{cls(high)} ends highest: {r.end(SKEWED, high)}, {points(r.lead(SKEWED, high))}",
            "above FedAvg.",
        ],
        ("Clients come and go", link(there, stateless)): [
            f"{cls(there)}{_wire(there)} ends at {r.end(PARTIAL, there)}, FedAvg at",
            f"{r.end(PARTIAL, 'fedavg')}. If clients do not come back, nothing can be kept on",
            f"them: of the methods that keep nothing, {cls(stateless)} ends highest, at",
            f"{r.end(PARTIAL, stateless)}. {_refusals()}",
        ],
        ("Bytes are scarce", link(light)): [
            f"{r.took(SKEWED, light, 'bytes')} per client to {r.target(SKEWED)} on skewed data;",
            f"next is {cls(light_next)} with {r.took(SKEWED, light_next, 'bytes')}, FedAvg takes",
            f"{r.took(SKEWED, 'fedavg', 'bytes')}. If only the way up is scarce,",
            f"{link('fedcams')} sends {r.cards['fedcams'].up:.3f} vectors instead of 1, but ends",
            f"at {r.end(SKEWED, 'fedcams')}.",
        ],
        ("Gradients are scarce", link(brief)): [
            f"{r.took(SKEWED, brief, 'gradients')} per client to {r.target(SKEWED)} on skewed",
            f"data; next is {cls(brief_next)} with {r.took(SKEWED, brief_next, 'gradients')},",
            f"FedAvg takes {r.took(SKEWED, 'fedavg', 'gradients')}, and no method with two or",
            "more per step less than",
            f"{min(r.cost(SKEWED, name, 'gradients') for name in costly):.0f}.",
        ],
        ("No time to tune", link(untuned)): [
            f"With its default step size it ends at {percent(r.default(SKEWED, untuned))}",
            f"(skewed) and {percent(r.default(ALIKE, untuned))} (alike), and",
            f"{r.near(SKEWED, untuned)} and {r.near(ALIKE, untuned)} of 4 step sizes end within",
            f"three points of the best. Next is {cls(untuned_next)}; FedAvg's default gives",
            f"{percent(r.default(SKEWED, 'fedavg'))} and {percent(r.default(ALIKE, 'fedavg'))}.",
        ],
    }
    lines = [["your situation", "take", "because"], ["---"] * 3]
    lines += [[*situation, " ".join(reasons)] for situation, reasons in rows.items()]
    return "## In short\n\n" + _table(lines)


def _wire(name: str) -> str:
    wire = job(PARTIAL).settings.get(name, {}).get("wire")
    return f' with wire="{wire}"' if wire else ""


def _refusals() -> str:
    names = [name for name in job(SKEWED).search if ALGORITHMS[name]().everyone]
    never = listing([cls(name) for name in names if not _wire(name)])
    optional = listing([cls(name) for name in names if _wire(name)])
    return f'{never} cannot run without everyone, {optional} only with wire="full".'


def _table(lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _numbers(r: Results) -> str:
    e = job(SKEWED)
    text = f"""\
## The numbers

Accuracy: on the test set, mean of the last {TAIL} evaluations (every {e.eval_every} rounds up to
round {e.rounds}), then mean and standard deviation over the three seeds. Rounds, gradients, MB:
what one client has spent, sent and received when an evaluation first shows the target; {NOTHING} if
not every seed got there. Gradients are counted in batches of {e.batch_size}. Default: accuracy with
the step size that the method has if nobody chooses one. Near: how many of the four step sizes, a
factor of about three apart, end within three points of the best of them. The last two are of seed
{r.content["seeds"]["choosing"]}.
"""
    note = """
With the step sizes chosen for skewed data. Costs are means over all clients, there or not.
"""
    for part, title in ((SKEWED, "Skewed"), (ALIKE, "Alike"), (PARTIAL, "Partial")):
        text += f"\n### {title}: target {r.target(part)}\n{note if part == PARTIAL else ''}\n"
        head = ["method", "step", "accuracy", "rounds", "gradients", "MB", "default", "near"]
        head = head[:6] if part == PARTIAL else head
        text += _table([head, ["---"] * len(head), *(_row(r, part, n) for n in r.ranked(part))])
    return text


def _row(r: Results, part: str, name: str) -> list[str]:
    entry = r.parts[part][name]
    step = ", ".join(f"{key} = {value:g}" for key, value in entry["step"].items())
    costs = [r.took(part, name, axis).removesuffix(" MB") for axis, *_ in COSTS]
    row = [link(name), step, r.end(part, name), *(costs if entry["to_target"] else [NOTHING] * 3)]
    if part != PARTIAL:
        row += [percent(r.default(part, name)), f"{r.near(part, name)} of {len(entry['trials'])}"]
    return row


def _findings(r: Results) -> str:
    server = [r.lead(SKEWED, name) for name in ("fedadam", "fedyogi", "fedadagrad", "fedams")]
    pair = ("fafed", "stem")
    shaky = max(r.parts[PARTIAL], key=lambda name: r.accuracy(PARTIAL, name).std or 0)
    deviation = {part: r.accuracy(part, "fedavg").std or 0 for part in (SKEWED, PARTIAL)}

    def loss(name: str) -> float:
        return r.mean(ALIKE, name) - r.mean(SKEWED, name)

    def gain(name: str) -> float:
        return r.mean(SECOND, name) - r.mean(SKEWED, name)

    def eta(part: str, name: str) -> float:
        return float(r.parts[part][name]["step"]["eta"])

    found = [
        (
            all(loss(name) > 0 for name in r.cards),
            "**Different data cost every method something.** From alike to skewed, FedAvg loses",
            f"{points(loss('fedavg'))}, SCAFFOLD {points(loss('scaffold'))}.",
        ),
        (
            r.lead(SKEWED, "scaffold") > 0.01 > abs(r.lead(ALIKE, "scaffold"))
            and r.cost(SKEWED, "scaffold", "rounds") < r.cost(SKEWED, "fedavg", "rounds")
            and r.lead(SKEWED, "fedpd") < 0,
            "**Correcting drift pays where there is drift.** On skewed data SCAFFOLD is at the",
            f"target after {r.took(SKEWED, 'scaffold')} rounds and FedAvg after",
            f"{r.took(SKEWED, 'fedavg')}, at the same price per round; on data that are alike,",
            f"after {r.took(ALIKE, 'scaffold')} and {r.took(ALIKE, 'fedavg')}. That FedAvg comes",
            "to rest beside the optimum and SCAFFOLD does not is exact on quadratics, and tested.",
            "But no bias does not mean speed: FedPD has none either, and ends at",
            f"{r.end(SKEWED, 'fedpd')} with its default mu.",
        ),
        (
            all(r.lead(part, n) > 0.005 for part in (SKEWED, ALIKE) for n in ("prsgdm", "domo")),
            f"**Momentum pays in both.** PRSGDM ends {points(r.lead(SKEWED, 'prsgdm'))} above",
            f"FedAvg on skewed data and {points(r.lead(ALIKE, 'prsgdm'))} on data that are alike,",
            f"DOMO {points(r.lead(SKEWED, 'domo'))} and {points(r.lead(ALIKE, 'domo'))}. PRSGDM",
            "sends two vectors each way for it, DOMO one.",
        ),
        (
            max(server) < 0.01 and gain("fedadam") > 0.02 and r.lead(SECOND, "fedadam") > 0.01,
            "**Where the server adapts, both step sizes count.** With their default local steps,",
            f"FedAdam, FedYogi, FedAdagrad and FedAMS end {100 * min(server):+.1f} to",
            f"{100 * max(server):+.1f} points from FedAvg on skewed data, and they come to rest",
            "where FedAvg does: that is exact on quadratics, and tested. With local steps of 0.1",
            f"instead of 0.01, FedAdam goes from {r.end(SKEWED, 'fedadam')} to",
            f"{r.end(SECOND, 'fedadam')} and is at {r.target(SECOND)} after",
            f"{r.took(SECOND, 'fedadam')} rounds instead of {r.took(SKEWED, 'fedadam')}.",
        ),
        (
            max(r.lead(SKEWED, "fafed"), r.lead(SKEWED, "stem")) < 0
            and all(gain(name) > 0.02 and eta(SECOND, name) > eta(SKEWED, name) for name in pair),
            "**For FAFED and STEM, alpha matters as much as eta.** At the default alpha = 0.1",
            "both end below FedAvg on skewed data. At 0.9, with the step size chosen again, FAFED",
            f"goes from {percent(r.mean(SKEWED, 'fafed'))} (eta = {eta(SKEWED, 'fafed'):g}) to",
            f"{r.end(SECOND, 'fafed')} (eta = {eta(SECOND, 'fafed'):g}), STEM from",
            f"{percent(r.mean(SKEWED, 'stem'))} (eta = {eta(SKEWED, 'stem'):g}) to",
            f"{r.end(SECOND, 'stem')} (eta = {eta(SECOND, 'stem'):g}). With exact gradients a",
            "small alpha removes the drift of local steps (tested on quadratics); here, with",
            f"batches of {job(SKEWED).batch_size}, it allows small steps only. Put alpha into",
            "every search. Two gradients per step remain: FAFED with alpha = 0.9 is at",
            f"{r.target(SECOND)} after {r.took(SECOND, 'fafed')} rounds and",
            f"{r.took(SECOND, 'fafed', 'gradients')} gradients, FedAvg after",
            f"{r.took(SKEWED, 'fedavg')} and {r.took(SKEWED, 'fedavg', 'gradients')}.",
        ),
        (
            max(abs(r.lead(part, "fedprox")) for part in (SKEWED, ALIKE)) < 0.01,
            "**FedProx with its default mu is FedAvg**, but for",
            f"{points(abs(r.lead(SKEWED, 'fedprox')))} on skewed data and",
            f"{points(abs(r.lead(ALIKE, 'fedprox')))} on data that are alike.",
        ),
        (
            deviation[PARTIAL] > 3 * deviation[SKEWED]
            and r.ranked(PARTIAL)[0] == "scaffold"
            and r.ranked(SKEWED)[0] == "domo"
            and r.lead(PARTIAL, "domo") < -0.02,
            "**With a quarter of the clients per round, luck comes in.** The standard deviation",
            f"of FedAvg grows from {points(deviation[SKEWED])} to {points(deviation[PARTIAL])},",
            f"that of {cls(shaky)} is {points(r.accuracy(PARTIAL, shaky).std)}: each round pulls",
            "towards the classes of those who are there. SCAFFOLD ends at",
            f"{r.end(PARTIAL, 'scaffold')}: its c remembers those who are not. DOMO, first when",
            f"everyone is there, ends {points(-r.lead(PARTIAL, 'domo'))} below FedAvg with the",
            "step size chosen then: choose again if clients come and go.",
        ),
        (
            r.lead(ALIKE, "naive") > 0,
            "**NaiveAdaptiveFedAvg is left out of the advice.** It does well here",
            f"({r.end(ALIKE, 'naive')} on data that are alike), but it can walk away from the",
            "optimum: an example in which it does is among the tests.",
        ),
    ]
    bullets = [" ".join(words) for condition, *words in found if condition]  # only what holds
    return "## What the numbers say\n\n" + "".join(f"- {bullet}\n" for bullet in bullets)


def _limits(r: Results) -> str:
    e = job(SKEWED)
    ends = {part: r.at_the_end_of_a_grid(part) for part in (SKEWED, ALIKE, SECOND)}
    where = "; ".join(f"{listing(names)} ({part})" for part, names in ends.items() if names)
    anchor, data = e.local_steps * e.batch_size, 60_000 // e.data.clients
    made = r.content["made_with"]
    return f"""\
## Limits

- One dataset, one small network, {e.rounds} rounds, one batch size, one number of local steps. A
  larger model, more rounds or more local steps can turn the order around.
- Three seeds: a difference of less than about two standard deviations says nothing.
- On skewed data one evaluation differs from the next by several points, hence the mean of {TAIL}.
  With 36 or 40 rounds and the last evaluation alone, DOMO, MimeAdam, PRSGDM, LocalAMSGrad and
  SCAFFOLD were ahead of FedAvg as they are here, and SCAFFOLD was first with clients missing; but
  FedAdam, FedYogi, FedAdagrad and FedAMS were ahead of FedAvg, too.
- Four trials for each method, of its main step size only (the server's, where the server adapts).
  All other settings are as they come, so methods with more to set have more to gain. The grids were
  moved after a first look to keep the choices away from their ends; at an end: {where or "none"}.
- Step sizes were chosen with one seed. For partial participation they were not chosen again.
- Mime, MimeLite and MimeAdam take their gradient at the server's model on {anchor} examples
  (anchor="batch"), which counts for {anchor // e.batch_size} gradients per round. The default, all
  {data:,} examples of the client, would count for {data // e.batch_size}.
- Bytes are what the vectors of the messages weigh. There is no network here, and time is not
  compared.

## Make it again

```
python docs/which_algorithm.py
fafed report runs/which-algorithm/skewed -o report    # the curves of every run
```

Stop it when you like; it goes on where it was. The settings are in
[experiments/which-algorithm](../experiments/which-algorithm), the numbers in
[results/which-algorithm.json](../results/which-algorithm.json). Made with fafed {made["fafed"]} and
torch {made["torch"]}.
"""


# The picture.

SETTINGS = (("iid", "alike", "o"), ("skewed", "skewed", "s"), ("partial", "partial", "D"))
COSTS = (("rounds", "rounds", "o"), ("gradients", "gradients", "s"), ("bytes", "bytes", "D"))
DODGE = (0.2, 0.0, -0.2)  # so that equal values do not hide each other


def draw(r: Results, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    names = r.ranked("skewed")[::-1]
    with styled():
        picture = Figure(figsize=(8, 6.6), layout="constrained")
        left, right = picture.subplots(1, 2, sharey=True, width_ratios=(1.3, 1))
        for i, (part, label, marker) in enumerate(SETTINGS):
            rows = [(y, r.accuracy(part, n)) for y, n in enumerate(names) if n in r.parts[part]]
            left.errorbar(
                [stat.mean for _, stat in rows],
                [y + DODGE[i] for y, _ in rows],
                xerr=[stat.std for _, stat in rows],
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
        left.set_yticks(range(len(names)), [cls(name) for name in names])
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
            place = {"loc": "lower left", "bbox_to_anchor": (0, -0.12), "ncols": 3}
            panel.legend(**place, frameon=False, handletextpad=0.2, columnspacing=1.2)
        path.parent.mkdir(exist_ok=True)
        save(picture, [path])


def _dots(hue: int, marker: str) -> dict[str, Any]:
    return {"fmt": marker, "color": LIGHT.hues[hue], "markersize": 4.5, "elinewidth": 1.2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "which-algorithm")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.render_only:
        results = measure(options.runs, options.jobs)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    found = Results(json.loads(RESULTS.read_text("utf-8")))
    PAGE.write_text(render(found), "utf-8")
    draw(found, PICTURE)


if __name__ == "__main__":
    main()
