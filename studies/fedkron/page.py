"""docs/fedkron.md. All numbers come from the two studies' results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from fafed.report.numbers import NOTHING, Stat, listing
from studies import markdown
from studies.fedkron import choices, networks, sections
from studies.fedkron.costs import costs
from studies.fedkron.ledger import Ledger
from studies.fedkron.measurement import DEFAULT, MOMENTUM
from studies.which_algorithm import cifar, jobs
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
RESNET = "cifar-dirichlet-0.1"  # of studies.which_algorithm.cifar
AXES = ("gradients", "bytes")


def read() -> tuple[dict[str, Any], Results]:
    return (
        json.loads(RESULTS.read_text("utf-8")),
        Results(json.loads(which.RESULTS.read_text("utf-8"))),
    )


def render(found: dict[str, Any], r: Results) -> str:
    """The page."""
    chosen, larger = Ledger(choices.RESULTS), Ledger(networks.RESULTS)
    parts = [
        *(
            _introduction(found, r, larger),
            METHOD,
            _numbers(found, r),
            costs(found, r, RIVALS, FEDAVGM),
        ),
        *(sections.compared(larger), sections.parts(chosen), sections.default(chosen)),
        *(sections.wire(), sections.seconds(), sections.theory()),
        _sceptic(found, r, larger),
    ]
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
3. It keeps the 64 largest directions of R and one number for all others. For a layer with a
   thousand inputs this is 16 times less than the whole matrix.
4. It multiplies steps by (R + phi)^(-1/2), which makes them about equally long in all directions.
   The floor phi keeps directions with almost no gradient from being blown up. The size of the
   layer's first weights sets the unit, so one step size fits layers of any size.
5. A client that has seen all messages computes R, the momentum and x itself, from the mean gradient
   that the server sends down. So one vector goes each way, as in FedAvg, and two numbers per layer.
6. The gradients of one client are longer than the mean gradient, even if they are averaged over the
   round: clients differ. So local steps of a layer are shorter by the ratio of these two usual
   lengths. A client moves about as far in a round as the mean gradient would move it. The factor
   is the same for all clients. Where the mean gradient is 0, local steps are 0, too.
7. In the first rounds R knows few directions, and gradients may become much longer within a round.
   So there is a bound: a gradient of a layer counts as at most twice as long as those of all
   clients were lately. What a client sends is bounded, too, so the server steps along what the
   clients did.

The two numbers per layer are these usual lengths: of a client's gradients, and of their mean over a
round. The step size falls in a straight line over the run, and the server has Nesterov's momentum.
[Algorithms](algorithms.md#fedkron) has the update in symbols.
"""


class Standing(NamedTuple):
    """Over the three settings, the tasks, and the small ResNet of the other study."""

    first: int  # by more than the spread
    behind: int  # measured in full, and not clearly first
    every: int

    @property
    def least(self) -> int:
        """The goal."""
        return math.ceil(sections.GOAL * self.every)

    @property
    def verdict(self) -> str:
        if self.first >= self.least:
            return "The goal is reached."
        open_ = self.every - self.first - self.behind
        return "The goal is not reached" + (" yet." if self.first + open_ >= self.least else ".")


def _standing(found: dict[str, Any], r: Results, larger: Ledger) -> Standing:
    complete, won = sections.standing(dict(networks.there(larger)))
    ahead = sum(_lead(found, r, job) > _spread(found, r, job) for job in JOBS)
    first = ahead + len(won) + _first_on_resnet()
    measured = len(JOBS) + len(complete) + 1
    return Standing(first, measured - first, len(JOBS) + len(networks.TASKS) + 1)


