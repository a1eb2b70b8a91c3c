"""The second page: every number of the comparison, in tables of few columns."""

from __future__ import annotations

from fafed.report.numbers import NOTHING
from studies import markdown
from studies.which_algorithm import jobs
from studies.which_algorithm.defaults_part import default_tables
from studies.which_algorithm.figure import COSTS
from studies.which_algorithm.measurement import LONGEST
from studies.which_algorithm.results import (
    SKEWED,
    TITLES,
    Results,
    link,
    mark,
    percent,
    words,
    written,
)


def render_numbers(r: Results) -> str:
    parts = [_introduction(r), *(_setting(r, part) for part in TITLES), _one_place(r)]
    return markdown.wrap("\n".join([*parts, default_tables(r)]))


def _introduction(r: Results) -> str:
    e, one = jobs.experiment(SKEWED), r.content["seeds"]["one"]
    return f"""\
# Every number of the comparison

[Which algorithm should I use?](which-algorithm.md) has the advice, and says how we measured. Here
are the numbers behind it. \\* marks methods that allow no schedule: their step size is constant.

**Accuracy**

- *setting*: the best of four trials on held-out data. eta is the first step size, which falls.
- *accuracy*: on the test set after round {e.rounds}, mean and standard deviation over the three
  seeds.
- *near*: how many of the four trials end within three points of the best, on held-out data.

**Costs until the target**: what one client has spent, sent and received when an evaluation first
reaches the target. {NOTHING} means that not every seed reached it. Gradients are counted in batches
of {e.batch_size}. In *partial*, costs are means over all clients, also absent ones.

**At FedAvg's cost**

- *gradients*, *MB*: the accuracy with as many rounds (in brackets) as cost what FedAvg's
  {e.rounds} rounds cost, with seed {one}. The step size falls over these rounds. At most {LONGEST}
  rounds.
- *untuned*: the accuracy with the setting that is the same for all jobs
  ([defaults](#defaults)), after {e.rounds} rounds, with seed {one}.
"""


def _setting(r: Results, part: str) -> str:
    names, target = r.ranked(part), r.target(part)
    text = f"## {TITLES[part].capitalize()}\n\n### Accuracy, {TITLES[part]}\n\n"
    rows = [
        [
            mark(name),
            written(r.parts[part][name]["setting"]),
            r.end(part, name),
            f"{r.near(part, name)} of {len(r.grid(part, name))}",
        ]
        for name in names
    ]
    text += markdown.table(["method", "setting", "accuracy", "near"], rows)
    text += f"\n### Costs until {target}, {TITLES[part]}\n\n"
    rows = [[mark(name), *_costs(r, part, name)] for name in names]
    text += markdown.table(["method", "rounds", "gradients", "MB"], rows)
    text += f"\n### At FedAvg's cost, {TITLES[part]}\n\n"
    rows = [
        [
            mark(name),
            *(
                f"{percent(r.equal(part, name, axis))} ({r.rounds(part, name, axis)})"
                for axis in ("gradients", "bytes")
            ),
            percent(r.untuned(part, name)),
        ]
        for name in names
    ]
    return text + markdown.table(["method", "gradients", "MB", "untuned"], rows)


def _costs(r: Results, part: str, name: str) -> list[str]:
    if not r.parts[part][name]["to_target"]:
        return [NOTHING] * 3
    return [r.took(part, name, axis).removesuffix(" MB") for axis, *_ in COSTS]


def _one_place(r: Results) -> str:
    pooled, clients = jobs.experiment("pooled"), jobs.experiment(SKEWED).data.clients
    rows = [
        [link(name), written(entry["setting"]), words(r.of_pooled(name))]
        for name, entry in sorted(r.pooled.items(), key=lambda item: -r.of_pooled(item[0]).mean)
    ]
    text = f"""\
## One place

Five methods are for one client. They got all data, batches of {pooled.batch_size} (those of the
{clients} clients together) and {pooled.rounds * pooled.local_steps} steps. STORM and SuperAdam have
schedules of their own.

"""
    return text + markdown.table(["method", "setting", "accuracy"], rows)
