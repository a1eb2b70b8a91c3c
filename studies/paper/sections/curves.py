"""Training curves on images: Figures 2 to 4."""

from __future__ import annotations

from fafed.report.numbers import Stat, listing
from studies.paper import tables, verdicts
from studies.paper.findings import DATA, Findings


def figures(f: Findings) -> str:
    c = f.protocol.curves
    return f"""\
## Figures 2 to 4: training loss against rounds

The paper finds FAFED's loss below everybody's, and smoother than FedAdam's and FedAMS's. Here is
the loss of the server's model on 5,000 training examples. Fashion-MNIST: the runs of Table 2.
MNIST and CIFAR-10: {c.rounds} rounds, one seed ({c.seed}) and a short search, so they show what
that search finds, not what a method can do. FAFED's place.
{verdicts.sentence(verdicts.losses_words(f))} Its loss goes up less {verdicts.rises_words(f)}. The
[numbers](paper-appendix.md#figures-2-to-4-numbers) are in the appendix.

**Figure 2, low**

{{figure-2}}

**Figure 3, moderate**

{{figure-3}}

**Figure 4, high**

{{figure-4}}

{_again(f)}"""


def _again(f: Findings) -> str:
    """MNIST and CIFAR-10 after a search at every level."""
    p = f.protocol.again
    parts = [
        f"**With three seeds.** MNIST and CIFAR-10 for {p.rounds} rounds, with a search at every "
        f"level as for Table 2 and seeds {listing([str(s) for s in p.seeds])}. Test accuracy:\n"
    ]
    for data, names in p.data.items():
        found = {n: {m: f.end(f.again(n, m)) for m in f.protocol.methods} for n in names}
        columns = {n: {m: stat for m, stat in mine.items() if stat} for n, mine in found.items()}
        parts.append(f"{DATA[data]}. {tables.levels_table(f, columns)}")
    return "\n".join(parts)


def figures_more(f: Findings) -> str:
    c = f.protocol.curves
    first, last = (f.decisions.share(f.protocol.other_data[0], rung.share) for rung in c.rungs)
    return f"""\
## Figures 2 to 4: numbers

MNIST and CIFAR-10: settings by accuracy on held-out data at the low level, for all three: at most
{c.trials} trials per method, the best {c.rungs[0].keep} after {first} rounds, one after {last};
where the best diverged later, the next took its place. Such a search says little about methods
with many settings (FedAdam, FedAMS, FAFED).

Two of these rules came after first results: the next setting after a divergence, when SCAFFOLD had
diverged on MNIST, and trials of this length, at the low level: first on CIFAR-10, when six shorter
ones had chosen among settings that had learned nothing, then on MNIST, when curves that six short
trials at each level had chosen showed FedAdam far behind everybody.

The loss at the end (mean of {f.protocol.tail} evaluations), and by how much it had gone up on the
way, from one evaluation to the next, in all. Low:

{tables.training_table(f, f.data_of("low"))}
Moderate:

{tables.training_table(f, f.data_of("moderate"))}
High:

{tables.training_table(f, f.data_of("high"))}
**Test accuracy on MNIST**, which the paper does not report, and settings:

{tables.levels_table(f, _others(f, "mnist"))}
{tables.curves_settings_table(f, "mnist")}
**Test accuracy on CIFAR-10**, which the paper does not report, and settings:

{tables.levels_table(f, _others(f, "cifar-10"))}
{tables.curves_settings_table(f, "cifar-10")}"""


def _others(f: Findings, data: str) -> dict[str, dict[str, Stat]]:
    """Level -> method -> accuracy, on the other data."""
    names = f.protocol.curves.data[data]
    found = {n: {m: f.end(f.curves(n, m)) for m in f.protocol.methods} for n in names}
    return {n: {m: stat for m, stat in mine.items() if stat} for n, mine in found.items()}
