"""The page. All numbers come from the results. A finding appears only if the results support it."""

from __future__ import annotations

from fafed.algorithms import FedPAC
from fafed.report.numbers import listing
from studies import markdown
from studies.which_algorithm import jobs
from studies.which_algorithm.advice import advice
from studies.which_algorithm.cifar import RESULTS as CIFAR
from studies.which_algorithm.cifar import Found
from studies.which_algorithm.cifar_part import cifar_part
from studies.which_algorithm.defaults_part import defaults_part
from studies.which_algorithm.jobs import END, JOBS, SELDOM
from studies.which_algorithm.measurement import TAIL
from studies.which_algorithm.results import (
    ALIKE,
    NOT_ADVISED,
    PARTIAL,
    SKEWED,
    TITLES,
    Results,
    class_name,
    finite,
    listed,
    mark,
    percent,
    points,
)

BADLY_CHOSEN = 0.05
TWO_THIRDS = 20  # of 30 rounds: what is left of them at 1.5 times the bytes
SHOWN = 12  # methods in the short table


def render(r: Results) -> str:
    """The page."""
    on_cifar = Found.read(CIFAR)
    parts = [_introduction(r), advice(r, on_cifar), _table(r), defaults_part(r)]
    parts += [cifar_part(on_cifar), _findings(r), _measured(r), _limits(r)]
    return markdown.wrap("\n".join(parts))


def _introduction(r: Results) -> str:
    count, partial = len(r.cards) + len(r.pooled), jobs.experiment(PARTIAL)
    return f"""\
# Which algorithm should I use?

Advice first, from numbers. We measured {"" if r.not_measured else "all "}{count} methods of fafed
on small jobs, with the same clients and the same batches. *Skewed*: each client holds
{jobs.experiment(SKEWED).data.partition["k"]} of 10 classes. *Alike*: every client holds the same
mix. *Partial*: skewed, and only {100 * partial.participation:g} % of the clients take part in each
round. [How we measured](#how-we-measured), [limits](#limits), [every
number](which-algorithm-numbers.md), [each method](algorithms.md).
"""


def _table(r: Results) -> str:
    """The best methods, and those that people ask for."""
    there = [name for name in r.cards if name in r.parts[PARTIAL]]

    def mean(name: str) -> float:
        return sum(finite(r.mean(part, name)) for part in JOBS)

    ranked = sorted(there, key=mean, reverse=True)
    shown = [n for n in ranked if n in (*ranked[:SHOWN], "fedavg", "fafed")]
    rows = [[mark(n), *(f"{100 * finite(r.mean(part, n)):.1f}" for part in JOBS)] for n in shown]
    spread = max(r.accuracy(part, n).std or 0 for part in (SKEWED, ALIKE) for n in shown)
    partial = max(r.accuracy(PARTIAL, n).std or 0 for n in shown)
    text = f"""\
## The best methods

Accuracy at the end in %, the mean of {len(r.content["seeds"]["measuring"])} seeds: the {SHOWN}
methods that are best in the mean of the three settings, FedAvg and FAFED. The standard deviation is
at most {points(spread)}, and {points(partial)} in *partial*. A smaller difference means nothing.

"""
    text += markdown.table(["method", *(TITLES[part] for part in JOBS)], rows)
    return (
        text
        + """
![Final accuracies, and costs relative to FedAvg](images/which-algorithm.svg)

*Left: accuracy at the end, mean and standard deviation over the seeds. Right: what a client spent
until the target was reached on skewed data, as a multiple of FedAvg's.*
"""
    )


