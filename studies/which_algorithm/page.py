"""The page. All numbers come from the results. A finding appears only if the results support it."""

from __future__ import annotations

from fafed.algorithms import ALGORITHMS
from fafed.report.numbers import NOTHING, listing
from studies import markdown
from studies.which_algorithm.figure import COSTS
from studies.which_algorithm.measurement import TAIL
from studies.which_algorithm.results import (
    ALIKE,
    PARTIAL,
    SECOND,
    SKEWED,
    Results,
    class_name,
    link,
    percent,
    points,
    read_experiment,
)


def render(r: Results) -> str:
    """The page."""
    parts = [_introduction(r), _advice(r), FIGURE, _numbers(r), _findings(r), _limits(r)]
    return markdown.wrap("\n".join(parts))


FIGURE = """\
![Final accuracies, and costs relative to FedAvg](images/which-algorithm.svg)

*Left: accuracy at the end, mean and standard deviation over the seeds. Right: what a client spent
until the target was reached on skewed data, as a multiple of FedAvg's.*
"""


def _introduction(r: Results) -> str:
    e, seeds = read_experiment(SKEWED), r.content["seeds"]
    some = read_experiment(PARTIAL).participation * e.data.clients
    return f"""\
# Which algorithm should I use?

We measured {"" if r.not_measured else "all "}{len(r.cards)} federated methods of fafed
on one small job, with the same clients and the same batches. Each method had four trials of its
step size with seed {seeds["choosing"]}. The training loss chose one. Then we ran it with seeds
{listing([str(s) for s in seeds["measuring"]])}. The job is Fashion-MNIST
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
            "No method that sends whole vectors costs less: it sends one vector each way, takes",
            "one gradient per step, keeps nothing on clients and has one step size. On alike",
            "data it ends at",
            f"{r.end(ALIKE, 'fedavg')}, {points(behind)} behind the best.",
        ],
        ("Data are alike", link(mixed, mixed_plain)): [
            f"{class_name(mixed)} ends at {r.end(ALIKE, mixed)}. It reaches {r.target(ALIKE)}",
            f"after {r.took(ALIKE, mixed)} rounds, FedAvg after {r.took(ALIKE, 'fedavg')}. Of the",
            f"methods with FedAvg's cost per round, {class_name(mixed_plain)} ends highest:",
            f"{r.end(ALIKE, mixed_plain)}.",
        ],
        ("Data differ strongly, all clients in every round", link(quick, high)): [
            f"{'It has' if quick == high else 'Both have'} FedAvg's cost per round.",
            f"{class_name(quick)} reaches {r.target(SKEWED)} after",
            f"{r.took(SKEWED, quick)} rounds (FedAvg: {r.took(SKEWED, 'fedavg')}).",
            f"{class_name(high)} ends highest: {r.end(SKEWED, high)},",
            f"{points(r.lead(SKEWED, high))} above FedAvg.",
        ],
        ("Clients come and go", link(there, stateless)): [
            f"{class_name(there)}{_wire(there)} ends at {r.end(PARTIAL, there)}, FedAvg at",
            f"{r.end(PARTIAL, 'fedavg')}. If clients do not come back, they cannot keep a",
            f"state. Of the methods that keep none, {class_name(stateless)} ends highest, at",
            f"{r.end(PARTIAL, stateless)}. {_refusals()}",
        ],
        ("Bytes are scarce", link(light)): [
            f"It reaches {r.target(SKEWED)} on skewed data with {r.took(SKEWED, light, 'bytes')}",
            f"per client. Next is {class_name(light_next)} with",
            f"{r.took(SKEWED, light_next, 'bytes')}.",
            f"FedAvg needs {r.took(SKEWED, 'fedavg', 'bytes')}. If only bytes up are scarce,",
            f"{link('fedcams')} sends {r.cards['fedcams'].up:.3f} vectors instead of 1, but ends",
            f"at {r.end(SKEWED, 'fedcams')}.",
        ],
        ("Gradients are scarce", link(brief)): [
            f"It reaches {r.target(SKEWED)} on skewed data with",
            f"{r.took(SKEWED, brief, 'gradients')} per client. Next is {class_name(brief_next)}",
            f"with {r.took(SKEWED, brief_next, 'gradients')}.",
            f"FedAvg needs {r.took(SKEWED, 'fedavg', 'gradients')}. Methods with two or more per",
            "step need at least",
            f"{min(r.cost(SKEWED, name, 'gradients') for name in costly):.0f}.",
        ],
        ("No time to tune", link(untuned)): [
            f"With its default step size it ends at {percent(r.default(SKEWED, untuned))}",
            f"(skewed) and {percent(r.default(ALIKE, untuned))} (alike).",
            f"{r.near(SKEWED, untuned)} and {r.near(ALIKE, untuned)} of 4 step sizes end within",
            f"three points of the best. Next is {class_name(untuned_next)}. FedAvg's default gives",
            f"{percent(r.default(SKEWED, 'fedavg'))} and {percent(r.default(ALIKE, 'fedavg'))}.",
        ],
    }
    lines = [[*situation, " ".join(reasons)] for situation, reasons in rows.items()]
    return "## In short\n\n" + markdown.table(["your situation", "take", "because"], lines)


def _wire(name: str) -> str:
    wire = read_experiment(PARTIAL).settings.get(name, {}).get("wire")
    return f' with wire="{wire}"' if wire else ""


def _refusals() -> str:
    names = [
        name for name in read_experiment(SKEWED).search if ALGORITHMS[name]().requires_all_clients
    ]
    never = listing([class_name(name) for name in names if not _wire(name)])
    optional = listing([class_name(name) for name in names if _wire(name)])
    return f'{never} needs all clients. So do {optional}, except with wire="full".'


def _numbers(r: Results) -> str:
    e = read_experiment(SKEWED)
    text = f"""\
