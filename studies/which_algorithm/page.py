"""The page. All numbers come from the results. A finding appears only if the results support it."""

from __future__ import annotations

from fafed.algorithms import ALGORITHMS, FedPAC
from fafed.report.numbers import NOTHING, listing
from studies import markdown
from studies.which_algorithm import jobs
from studies.which_algorithm.cifar import RESULTS as CIFAR
from studies.which_algorithm.cifar import Found
from studies.which_algorithm.cifar_part import cifar_part
from studies.which_algorithm.defaults_part import defaults_part
from studies.which_algorithm.figure import COSTS
from studies.which_algorithm.jobs import END, JOBS, SELDOM
from studies.which_algorithm.measurement import LONGEST, TAIL
from studies.which_algorithm.results import (
    ALIKE,
    EXPERIMENTAL,
    NOT_ADVISED,
    PARTIAL,
    SKEWED,
    TITLES,
    Results,
    class_name,
    finite,
    keeps_nothing,
    link,
    listed,
    mark,
    percent,
    points,
    words,
    written,
)

BADLY_CHOSEN = 0.05
TWO_THIRDS = 20  # of 30 rounds: what is left of them at 1.5 times the bytes


def render(r: Results) -> str:
    """The page."""
    parts = [_introduction(r), _advice(r), FIGURE, _numbers(r), defaults_part(r)]
    parts += [cifar_part(Found.read(CIFAR)), _findings(r), _limits(r)]
    return markdown.wrap("\n".join(parts))


FIGURE = """\
![Final accuracies, and costs relative to FedAvg](images/which-algorithm.svg)

*Left: accuracy at the end, mean and standard deviation over the seeds. Right: what a client spent
until the target was reached on skewed data, as a multiple of FedAvg's.*
"""


def _introduction(r: Results) -> str:
    e, seeds = jobs.experiment(SKEWED), r.content["seeds"]
    some = jobs.experiment(PARTIAL).participation * e.data.clients
    count, first = len(r.cards) + len(r.pooled), seeds["choosing"]
    return f"""\
# Which algorithm should I use?

We measured {"" if r.not_measured else "all "}{count} methods of fafed on one small job, with the
same clients and the same batches. Each method had four trials of its settings, with seed {first}.
Data held out from the training set chose one. Then we ran it with seeds
{listing([str(s) for s in seeds["measuring"]])} and looked at the test set. The clients' step size
falls in a straight line to {100 * END:g} % in all methods that allow it. The job is Fashion-MNIST
on {e.data.clients} clients, a network with {e.model.options["hidden"][0]} hidden units
({r.content["parameters"]:,} parameters), {e.rounds} rounds of {e.local_steps} local steps with
batches of {e.batch_size}, in three settings:

- *skewed*: each client holds {e.data.partition["k"]} of the 10 classes, all clients in every round;
- *alike*: every client holds the same mix, all clients in every round;
- *partial*: skewed, but only {some:.0f} random clients in each round.

The script that measured the numbers writes them into this page. [Limits](#limits) says what they
do not show. [Algorithms](algorithms.md) describes each method and its costs.
"""