def _findings(r: Results) -> str:
    gains = sorted(r.falling, key=r.decay_gain)
    helped = [name for name in gains if r.decay_gain(name) > 0]
    deviation = {part: r.accuracy(part, "fedavg").std or 0 for part in JOBS}
    momentum = ("fedcm", "prsgdm")
    double = r.advisable(lambda c: c.gradients >= 2)
    paid = r.best_at(SKEWED, "gradients", double)[0]
    much = [name for name in r.advisable() if r.rounds(SKEWED, name, "bytes") <= TWO_THIRDS]
    heavy = r.best_at(SKEWED, "bytes", much)[0]
    unlucky = [
        f"{class_name(name)} in *{TITLES[part]}* by {points(-r.untuned_loss(part, name))}"
        for part in JOBS
        for name in r.parts[part]
        if r.untuned_loss(part, name) < -BADLY_CHOSEN
    ]

    def loss(name: str) -> float:
        return r.mean(ALIKE, name) - r.mean(SKEWED, name)

    def alpha(part: str, value: float) -> float:
        trials = [t for t in r.grid(part, "fafed") if t["setting"]["alpha"] == value]
        return float(max(t["accuracy"] or 0 for t in trials))

    found = [
        (
            all(loss(name) > 0 for name in r.cards),
            "**Every method loses accuracy on different data.** From alike to skewed, FedAvg loses",
            f"{points(loss('fedavg'))}, SCAFFOLD {points(loss('scaffold'))}, SCAFFOLDM",
            f"{points(loss('scaffoldm'))}.",
        ),
        (
            len(helped) > len(gains) / 2,
            f"**Let the step size fall.** On skewed data {len(helped)} of {len(gains)} methods end",
            "higher if the rule's step size falls than if it is constant (one seed). The median",
            f"gain is {points(r.decay_gain(gains[len(gains) // 2]))}, the largest",
            f"{points(r.decay_gain(gains[-1]))} ({class_name(gains[-1])}). It costs one",
            "line in the file, but the length of the run must be known.",
        ),
        (
            r.lead(SKEWED, "scaffold") > 0.01 > abs(r.lead(ALIKE, "scaffold"))
            and r.lead(PARTIAL, "scaffold") > 0.01,
            "**Correcting drift helps where there is drift.** SCAFFOLD is ahead of FedAvg by",
            f"{points(r.lead(SKEWED, 'scaffold'))} on skewed data and",
            f"{points(r.lead(PARTIAL, 'scaffold'))} if clients are absent, because it keeps",
            "information about them. On alike data they differ by",
            f"{points(abs(r.lead(ALIKE, 'scaffold')))}. On quadratics FedAvg converges to a point",
            "beside the optimum, and SCAFFOLD to the optimum. This is exact, and tested.",
        ),
        (
            all(r.lead(part, name) > 0.005 for part in (SKEWED, ALIKE) for name in momentum),
            f"**Momentum helps in both.** FedCM ends {points(r.lead(SKEWED, 'fedcm'))} above",
            f"FedAvg on skewed data and {points(r.lead(ALIKE, 'fedcm'))} on alike data, PRSGDM",
            f"{points(r.lead(SKEWED, 'prsgdm'))} and {points(r.lead(ALIKE, 'prsgdm'))}. PRSGDM",
            "sends two vectors each way, FedCM one.",
        ),
        (
            r.mean(SKEWED, "scaffoldm") > max(r.mean(SKEWED, n) for n in ("scaffold", "fedcm"))
            and r.mean(PARTIAL, "scaffoldm")
            > max(r.mean(PARTIAL, n) for n in ("scaffold", "fedcm")),
            "**Both together are better than each.** SCAFFOLDM, which is SCAFFOLD with FedCM's",
            f"momentum, ends at {r.end(SKEWED, 'scaffoldm')} on skewed data (SCAFFOLD",
            f"{r.end(SKEWED, 'scaffold')}, FedCM {r.end(SKEWED, 'fedcm')}) and at",
            f"{r.end(PARTIAL, 'scaffoldm')} with absent clients.",
        ),
        (
            all(alpha(part, 0.9) > alpha(part, 0.1) for part in JOBS),
            "**For FAFED, a large alpha is better with small batches.** With 0.9 it reaches",
            f"{listing([percent(alpha(part, 0.9)) for part in JOBS])} on held-out data in the",
            f"three settings, with 0.1 {listing([percent(alpha(part, 0.1)) for part in JOBS])},",
            "the step size chosen for each. With exact gradients a small alpha removes the drift",
            "of local steps (tested on quadratics). Here, with batches of",
            f"{jobs.experiment(SKEWED).batch_size}, it allows only smaller steps.",
        ),
        (
            r.equal(SKEWED, paid, "gradients") < finite(r.mean(SKEWED, "fedavg")) + 0.02,
            "**Two gradients per step do not pay here.** With the gradients of FedAvg's run, the",
            f"best method that takes two or more per step is {class_name(paid)} with",
            f"{percent(r.equal(SKEWED, paid, 'gradients'))} on skewed data. FedAvg ends at",
            f"{r.end(SKEWED, 'fedavg')}.",
        ),
        (
            r.equal(SKEWED, heavy, "bytes") > r.mean(SKEWED, "fedavg") + 0.01,
            "**A second vector can pay.** With the bytes of FedAvg's run, the best method that",
            f"sends 1.5 times FedAvg's bytes or more in a round is {class_name(heavy)} with",
            f"{percent(r.equal(SKEWED, heavy, 'bytes'))} on skewed data, in",
            f"{r.rounds(SKEWED, heavy, 'bytes')} rounds instead of",
            f"{jobs.experiment(SKEWED).rounds}.",
        ),
        (
            max(abs(r.lead(part, "fedprox")) for part in (SKEWED, ALIKE)) < 0.015,
            "**FedProx with its default mu is almost FedAvg.** They differ by",
            f"{points(abs(r.lead(SKEWED, 'fedprox')))} on skewed data and",
            f"{points(abs(r.lead(ALIKE, 'fedprox')))} on alike data.",
        ),
        (
            bool(unlucky),
            "**Four trials with one seed can choose badly.** The setting that is the same for all",
            "jobs beats the chosen one on the test set with the same seed:",
            f"{listing(unlucky)}. Where results vary, choose with several seeds.",
        ),
        (
            deviation[PARTIAL] > 2 * deviation[SKEWED],
            "**With a quarter of the clients per round, results vary more.** The standard",
            f"deviation of FedAvg grows from {points(deviation[SKEWED])} to",
            f"{points(deviation[PARTIAL])}. Each round moves the model towards the classes of the",
            "clients that take part.",
        ),
        (
            "naive" in NOT_ADVISED and r.lead(ALIKE, "naive") > 0,
            "**NaiveAdaptiveFedAvg is left out of the advice.** It does well here",
            f"({r.end(ALIKE, 'naive')} on alike data), but it can move away from the",
            "optimum. One of the tests has an example.",
        ),
    ]
    bullets = [" ".join(map(str, words)) for holds, *words in found if holds]
    return "## What the numbers say\n\n" + "".join(f"- {bullet}\n" for bullet in bullets)