## The numbers

- *accuracy*: on the test set. It is the mean of the last {TAIL} evaluations (every {e.eval_every}
  rounds up to round {e.rounds}), then the mean and standard deviation over the three seeds.
- *rounds*, *gradients*, *MB*: what one client has spent, sent and received when an evaluation first
  reaches the target. {NOTHING} means that not every seed reached it. Gradients are counted in
  batches of {e.batch_size}.
- *default*: accuracy with the method's default step size, with seed
  {r.content["seeds"]["choosing"]}.
- *near*: how many of the four step sizes end within three points of the best of them, with the same
  seed. Neighbouring step sizes differ by a factor of about three.
"""
    if missing := r.not_measured:
        text += f"\nNot measured yet: {listing([class_name(name) for name in missing])}.\n"
    note = """
The step sizes are those chosen for skewed data. Costs are means over all clients, also absent ones.
"""
    for part, title in ((SKEWED, "Skewed"), (ALIKE, "Alike"), (PARTIAL, "Partial")):
        text += f"\n### {title}: target {r.target(part)}\n{note if part == PARTIAL else ''}\n"
        head = ["method", "step", "accuracy", "rounds", "gradients", "MB", "default", "near"]
        head = head[:6] if part == PARTIAL else head
        text += markdown.table(head, [_row(r, part, n) for n in r.ranked(part)])
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
            "**Every method loses accuracy on different data.** From alike to skewed, FedAvg loses",
            f"{points(loss('fedavg'))}, SCAFFOLD {points(loss('scaffold'))}.",
        ),
        (
            r.lead(SKEWED, "scaffold") > 0.01 > abs(r.lead(ALIKE, "scaffold"))
            and r.cost(SKEWED, "scaffold", "rounds") < r.cost(SKEWED, "fedavg", "rounds")
            and r.lead(SKEWED, "fedpd") < 0,
            "**Correcting drift helps where there is drift.** On skewed data SCAFFOLD reaches the",
            f"target after {r.took(SKEWED, 'scaffold')} rounds and FedAvg after",
            f"{r.took(SKEWED, 'fedavg')}, at the same cost per round. On alike data they need",
            f"{r.took(ALIKE, 'scaffold')} and {r.took(ALIKE, 'fedavg')}. On quadratics FedAvg",
            "converges to a point beside the optimum, and SCAFFOLD to the optimum. This is exact,",
            "and tested. But a method without bias can be slow: FedPD has no bias, and ends at",
            f"{r.end(SKEWED, 'fedpd')} with its default mu.",
        ),
        (
            all(r.lead(part, n) > 0.005 for part in (SKEWED, ALIKE) for n in ("prsgdm", "domo")),
            f"**Momentum helps in both.** PRSGDM ends {points(r.lead(SKEWED, 'prsgdm'))} above",
            f"FedAvg on skewed data and {points(r.lead(ALIKE, 'prsgdm'))} on alike data,",
            f"DOMO {points(r.lead(SKEWED, 'domo'))} and {points(r.lead(ALIKE, 'domo'))}. PRSGDM",
            "sends two vectors each way, DOMO one.",
        ),
        (
            max(server) < 0.01 and gain("fedadam") > 0.02 and r.lead(SECOND, "fedadam") > 0.01,
            "**If the server adapts, both step sizes matter.** With their default local steps,",
            f"FedAdam, FedYogi, FedAdagrad and FedAMS end {100 * min(server):+.1f} to",
            f"{100 * max(server):+.1f} points from FedAvg on skewed data. On quadratics they",
            "converge to the same point as FedAvg. This is exact, and tested. With local steps of",
            f"0.1 instead of 0.01, FedAdam goes from {r.end(SKEWED, 'fedadam')} to",
            f"{r.end(SECOND, 'fedadam')} and reaches {r.target(SECOND)} after",
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
            "small alpha removes the drift of local steps (tested on quadratics). Here, with",
            f"batches of {read_experiment(SKEWED).batch_size}, it allows only small steps. Include",
            "alpha in every search. Two gradients per step remain: FAFED with alpha = 0.9 reaches",
            f"{r.target(SECOND)} after {r.took(SECOND, 'fafed')} rounds and",
            f"{r.took(SECOND, 'fafed', 'gradients')} gradients, FedAvg after",
            f"{r.took(SKEWED, 'fedavg')} and {r.took(SKEWED, 'fedavg', 'gradients')}.",
        ),
        (
            max(abs(r.lead(part, "fedprox")) for part in (SKEWED, ALIKE)) < 0.01,
            "**FedProx with its default mu is almost FedAvg.** They differ by",
            f"{points(abs(r.lead(SKEWED, 'fedprox')))} on skewed data and",
            f"{points(abs(r.lead(ALIKE, 'fedprox')))} on alike data.",
        ),
        (
            deviation[PARTIAL] > 3 * deviation[SKEWED]
            and r.ranked(PARTIAL)[0] == "scaffold"
            and r.ranked(SKEWED)[0] == "domo"
            and r.lead(PARTIAL, "domo") < -0.02,
            "**With a quarter of the clients per round, results vary more.** The standard",
            f"deviation of FedAvg grows from {points(deviation[SKEWED])} to",
            f"{points(deviation[PARTIAL])},",
            f"that of {class_name(shaky)} is {points(r.accuracy(PARTIAL, shaky).std)}. Each round",
            "moves the model towards the classes of the clients that take part. SCAFFOLD ends at",
            f"{r.end(PARTIAL, 'scaffold')}: its c keeps information about absent clients. DOMO is",
            f"best with all clients. Here it ends {points(-r.lead(PARTIAL, 'domo'))} below FedAvg",
            "with the same step size: choose the step size again if clients come and go.",
        ),
        (
            r.lead(ALIKE, "naive") > 0,
            "**NaiveAdaptiveFedAvg is left out of the advice.** It does well here",
            f"({r.end(ALIKE, 'naive')} on alike data), but it can move away from the",
            "optimum. One of the tests has an example.",
        ),
    ]
    bullets = [" ".join(map(str, words)) for holds, *words in found if holds]
    return "## What the numbers say\n\n" + "".join(f"- {bullet}\n" for bullet in bullets)


def _limits(r: Results) -> str:
    e = read_experiment(SKEWED)
    ends = {part: r.at_the_end_of_a_grid(part) for part in (SKEWED, ALIKE, SECOND)}
    where = "; ".join(f"{listing(names)} ({part})" for part, names in ends.items() if names)
    batch, data = int(e.batch_size), 60_000 // e.data.clients
    anchor = e.local_steps * batch
    made = r.content["made_with"]
    return f"""\
## Limits

- One dataset, one small network, {e.rounds} rounds, one batch size, one number of local steps. A
  larger model, more rounds or more local steps can change the order.
- There are three seeds. A difference of less than about two standard deviations means nothing.
- On skewed data one evaluation differs from the next by several points. So we take the mean of
  {TAIL}. With 36 or 40 rounds and the last evaluation alone, DOMO, MimeAdam, PRSGDM, LocalAMSGrad
  and SCAFFOLD were ahead of FedAvg as they are here, and SCAFFOLD was first with absent clients.
  But FedAdam, FedYogi, FedAdagrad and FedAMS were ahead of FedAvg, too.
- Each method had four trials of its main step size only (the server's, if the server adapts). All
  other settings have their defaults, so methods with more settings have more to gain. After a first
  look we moved the grids to keep the choices away from their ends. Choices at an end:
  {where or "none"}.
- Step sizes were chosen with one seed. For partial participation they were not chosen again.
- Mime, MimeLite and MimeAdam take their gradient at the server's model on {anchor} examples
  (anchor="batch"), which counts as {anchor // batch} gradients per round. The default, all
  {data:,} examples of the client, would count as {data // batch}.
- Bytes are the sizes of the vectors in the messages. There is no network here, and time is not
  compared.

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