def _advice(r: Results) -> str:
    every = r.advisable()
    plain = r.advisable(lambda c: (c.up, c.down, c.gradients, c.besides) == (1, 1, 1, ()))
    there = [name for name in every if name in r.parts[PARTIAL]]
    stateless = [name for name in there if keeps_nothing(name)]
    mixed, mixed_plain = r.best(ALIKE, every), r.best(ALIKE, plain)
    high, high_plain = r.best(SKEWED, every), r.best(SKEWED, plain)
    quick = r.cheapest(SKEWED, "rounds", plain)[0]
    gone, gone_light = r.best(PARTIAL, there), r.best(PARTIAL, stateless)
    light, light_next = r.best_at(SKEWED, "bytes", every)[:2]
    light_alike = r.best_at(ALIKE, "bytes", every)[0]
    brief, brief_next = r.best_at(SKEWED, "gradients", every)[:2]
    brief_alike = r.best_at(ALIKE, "gradients", every)[0]
    untuned, untuned_next = sorted(there, key=r.worst_gap)[:2]
    peak = r.parts[SKEWED]["fedavg"]["setting"]["eta"]
    fall = f'`eta = {{ schedule = "linear", peak = {peak:g}, end = {END:g} }}`'
    rows = {
        ("You begin", link("fedavg")): [
            f"With {fall} it ends at {r.end(ALIKE, 'fedavg')} (alike),",
            f"{r.end(SKEWED, 'fedavg')} (skewed) and {r.end(PARTIAL, 'fedavg')} (partial). One",
            "vector each way, one gradient per step, nothing to keep, one step size.",
        ],
        ("Data are alike", link(mixed, mixed_plain)): [
            f"{class_name(mixed)} ends at {r.end(ALIKE, mixed)}{_level(r, ALIKE, mixed, every)}.",
            f"It reaches {r.target(ALIKE)} after {r.took(ALIKE, mixed)} rounds, FedAvg after",
            f"{r.took(ALIKE, 'fedavg')}. Of the methods with FedAvg's cost per round,",
            f"{class_name(mixed_plain)} ends highest: {r.end(ALIKE, mixed_plain)}.",
        ],
        ("Data differ strongly, all clients in every round", link(high, high_plain)): [
            f"{class_name(high)} ends at {r.end(SKEWED, high)}{_level(r, SKEWED, high, every)}.",
            f"Of the methods with FedAvg's cost per round, {class_name(high_plain)} ends highest:",
            f"{r.end(SKEWED, high_plain)}, {points(r.lead(SKEWED, high_plain))} above FedAvg.",
            f"{class_name(quick)} is the first of them at {r.target(SKEWED)}: after",
            f"{r.took(SKEWED, quick)} rounds (FedAvg: {r.took(SKEWED, 'fedavg')}).",
        ],
        ("Clients come and go", link(gone, gone_light)): [
            f"{class_name(gone)}{_wire(gone)} ends at",
            f"{r.end(PARTIAL, gone)}{_level(r, PARTIAL, gone, there)}. FedAvg ends at",
            f"{r.end(PARTIAL, 'fedavg')}. If clients do not come back, they cannot keep a state.",
            f"Of the methods that keep none, {class_name(gone_light)}{_wire(gone_light)} ends",
            f"highest, at {r.end(PARTIAL, gone_light)}. {_refusals()}",
        ],
        ("Bytes are scarce", link(light, light_alike)): [
            f"With the bytes of FedAvg's run, {class_name(light)} ends at",
            f"{percent(r.equal(SKEWED, light, 'bytes'))} on skewed data, then comes",
            f"{class_name(light_next)} with {percent(r.equal(SKEWED, light_next, 'bytes'))}. On",
            f"alike data it is {class_name(light_alike)}:",
            f"{percent(r.equal(ALIKE, light_alike, 'bytes'))}.",
            f"If only bytes up are scarce, {link('fedcams')} sends {r.cards['fedcams'].up:.3f}",
            f"vectors instead of 1, but ends at {r.end(SKEWED, 'fedcams')}.",
        ],
        ("Gradients are scarce", link(brief, brief_alike)): [
            f"With the gradients of FedAvg's run, {class_name(brief)} ends at",
            f"{percent(r.equal(SKEWED, brief, 'gradients'))} on skewed data, then comes",
            f"{class_name(brief_next)} with",
            f"{percent(r.equal(SKEWED, brief_next, 'gradients'))}. On",
            f"alike data it is {class_name(brief_alike)}:",
            f"{percent(r.equal(ALIKE, brief_alike, 'gradients'))}.",
        ],
        ("No time to tune", link(untuned)): [
            f"Its default, `{written(r.parts[SKEWED][untuned]['default'])}`, but falling in a",
            "straight line, [was never more than]"
            f"(#what-it-costs-to-choose-nothing) {points(r.worst_gap(untuned))} below tuned FedAvg,"
            if r.worst_gap(untuned) > 0
            else "straight line, [was above tuned FedAvg](#what-it-costs-to-choose-nothing)",
            "on six jobs with one seed. The choice had not seen three of them. It ends at",
            f"{_three(r, untuned)}. Next is",
            f"{class_name(untuned_next)} with {_three(r, untuned_next)}. FedAvg, tuned, ends at",
            f"{listing([percent(r.mean(part, 'fedavg')) for part in JOBS])}.",
        ],
    }
    if all(r.mean(part, EXPERIMENTAL) > r.mean(part, r.best(part, there)) for part in JOBS):
        rows["An experiment is welcome", link(EXPERIMENTAL)] = [
            "It ends highest in all three settings:",
            f"{listing([r.end(part, EXPERIMENTAL) for part in JOBS])}, with one vector each way",
            "if all clients take part. It is fafed's own and has not been tried by others. Its",
            "rounds take several times as long. [FedKron](fedkron.md) has more.",
        ]
    lines = [[*situation, " ".join(reasons)] for situation, reasons in rows.items()]
    return "## In short\n\n" + markdown.table(["your situation", "take", "because"], lines)


