"""docs/fedkron.md. All numbers come from the two studies' results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fafed.report.numbers import NOTHING, Stat, listing
from studies import markdown
from studies.fedkron.measurement import ABLATION_JOB, DEFAULT, MOMENTUM
from studies.which_algorithm import jobs
from studies.which_algorithm import results as which
from studies.which_algorithm.jobs import JOBS, ROOT
from studies.which_algorithm.results import TITLES, Results, class_name, percent, words, written

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "fedkron.md"

RIVALS = (
    *("fedadam", "fedams", "scaffold", "scaffoldm", "domo", "prsgdm", "localamsgrad", "fedcm"),
    *("feddyn", "diloco", "fedmuon", "fafed", "stem"),
)
FEDAVGM = "FedAvg with momentum"
GOAL = 0.8  # of the settings


def read() -> tuple[dict[str, Any], Results]:
    return (
        json.loads(RESULTS.read_text("utf-8")),
        Results(json.loads(which.RESULTS.read_text("utf-8"))),
    )


def render(found: dict[str, Any], r: Results) -> str:
    """The page."""
    parts = [_introduction(found, r), METHOD, _numbers(found, r), _parts(found), _sceptic(found, r)]
    return markdown.wrap("\n".join(parts))


METHOD = """\
## How it works

Gradients of a layer have directions in which they are large, and many in which they are small. A
single step size is too large for the first or too small for the others. Adam divides each number by
its own size. Shampoo, SOAP and Muon do better on matrices: they rescale whole directions.

In federated learning a scale must be the same on all clients. If each client divides by its own,
the mean of their models is pulled away from the optimum. The paper behind FAFED proves this, and
FAFED shares one scale for each number. FedKron shares one matrix for each layer, and gets it
without sending it:

1. Clients send the mean of their local gradients, not their models. So the server has the mean
   gradient G of every layer, as a matrix: outputs by inputs.
2. It collects R, a running mean of G'G. The directions in which R is large are those in which
   gradients are large.
3. It multiplies steps by (R + phi)^(-1/2), which makes them about equally long in all directions.
   The floor phi keeps directions with almost no gradient from being blown up. The size of the
   layer's first weights sets the unit, so one step size fits layers of any size.
4. A client that has seen all messages computes R, the momentum and x itself, from the mean gradient
   that the server sends down. So one vector goes each way, as in FedAvg.
5. In the first rounds R knows few directions, and a local step could be huge. A bound on the length
   of local steps prevents it. It rises with the rounds. What a client sends is bounded, too, so the
   server steps along what the clients did.

