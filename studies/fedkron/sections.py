"""The parts of docs/fedkron.md that come from ledgers and small measurements.

What has not been run says so.
"""

from __future__ import annotations

import json
import math
from typing import Any

from fafed import models
from fafed.algorithms import FedKron
from fafed.algorithms._layers import layers
from fafed.report.numbers import NOTHING, Stat, listing
from studies import markdown
from studies.fedkron import choices, counterexample, networks, speed
from studies.fedkron.ledger import Entry, Ledger, Missing
from studies.fedkron.networks import FEDAVGM, OURS, Found
from studies.which_algorithm import results as which
from studies.which_algorithm.jobs import SEEDS, TUNING_SEED, Setting
from studies.which_algorithm.results import words, written

ABSENT = "not run yet"
GOAL = 0.8  # of the settings, and of the tasks
NAMES = {
    "skewed": "skewed",
    "fashion-mnist-high": "Fashion-MNIST high",
    "mnist-high": "MNIST high",
    "cifar-10-high": "CIFAR-10 high",
}
SIZES: dict[str, dict[str, Any]] = {  # the models of the tasks here
    "mlp": {"inputs": 784, "outputs": 10, "hidden": (32,)},
    "fashion-cnn": {},
    "mnist-cnn": {},
    "cifar-cnn": {},
}


# The choice of parts and of the default.


def _held_out(ledger: Ledger, task: str, changes: Setting) -> float | None:
    """None: not run. 0: diverged."""
    try:
        return choices.trial(ledger, task, changes)["held_out"] or 0.0
    except Missing:
        return None


def _cell(value: float | None, whole: float | None) -> str:
    if value == 0:
        return "diverged"
    if value is None:
        return ABSENT
    return which.percent(value) if whole is None else f"{100 * (value - whole):+.1f}"


def parts(ledger: Ledger) -> str:
    tasks = list(choices.ROUNDS)
    whole = {task: _held_out(ledger, task, ()) for task in tasks}
    first = [ABSENT if whole[t] is None else which.percent(whole[t] or 0) for t in tasks]
    rows = [["nothing", *first]]
    changed = {f"without {label}": own for label, own in choices.WITHOUT.items()}
    changed |= {_directions(n): (("rank", n),) for n in choices.RANKS} | choices.OTHERWISE
    rows += [
        [label, *(_cell(_held_out(ledger, task, own), whole[task]) for task in tasks)]
        for label, own in changed.items()
    ]
    table = markdown.table(["changed", *(NAMES[task] for task in tasks)], rows)
    return f"""\
## Which parts matter

One change at a time, all else as it is: the accuracy on held-out data, the mean of the last three
evaluations, with seed {choices.SEED}, which no comparison uses. The first row is in per cent, the
others are differences in points, or in per cent where the first row is missing. A difference of
half a point means nothing. All with eta = {dict(choices.WHOLE)["eta"]:g}.

{table}
What we did with it:

- The share of the first scale in the floor was a setting of its own, rho0. Without it FedKron was
  as good, so it is gone. A small share stays, the square of rho, since a floor of zero would have
  no fixed point.
- The scale of a layer was a whole matrix. Now it has {FedKron().rank} directions and one number for
  all others.
- Local steps were as long as the gradients that clients had, divided by the scale of their mean.
  Where clients differ or gradients have much noise, they were many times as long as a step along
  the mean. Now each layer's local steps are shorter by a factor. It is the same for all clients,
  so it does not bend the scale. At first it compared the mean gradient with single gradients of
  clients. These have noise that a round averages away, so steps were too short on text and on
  CIFAR-10. Now it compares it with the mean of a client's gradients in a round.
- Without the bound on single gradients CIFAR-10 is not learned: in the first round the model leaves
  a plateau, and within five local steps a client's gradient becomes many times as long. Nothing
  that is shared between clients can know that before the round has ended. So this bound is each
  client's own.
- An earlier bound was a multiple of the length of the mean step. At the optimum the mean gradient
  is 0 and those of the clients are not. So it acted there always, and led away from the optimum of
  the counterexample. Now the measure is the usual length of the gradients of clients.
- The floor of the scale was 0.05 and its memory 0.9. The lower floor, 0.02, and the shorter memory,
  0.8, are better on CIFAR-10, and nowhere clearly worse.
- Floors that fall with the rounds, or come from the size of the clients' gradients, were worse on
  Fashion-MNIST or diverged on CIFAR-10.

The trials of rho0, of the other bounds, of the memory and of the floors are not part of this study.
Those of the memory, the floor and the limit on local steps were made on held-out data with seeds 5
to 7, on ten tasks ([which](#what-a-sceptic-should-know)).
"""


