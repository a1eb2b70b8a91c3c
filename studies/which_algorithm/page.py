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
on one small job: the same clients, the same batches, four trials of the step size for each
(seed {seeds["choosing"]}, chosen by the training loss), then seeds
{listing([str(s) for s in seeds["measuring"]])}. The job is Fashion-MNIST
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
            f"{class_name(mixed)} ends at {r.end(ALIKE, mixed)} and is at {r.target(ALIKE)} after",
            f"{r.took(ALIKE, mixed)} rounds, FedAvg after {r.took(ALIKE, 'fedavg')}. Of the",
            f"methods at FedAvg's price per round, {class_name(mixed_plain)} ends highest:",
            f"{r.end(ALIKE, mixed_plain)}.",
        ],
        ("Data differ strongly, everyone is there in every round", link(quick, high)): [
            f"At FedAvg's price per round, {class_name(quick)} is at {r.target(SKEWED)} after",
            f"{r.took(SKEWED, quick)} rounds (FedAvg: {r.took(SKEWED, 'fedavg')}), and",
            f"{class_name(high)} ends highest: {r.end(SKEWED, high)},",
            f"{points(r.lead(SKEWED, high))} above FedAvg.",
        ],
        ("Clients come and go", link(there, stateless)): [
            f"{class_name(there)}{_wire(there)} ends at {r.end(PARTIAL, there)}, FedAvg at",
            f"{r.end(PARTIAL, 'fedavg')}. If clients do not come back, nothing can be kept on",
            f"them: of the methods that keep nothing, {class_name(stateless)} ends highest, at",
            f"{r.end(PARTIAL, stateless)}. {_refusals()}",
        ],
        ("Bytes are scarce", link(light)): [
            f"{r.took(SKEWED, light, 'bytes')} per client to {r.target(SKEWED)} on skewed data;",
            f"next is {class_name(light_next)} with {r.took(SKEWED, light_next, 'bytes')},",
            f"FedAvg takes {r.took(SKEWED, 'fedavg', 'bytes')}. If only the way up is scarce,",
            f"{link('fedcams')} sends {r.cards['fedcams'].up:.3f} vectors instead of 1, but ends",
            f"at {r.end(SKEWED, 'fedcams')}.",
        ],
        ("Gradients are scarce", link(brief)): [
            f"{r.took(SKEWED, brief, 'gradients')} per client to {r.target(SKEWED)} on skewed",
            f"data; next is {class_name(brief_next)} with",
            f"{r.took(SKEWED, brief_next, 'gradients')},",
            f"FedAvg takes {r.took(SKEWED, 'fedavg', 'gradients')}, and no method with two or",
            "more per step less than",
            f"{min(r.cost(SKEWED, name, 'gradients') for name in costly):.0f}.",
        ],
        ("No time to tune", link(untuned)): [
            f"With its default step size it ends at {percent(r.default(SKEWED, untuned))}",
            f"(skewed) and {percent(r.default(ALIKE, untuned))} (alike), and",
            f"{r.near(SKEWED, untuned)} and {r.near(ALIKE, untuned)} of 4 step sizes end within",
            f"three points of the best. Next is {class_name(untuned_next)}; FedAvg's default gives",
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
    return f'{never} cannot run without everyone, {optional} only with wire="full".'


def _numbers(r: Results) -> str:
    e = read_experiment(SKEWED)
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
    if missing := r.not_measured:
        text += f"\nNot measured yet: {listing([class_name(name) for name in missing])}.\n"
    note = """
With the step sizes chosen for skewed data. Costs are means over all clients, there or not.
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
            f"batches of {read_experiment(SKEWED).batch_size}, it allows small steps only. Put",
            "alpha into every search. Two gradients per step remain: FAFED with alpha = 0.9 is at",
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
            f"that of {class_name(shaky)} is {points(r.accuracy(PARTIAL, shaky).std)}: each round",
            "pulls towards the classes of those who are there. SCAFFOLD ends at",
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
  (anchor="batch"), which counts for {anchor // batch} gradients per round. The default, all
  {data:,} examples of the client, would count for {data // batch}.
- Bytes are what the vectors of the messages weigh. There is no network here, and time is not
  compared.

## Make it again

```
python -m studies.which_algorithm
fafed report runs/which-algorithm/skewed -o report    # the curves of every run
```

Stop it when you like; it goes on where it was. The settings are in
[studies/which_algorithm/configs](../studies/which_algorithm/configs), the numbers in
[studies/which_algorithm/results.json](../studies/which_algorithm/results.json). Made with fafed
{made["fafed"]} and torch {made["torch"]}.
"""