The step size falls in a straight line over the run, and the server has Nesterov's momentum.
[Algorithms](algorithms.md#fedkron) has the update in symbols.
"""


def _introduction(found: dict[str, Any], r: Results) -> str:
    first = [job for job in JOBS if _lead(found, r, job) > _spread(found, r, job)]
    leads = listing([f"{100 * _lead(found, r, job):+.1f} ({TITLES[job]})" for job in JOBS])
    reached = len(first) >= GOAL * len(JOBS)
    verdict = (
        f"It is first by more than the spread in {len(first)} of {len(JOBS)} settings"
        + (f" ({listing([TITLES[job] for job in first])})" if first else "")
        + f". Our goal was {100 * GOAL:g} % of all tasks. "
        + ("These settings reach it" if reached else "These settings do not reach it")
        + ", and the larger tasks are not measured yet. So FedKron stays experimental."
    )
    return f"""\
# FedKron

FedKron is fafed's own method: one matrix scale for each layer, shared by all clients, at FedAvg's
price of one gradient per step and one vector each way.

We compared it with {len(RIVALS) + 1} other methods on the three settings of
[Which algorithm should I use?](which-algorithm.md). FedKron had one setting for all of them, its
default ({written(dict(DEFAULT))}). Every other method had four trials in each setting, chosen
on held-out data, and the same falling step size where it allows one. All have the same fresh seeds:
{listing([str(seed) for seed in jobs.SEEDS])}. FedKron's lead over the best other method, in points:
{leads}. {verdict}
"""


def _default(found: dict[str, Any], job: str) -> Stat:
    return which.stat(found["default"][job]["accuracy"])


def _rivals(found: dict[str, Any], r: Results, job: str) -> dict[str, Stat]:
    rivals = {FEDAVGM: which.stat(found["fedavgm"][job]["accuracy"])}
    return rivals | {class_name(n): r.accuracy(job, n) for n in RIVALS if n in r.parts[job]}


def _best(found: dict[str, Any], r: Results, job: str) -> tuple[str, Stat]:
    return max(_rivals(found, r, job).items(), key=lambda item: which.finite(item[1].mean))


def _lead(found: dict[str, Any], r: Results, job: str) -> float:
    return which.finite(_default(found, job).mean) - _best(found, r, job)[1].mean


def _spread(found: dict[str, Any], r: Results, job: str) -> float:
    """Of the difference: the standard deviations of both, as one."""
    return math.hypot(_default(found, job).std or 0, _best(found, r, job)[1].std or 0)


def _numbers(found: dict[str, Any], r: Results) -> str:
    e = jobs.experiment(JOBS[0])
    text = f"""\
## The numbers

- *accuracy*: on the test set after {e.rounds} rounds, mean and standard deviation over three seeds.
- *equal gradients*, *equal MB*: with as many rounds (in brackets) as cost what FedAvg's
  {e.rounds} rounds cost, with seed {r.content["seeds"]["one"]}. A difference in cost of up to 5 %
  is left as it is. FedKron's default was not run apart ({NOTHING}): with all clients its costs
  differ by less.
- *seconds*: of a round without its evaluation, on one core that other programs used, too. Only
  large differences mean something.
- FedAvg with momentum has server_momentum = {MOMENTUM:g}.
"""
    head = ["method", "setting", "accuracy", "equal gradients", "equal MB", "seconds"]
    for job in JOBS:
        text += f"\n### {TITLES[job].capitalize()}\n\n" + markdown.table(head, _rows(found, r, job))
    return text


def _rows(found: dict[str, Any], r: Results, job: str) -> list[list[str]]:
    rows = {
        "**FedKron, default**": (found["default"][job], written(dict(DEFAULT)), [NOTHING] * 2),
        FEDAVGM: (
            found["fedavgm"][job],
            f"eta = {found['fedavgm'][job]['setting']['eta']:g}",
            [f"{percent(found['fedavgm'][job]['accuracy'][0] or 0)} ({_rounds()})"] * 2,
        ),
    }
    for name in ("fedkron", *RIVALS):
        if name in r.parts[job]:
            entry = r.parts[job][name]
            equal = [
                f"{percent(r.equal(job, name, axis))} ({entry['equal'][axis]['rounds']})"
                for axis in ("gradients", "bytes")
            ]
            label = which.link(name) + (", tuned" if name == "fedkron" else "")
            rows[label] = (entry, written(entry["setting"]), equal)
    ordered = sorted(
        rows.items(), key=lambda item: -which.finite(which.stat(item[1][0]["accuracy"]).mean)
    )
    return [
        [label, setting, words(which.stat(entry["accuracy"])), *equal, f"{entry['seconds']:.2g}"]
        for label, (entry, setting, equal) in ordered
    ]


def _rounds() -> int:
    return int(jobs.experiment(JOBS[0]).rounds)


def _parts(found: dict[str, Any]) -> str:
    whole = found["without"]["nothing"] or 0
    rows = [
        [label, percent(value or 0), f"{100 * ((value or 0) - whole):+.1f}"]
        for label, value in found["without"].items()
    ]
    table = markdown.table(["without", "accuracy", "points"], rows)
    return f"""\
## Which parts matter

Each part off once, in the setting *{TITLES[ABLATION_JOB]}*, all else as it is. There is one seed
({jobs.ONE_SEED}), so a point or less means nothing. Other jobs may need other parts.

{table}"""


def _sceptic(found: dict[str, Any], r: Results) -> str:
    job = JOBS[0]
    slow = found["default"][job]["seconds"] / r.parts[job]["fedavg"]["seconds"]
    behind = [j for j in JOBS if _lead(found, r, j) <= _spread(found, r, j)]
    lost = "".join(
        f"\n- *{TITLES[j]}*: it ends at {words(_default(found, j))}, {_best(found, r, j)[0]} at"
        f" {words(_best(found, r, j)[1])}."
        for j in behind
    )
    tuned = r.parts["partial"]["fedkron"]["setting"]
    where = f"Where it is not clearly first:\n{lost}\n" if behind else ""
    return f"""\
## What a sceptic should know

{where}
- A round takes {slow:.1f} times as long as FedAvg's here. Each layer needs a matrix decomposition
  per round and a matrix product per step. Count them.
- The default wire needs all clients in every round. With absent clients (*partial*) the server
  sends the scales of all layers, which are larger than the model: see *equal MB* there.
- For *partial* the trials chose {written(tuned)}. The default is {written(dict(DEFAULT))}.
- Its other settings were chosen while it was made, on Fashion-MNIST, MNIST and CIFAR-10. The
  rivals' other settings are their defaults. This favours FedKron.
- Three settings of one small job, three seeds. The convolutional networks of the paper, CIFAR-10,
  recurrent layers, attention and longer runs are not in this comparison.
- It needs to know the number of rounds, and a run cannot be made longer later.
- Nobody else has tried it. There is no proof of convergence.

## Repeat it

```
python -m studies.which_algorithm
python -m studies.fedkron
```

The numbers are in [studies/fedkron/results.json](../studies/fedkron/results.json) and in
[studies/which_algorithm/results.json](../studies/which_algorithm/results.json).
"""