def _directions(n: int) -> str:
    return f"{n} directions" if n < 1000 else "all directions"


def default(ledger: Ledger) -> str:
    losses = worst_losses(ledger)
    rows = [
        [f"eta = {eta:g}", *(_eta_cell(ledger, task, eta) for task in choices.ROUNDS)]
        for eta in choices.ETAS
    ]
    table = markdown.table(["default", *(NAMES[task] for task in choices.ROUNDS)], rows)
    complete = [NAMES[task] for task in choices.ROUNDS if _complete(ledger, task)]
    told = listing([f"{100 * loss:.1f} for {eta:g}" for eta, loss in losses.items()])
    chosen = rule(ledger)
    today = FedKron().eta
    kept = (
        "This is the default."
        if chosen == today
        else f"The default stays eta = {today:g} until all tasks of the table have been run."
    )
    return f"""\
## The default

The rule is that of [Which algorithm should I use?](which-algorithm.md): of the step sizes tried,
take the one whose largest loss on any task is the smallest, against the best of them on that task.
The same runs as above, on held-out data:

{table}
The largest losses, in points, over {listing(complete)}: {told}. So the rule takes eta = {chosen:g}.
{kept} The tasks of this table are a training set. The *high* tasks of the comparison above are
among them, there with other seeds and the test set.
"""


def _eta_cell(ledger: Ledger, task: str, eta: float) -> str:
    value = _held_out(ledger, task, (("eta", eta),))
    return ABSENT if value is None else which.percent(value) if value else "diverged"


def _complete(ledger: Ledger, task: str) -> bool:
    return all(_held_out(ledger, task, (("eta", eta),)) is not None for eta in choices.ETAS)


def worst_losses(ledger: Ledger) -> dict[float, float]:
    """By step size, over the tasks on which all were tried."""
    worst = dict.fromkeys(choices.ETAS, 0.0)
    for task in choices.ROUNDS:
        if _complete(ledger, task):
            scores = {eta: _held_out(ledger, task, (("eta", eta),)) or 0.0 for eta in choices.ETAS}
            for eta, score in scores.items():
                worst[eta] = max(worst[eta], max(scores.values()) - score)
    return worst


def rule(ledger: Ledger) -> float:
    losses = worst_losses(ledger)
    return min(losses, key=losses.__getitem__)


# The comparison on the paper's networks.


def compared(ledger: Ledger) -> str:
    found = dict(networks.there(ledger))
    ahead = [task for task, methods in found.items() if _first(methods)]
    complete, won = standing(found)
    equal = [_first_at_equal_bytes(ledger, task, found[task]) for task in complete]
    text = f"""\
## On larger networks, and on text

FedKron's default against rivals that were tuned for each task: at least four trials on held-out
data (seed {TUNING_SEED}), up to {networks.MORE} more where the best step size was at an end of
those tried, and the same falling step size where a method allows one. Then all ran with the seeds
{listing([str(seed) for seed in SEEDS])}; the accuracy is that on the test set after the last round.
FedKron computes as many gradients as the cheapest rival of a task. It sends {_more(found)} than the
cheapest one.

- Images: the convolutional networks of the FAFED paper, at its three levels of heterogeneity.
- Text: the next character of Wikipedia, ten clients with their own articles. *lstm*: an LSTM.
  *transformer*: one block of a transformer. *lora*: adapters of a larger one that has read other
  articles; only they are trained, and only they travel.

There are {len(networks.TASKS)} tasks and {len(networks.RIVALS)} rivals. {len(complete)} tasks are
complete. By more than the spread FedKron is first on {len(won)} of them. Of all {len(found)} that
have begun it is ahead of the rivals that have been run on {len(ahead)}.{_at_equal(equal)}

*MB* are those of all clients, both ways. *equal MB*: with as many rounds (in brackets) as cost what
FedAvg's cost, with seed {SEEDS[0]}. A difference of up to 5 % is left as it is.
"""
    for task in networks.TASKS:
        if task in found:
            text += f"\n### {task}, {networks.rounds(task)} rounds\n\n"
            text += _table(found[task], {n: _equal(ledger, task, n) for n in found[task]})
    rest = [task for task in networks.TASKS if task not in found]
    return text + (f"\n{ABSENT.capitalize()}: {listing(rest)}.\n" if rest else "")