def _introduction(found: dict[str, Any], r: Results, larger: Ledger) -> str:
    first = [job for job in JOBS if _lead(found, r, job) > _spread(found, r, job)]
    leads = listing([f"{100 * _lead(found, r, job):+.1f} ({TITLES[job]})" for job in JOBS])
    whole = _standing(found, r, larger)
    verdict = (
        f"It is first by more than the spread in {len(first)} of {len(JOBS)} settings"
        + (f" ({listing([TITLES[job] for job in first])})" if first else "")
        + f". With [larger tasks](#on-larger-networks-and-on-text) it is first on {whole.first} of "
        f"{whole.every}, and not first on {whole.behind}. Our goal is {whole.least}. "
        f"{whole.verdict} FedKron is experimental."
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
  is left as it is.
- *seconds*: of a round without its evaluation, on one core that other programs used, too. Those of
  FedKron and of FedAvg with momentum were measured at another time, when the others used most of
  it. [Seconds](#seconds) compares FedKron with FedAvg in turns.
- FedAvg with momentum has server_momentum = {MOMENTUM:g}.
"""
    head = ["method", "setting", "accuracy", "equal gradients", "equal MB", "seconds"]
    for job in JOBS:
        text += f"\n### {TITLES[job].capitalize()}\n\n" + markdown.table(head, _rows(found, r, job))
    return text


def _rows(found: dict[str, Any], r: Results, job: str) -> list[list[str]]:
    ours, momentum = found["default"][job], found["fedavgm"][job]
    rows = {
        f"**{which.link('fedkron')}, default**": (
            ours,
            written(dict(DEFAULT)),
            [_ours_at_equal(ours, axis) for axis in AXES],
        ),
        FEDAVGM: (
            momentum,
            f"eta = {momentum['setting']['eta']:g}",
            [_equal(momentum["accuracy"][0], {"rounds": _rounds()})] * 2,
        ),
    }
    for name in RIVALS:
        if name in r.parts[job]:
            entry = r.parts[job][name]
            equal = [_equal(r.equal(job, name, axis), entry["equal"][axis]) for axis in AXES]
            rows[which.link(name)] = (entry, written(entry["setting"]), equal)
    ordered = sorted(
        rows.items(), key=lambda item: -which.finite(which.stat(item[1][0]["accuracy"]).mean)
    )
    return [
        [label, setting, words(which.stat(entry["accuracy"])), *equal, f"{entry['seconds']:.2g}"]
        for label, (entry, setting, equal) in ordered
    ]


def _ours_at_equal(ours: dict[str, Any], axis: str) -> str:
    entry = ours.get("equal", {}).get(axis)
    return _equal(entry["accuracy"], entry) if entry else NOTHING


def _equal(accuracy: float | None, entry: dict[str, Any]) -> str:
    return f"{percent(accuracy or 0)} ({entry['rounds']})"


def _rounds() -> int:
    return int(jobs.experiment(JOBS[0]).rounds)


def _sceptic(found: dict[str, Any], r: Results, larger: Ledger) -> str:
    behind = [j for j in JOBS if _lead(found, r, j) <= _spread(found, r, j)]
    lost = "".join(
        f"\n- *{TITLES[j]}*: it ends at {words(_default(found, j))}, {_best(found, r, j)[0]} at"
        f" {words(_best(found, r, j)[1])}."
        for j in behind
    )
    lost += "".join(f"\n- {told}" for told in sections.lost(larger))
    where = f"Where it is measured in full and not clearly first:\n{lost}\n\n" if lost else ""
    return f"""\
## What a sceptic should know

{_goal(_standing(found, r, larger))}
{where}- Its bound is a factor of each client's own. Where it acts, the scale is not shared, and the
  [theory](#theory) does not hold. It acts in the first rounds, and on gradients that are more than
  twice as long as usual. A client whose gradients are always so long would be held back.
- Each layer needs a matrix decomposition per round and a matrix product per step. See
  [Seconds](#seconds), and count them.
- With absent clients the server [sends more](#when-clients-are-absent) than the model: three times
  as much for a small MLP.
- Its other settings, and the limit on local steps, were chosen while it was made: on held-out data,
  with seeds 5 to 7, of the three settings above, of Fashion-MNIST at all three levels, of MNIST and
  CIFAR-10 at *high*, and of the LSTM and the transformer.
  The rivals' other settings are their defaults. This favours FedKron. On other
  jobs, some of them of the same data, it is compared in [Which algorithm should I
  use?](which-algorithm.md#what-it-costs-to-choose-nothing): with the defaults of all methods, and
  on a [small ResNet](which-algorithm.md#cifar-10-a-small-resnet).
- Small networks, short runs and three seeds. Deep networks and longer runs are not in these
  comparisons.
- It needs to know the number of rounds, and a run cannot be made longer later.
- Nobody else has tried it. There is no proof of convergence.

## Repeat it

```
python -m studies.which_algorithm
python -m studies.fedkron                 # FedKron and FedAvg with momentum on the same settings
python -m studies.fedkron choices
python -m studies.fedkron networks        # hours; --minutes 60 stops after an hour
python -m studies.fedkron counterexample
python -m studies.fedkron speed           # on a quiet machine
```

The numbers are in [studies/fedkron](../studies/fedkron/) and in
[studies/which_algorithm/results.json](../studies/which_algorithm/results.json). The runs of
*choices* and *networks* are kept one by one, so another machine can go on with them.
"""


def _goal(whole: Standing) -> str:
    return f"""\
There are {whole.every} settings and tasks: the three settings, the {len(networks.TASKS)} tasks, and
[a small ResNet](which-algorithm.md#cifar-10-a-small-resnet) with 10 of 100 clients (Dirichlet 0.1),
where FedKron's step size was tuned like those of the others. The goal is to be first on
{whole.least} of them, by more than the spread. FedKron is first on {whole.first}. On {whole.behind}
it is not. The other {whole.every - whole.first - whole.behind} are not measured with all rivals
yet. {whole.verdict}
"""


def _first_on_resnet() -> bool:
    found = cifar.Found.read(cifar.RESULTS)
    ends = {name: which.stat(found.measured(RESNET, name)) for name in cifar.GRIDS}
    ours = ends.pop("fedkron")
    best = max(ends.values(), key=lambda stat: which.finite(stat.mean))
    return ours.mean - best.mean > math.hypot(ours.std or 0, best.std or 0)