def _three(r: Results, name: str) -> str:
    return listing([f"{percent(r.untuned(part, name))} ({TITLES[part]})" for part in JOBS])


def _level(r: Results, part: str, first: str, among: list[str]) -> str:
    """Who is not told apart from the first by the spread."""
    names = r.level(part, first, among)
    return f" (within the spread: {listed(names)})" if names else ""


def _wire(name: str) -> str:
    wire = jobs.experiment(PARTIAL).settings.get(name, {}).get("wire")
    return f' with wire="{wire}"' if wire else ""


def _refusals() -> str:
    names = [n for n in jobs.experiment(SKEWED).search if ALGORITHMS[n]().requires_all_clients]
    never = listed(name for name in names if not _wire(name))
    optional = listed(name for name in names if _wire(name))
    return f'{never} needs all clients. So do {optional}, except with wire="full".'


def _numbers(r: Results) -> str:
    e = jobs.experiment(SKEWED)
    text = f"""\
## The numbers

- *setting*: the best of four trials on held-out data. eta is the first step size, which falls. \\*
  marks methods that allow no schedule: theirs is constant.
- *accuracy*: on the test set after round {e.rounds}, mean and standard deviation over the three
  seeds.
- *rounds*, *gradients*, *MB*: what one client has spent, sent and received when an evaluation first
  reaches the target. {NOTHING} means that not every seed reached it. Gradients are counted in
  batches of {e.batch_size}. In *partial*, costs are means over all clients, also absent ones.
- *equal gradients*, *equal MB*: the accuracy with as many rounds (in brackets) as cost what
  FedAvg's {e.rounds} rounds cost, with seed {r.content["seeds"]["one"]}. The step size falls over
  these rounds. At most {LONGEST} rounds.
- *untuned*: the accuracy with the setting that is the same for all jobs (see
  [below](#what-it-costs-to-choose-nothing)), with seed {r.content["seeds"]["one"]}.
- *near*: how many of the four trials end within three points of the best, on held-out data.
"""
    if missing := r.not_measured:
        text += f"\nNot measured yet: {listed(missing)}.\n"
    head = ["method", "setting", "accuracy", "rounds", "gradients", "MB"]
    head += ["equal gradients", "equal MB", "untuned", "near"]
    for part, title in TITLES.items():
        text += f"\n### {title.capitalize()}: target {r.target(part)}\n\n"
        text += markdown.table(head, [_row(r, part, name) for name in r.ranked(part)])
    pooled = jobs.experiment("pooled")
    rows = [
        [link(name), written(entry["setting"]), words(r.of_pooled(name))]
        for name, entry in sorted(r.pooled.items(), key=lambda item: -r.of_pooled(item[0]).mean)
    ]
    text += f"""
### One place

Five methods are for one client. They got all data, batches of {pooled.batch_size} (those of the
{e.data.clients} clients together) and {pooled.rounds * pooled.local_steps} steps. STORM and
SuperAdam have schedules of their own.

"""
    return text + markdown.table(["method", "setting", "accuracy"], rows)


def _row(r: Results, part: str, name: str) -> list[str]:
    entry = r.parts[part][name]
    costs = [r.took(part, name, axis).removesuffix(" MB") for axis, *_ in COSTS]
    equal = [
        f"{percent(r.equal(part, name, axis))} ({entry['equal'][axis]['rounds']})"
        for axis in ("gradients", "bytes")
    ]
    return [
        *(mark(name), written(entry["setting"]), r.end(part, name)),
        *(costs if entry["to_target"] else [NOTHING] * 3),
        *equal,
        percent(r.untuned(part, name)),
        f"{r.near(part, name)} of {len(r.grid(part, name))}",
    ]


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

- One dataset, one small network, {e.rounds} rounds, one batch size, one number of local steps. A
  larger model, more rounds or more local steps can change the order. Transformers, for which
  DiLoCo, FedAdamW and FedMuon were made, are not here.
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
fafed report runs/which-algorithm/skewed -o report    # the curves of every run
```

You may stop the command at any time. It continues when you start it again. The settings are in
[studies/which_algorithm/configs](../studies/which_algorithm/configs), the numbers in
[studies/which_algorithm/results.json](../studies/which_algorithm/results.json). Made with fafed
{made["fafed"]} and torch {made["torch"]}.
"""