def lost(ledger: Ledger) -> list[str]:
    """The complete tasks on which FedKron is not first by more than the spread."""
    found = dict(networks.there(ledger))
    complete, won = standing(found)
    told = []
    for task in (task for task in complete if task not in won):
        ends = {name: _accuracy(method) for name, method in found[task].items()}
        ours = ends.pop(OURS)
        best = max(ends, key=lambda name: which.finite(ends[name].mean))
        told.append(
            f"*{task}*: it ends at {words(ours)}, {which.class_name(best)} at {words(ends[best])}."
        )
    return told


def _at_equal(equal: list[bool | None]) -> str:
    measured = [first for first in equal if first is not None]
    if not measured:
        return ""
    return f" At equal MB it is first on {sum(measured)} of the {len(measured)} measured so."


def standing(found: dict[str, dict[str, Found]]) -> tuple[list[str], list[str]]:
    """The tasks that have all rivals, and those of them on which FedKron is first."""
    complete = [task for task in found if len(found[task]) == 1 + len(networks.RIVALS)]
    return complete, [task for task in complete if _first(found[task])]


def _more(found: dict[str, dict[str, Found]]) -> str:
    """How many more bytes FedKron sends than the cheapest rival, over the tasks."""
    shares = []
    for methods in found.values():
        sent = {n: method.runs[0].get("megabytes", math.inf) for n, method in methods.items()}
        ours, least = sent.pop(OURS), min(sent.values())
        shares += [100 * (ours / least - 1)] if least < ours < math.inf else []
    if not shares:
        return "a little more"
    return f"{min(shares):.0f} to {max(shares):.0f} % more"


def _accuracy(method: Found) -> Stat:
    return which.stat(entry["test"] for entry in method.runs)


def _first(methods: dict[str, Found]) -> bool:
    """Whether FedKron leads by more than the standard deviations of both, as one."""
    ours = _accuracy(methods[OURS])
    rivals = [_accuracy(found) for name, found in methods.items() if name != OURS]
    best = max(rivals, key=lambda stat: which.finite(stat.mean))
    lead = which.finite(ours.mean) - which.finite(best.mean)
    return lead > math.hypot(ours.std or 0, best.std or 0)


def _equal(ledger: Ledger, task: str, name: str) -> Entry | None:
    try:
        return networks.at_equal_bytes(ledger, task, name)
    except Missing:
        return None


def _first_at_equal_bytes(ledger: Ledger, task: str, methods: dict[str, Found]) -> bool | None:
    """None: not all have been run."""
    entries = {name: _equal(ledger, task, name) for name in methods}
    ends = {name: entry["test"] or 0.0 for name, entry in entries.items() if entry}
    return max(ends, key=ends.__getitem__) == OURS if len(ends) == len(methods) else None


def _table(methods: dict[str, Found], equal: dict[str, Entry | None]) -> str:
    ordered = sorted(methods, key=lambda name: -which.finite(_accuracy(methods[name]).mean))
    rows = [
        [
            _label(name),
            written(dict(methods[name].setting)),
            words(_accuracy(methods[name])),
            _megabytes(methods[name].runs[0]),
            _accuracy_at(equal[name]),
        ]
        for name in ordered
    ]
    rows += [[_label(name), *[ABSENT] * 4] for name in networks.RIVALS if name not in methods]
    return markdown.table(["method", "setting", "accuracy", "MB", "equal MB"], rows)


def _label(name: str) -> str:
    if name == FEDAVGM:
        return "FedAvg with momentum"
    return f"**{which.link(name)}, default**" if name == OURS else which.link(name)


def _accuracy_at(entry: Entry | None) -> str:
    if entry is None:
        return ABSENT
    return f"{which.percent(entry['test'] or 0)} ({entry['rounds']})"


def _megabytes(entry: Entry) -> str:
    return f"{entry['megabytes']:.0f}" if "megabytes" in entry else NOTHING


# Bytes, seconds and theory.