def _fedpac(r: Results) -> str:
    if "fedpac" in r.not_measured:
        return ""
    return (
        f"- FedPAC's cap is its default, {FedPAC().cap}: the 784 inputs have no basis. With one, a "
        "message would be 25 vectors, and a run would take several times as long.\n"
    )


def _measured(r: Results) -> str:
    e, seeds = jobs.experiment(SKEWED), r.content["seeds"]
    some = jobs.experiment(PARTIAL).participation * e.data.clients
    missing = f"\nNot measured yet: {listed(r.not_measured)}.\n" if r.not_measured else ""
    return f"""\
## How we measured

The job is Fashion-MNIST on {e.data.clients} clients, a network with
{e.model.options["hidden"][0]} hidden units ({r.content["parameters"]:,} parameters), {e.rounds}
rounds of {e.local_steps} local steps with batches of {e.batch_size}, in three settings:

- *skewed*: each client holds {e.data.partition["k"]} of the 10 classes, all clients in every round;
- *alike*: every client holds the same mix, all clients in every round;
- *partial*: skewed, but only {some:.0f} random clients in each round.

Each method had four trials of its settings, with seed {seeds["choosing"]}. Data held out from the
training set chose one. Then we ran it with seeds
{listing([str(s) for s in seeds["measuring"]])} and looked at the test set. The clients' step size
falls in a straight line to {100 * END:g} % in all methods that allow it; \\* marks the others. The
script that measured the numbers writes them into this page.
{missing}"""


def _limits(r: Results) -> str:
    e = jobs.experiment(SKEWED)
    ends = {title: r.at_the_end_of_a_grid(part) for part, title in TITLES.items()}
    where = "; ".join(f"{listing(names)} ({part})" for part, names in ends.items() if names)
    batch = int(e.batch_size)
    anchor = e.local_steps * batch
    made = r.content["made_with"]
    held = e.data.validation
    return f"""\
## Limits

- Most of the advice comes from one dataset, one small network, {e.rounds} rounds, one batch size,
  one number of local steps. A larger model, more rounds or more local steps can change the order.
  The judged jobs and CIFAR-10 are a check, not more. DiLoCo, FedAdamW and FedMuon were made for
  large transformers, which are not here.
- There are three seeds. A difference of less than about two standard deviations means nothing.
- Each method had four trials: four step sizes, or two values of two settings. All other settings
  have their defaults, so methods with more settings have more to gain. After a look at held-out
  data we moved the grids of FedLADA, DOMO and FedCAMS. FedKron's other settings were chosen while
  it was made, on this data among others. Step sizes chosen at an end of their grid:
  {where or "none"}.
- Settings were chosen with one seed, by the mean of the last {TAIL} evaluations (every {SELDOM}
  rounds) on {100 * held:g} % of the training data.
- DOMO and FedGLOMO allow no schedule, so they have no step size that falls.
- Mime, MimeLite and MimeAdam take their gradient at the server's model on {anchor} examples
  (anchor="batch"), which counts as {anchor // batch} gradients per round.
{_fedpac(r)}- Bytes are the sizes of the vectors in the messages. There is no network here.

## Repeat it

```
python -m studies.which_algorithm
python -m studies.which_algorithm.cifar
fafed report runs/which-algorithm/skewed -o report    # the curves of every run
```

You may stop the commands at any time. They continue when you start them again. The settings are in
[studies/which_algorithm/configs](../studies/which_algorithm/configs), the numbers in
[studies/which_algorithm/results.json](../studies/which_algorithm/results.json). Made with fafed
{made["fafed"]} and torch {made["torch"]}.
"""