def wire() -> str:
    rows = [_sizes(name, options) for name, options in SIZES.items()]
    head = ["model", "numbers", "all directions", "64", "32", "16"]
    return f"""\
## When clients are absent

The default wire needs all clients in every round, since each makes every step of the server. If
clients may be absent, give `wire = "full"`. The rule is then:

- The server sends x and the factors of all layers. A client keeps nothing, so it does not matter
  which rounds it has missed.
- The scale and the server's step are made from those that answered.
- The server cannot send the mean gradient to those who were there, and the state to those who were
  not: in an exchange it sends the same message to all, on every engine and to silos.
- For networks such as the last two below it would save little. A client that has missed two rounds
  would need two mean gradients, or x, u and the factors, and either is more than x and the factors.

What one client receives in a round, in vectors as long as the model, by the number of directions.
The two numbers per layer are part of it. FedAvg sends 1.00. The default is
{FedKron().rank}; fewer directions are cheaper (`rank`).

{markdown.table(head, rows)}"""


def _sizes(name: str, options: dict[str, Any]) -> list[str]:
    shapes = [tuple(p.shape) for p in models.build(name, seed=0, **options).parameters()]
    d = sum(map(math.prod, shapes))
    every = max(math.prod(shape) for shape in shapes)
    return [name, f"{d:,}", *(f"{_down(shapes, d, rank):.2f}" for rank in (every, 64, 32, 16))]


def _down(shapes: list[tuple[int, ...]], d: int, rank: int) -> float:
    found = layers(shapes, rank, FedKron().cap)
    return 1 + (sum(layer.factor_size for layer in found) + 5 * len(found)) / d


def seconds() -> str:
    if not speed.RESULTS.exists():
        told = f"{ABSENT.capitalize()}: `python -m studies.fedkron speed`, on a quiet machine.\n"
    else:
        found = json.loads(speed.RESULTS.read_text("utf-8"))["jobs"].values()
        rows = [[j["title"], j["fedavg"], j["fedkron"], f"{j['ratio']:.2f}"] for j in found]
        told = markdown.table(["job", "FedAvg, s", "FedKron, s", "times"], rows)
    return f"""\
## Seconds

A round of FedKron beside one of FedAvg, without evaluation, on one core and in turns. Other
programs used the core, too, so only the ratio means something. Our goal is 1.3 times.

{told}"""


def theory() -> str:
    found = json.loads(counterexample.RESULTS.read_text("utf-8"))
    rows = [[r["method"], r["q"], f"{r['farthest']:g}", f"{r['end']:g}"] for r in found]
    table = markdown.table(["method", "q", "farthest from 0", "at the end"], rows)
    ours = [r for r in found if r["method"] == "FedKron"]
    lost = [str(r["q"]) for r in ours if r["farthest"] > counterexample.START]
    end = max(abs(r["end"]) for r in ours)
    verdict = (
        f"FedKron is farther from the optimum than it began for q = {listing(lost)}"
        if lost
        else "FedKron is never farther from the optimum than it began"
    )
    verdict += f", and ends at most {end:.2g} from it"
    return f"""\
## Theory

Proven, and tested in the library:

- *The scale is shared and bounded.* In a round all clients and the server divide by the same
  matrix, (R + phi I)^(1/2) / s. Its eigenvalues are at least sqrt(phi) / s, and phi is at least
  rho^4 top(R0). This is the paper's Assumption 4 with a matrix in place of a diagonal. The largest
  eigenvalue is at most sqrt(1 + 1 / rho^2) times the smallest.
- *A step of the server is bounded.* Whatever the mean gradient is, P(G) is at most
  |W_0| / sqrt(1 - beta), in the spectral norm: R has seen G before. The limited number of
  directions keeps this, since it only raises R.
- *Where it rests.* Where the bound does not act, with exact gradients and a constant step size, it
  rests only where the mean gradient of the clients is 0. There the usual length of the mean
  gradient is 0, so local steps are 0, and with them their bias. FedAvg rests beside the optimum. On
  quadratics FedKron without the limit on local steps would rest where FedAvg rests whose step size
  is the largest of the scale.
- *When it is stable* near that point: [Algorithms](algorithms.md#fedkron) has the condition.

Not proven, only seen: that it gets there from far away, with noise, and on networks.

*The counterexample.* Theorem 1 of the paper has three clients in one dimension, with exact
gradients 6, -2 and -2 outside [-1, 1] (see [Theory](theory.md#the-counterexample)). Scales that
differ between clients lead away from its optimum, 0. From {counterexample.START:g}, with the
default, {counterexample.ROUNDS} rounds and q local steps:

{table}
{verdict}. What remains is due to the bound: in the first rounds it shortens the long gradient of
one client, and not the others.
"""
