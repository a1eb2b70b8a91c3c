"""Training curves: Figures 2 to 4 on images, Figure 1 on text."""

from __future__ import annotations

import math

from fafed.report.numbers import Stat
from studies.paper import tables, verdicts
from studies.paper.figures import ABOVE_LATER
from studies.paper.findings import CONTROL, Findings
from studies.paper.verdicts import NOT_YET


def figures(f: Findings) -> str:
    c = f.protocol.curves
    first, last = (f.decisions.share(f.protocol.other_data[0], rung.share) for rung in c.rungs)
    return f"""\
## Figures 2 to 4: training loss against rounds

Loss of the server's model on 5,000 training examples. Fashion-MNIST: the runs of Table 2. MNIST and
CIFAR-10: {c.rounds} rounds, seed {c.seed}, and test accuracy at the end; settings by accuracy on
held-out data at the low level, for all three: at most {c.trials} trials per method, the best
{c.rungs[0].keep} after {first} rounds, one after {last}; where the best diverged later, the next
took its place. Such a search says little about methods with many settings (FedAdam, FedAMS, FAFED):
these curves show what it finds, not what a method can do.

The paper finds FAFED's loss below everybody's, and smoother than FedAdam's and FedAMS's. FAFED's
place here. {verdicts.sentence(verdicts.losses_words(f))} Its loss goes up less
{verdicts.rises_words(f)}. Below each figure: the loss at the end (mean of {f.protocol.tail}
evaluations), and by how much it had gone up on the way, from one evaluation to the next, in all.

Two of these rules came after first results: the next setting after a divergence, when SCAFFOLD had
diverged on MNIST, and trials of this length, at the low level: first on CIFAR-10, when six shorter
ones had chosen among settings that had learned nothing, then on MNIST, when curves that six short
trials at each level had chosen showed FedAdam far behind everybody.

**Figure 2, low**

{{figure-2}}

{tables.training_table(f, f.data_of("low"))}
**Figure 3, moderate**

{{figure-3}}

{tables.training_table(f, f.data_of("moderate"))}
**Figure 4, high**

{{figure-4}}

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


def language(f: Findings) -> str:
    parts = []
    for name, wanted in f.protocol.language.items():
        rounds, runs = f.protocol.experiment(name).rounds, f.language(name)
        words = f"**{wanted.about}**, {rounds} rounds, seed {wanted.seed}"
        if not runs:
            parts.append(f"{words}: {NOT_YET}.\n")
            continue
        of = len(wanted.methods)
        far = "" if len(runs) == of else f"; {len(runs)} of {of} runs so far"
        if control := f.control(name):
            runs = {**runs, CONTROL: control}
        parts += [f"{words}{far}.\n", tables.language_table(runs, f.protocol.tail)]
    return f"""\
## Figure 1: language model on WikiText-2

16 clients with a contiguous part of the text each, 2-layer LSTM, the settings that the paper gives:
nothing was tuned here. Of alpha, beta, beta1 and beta2 it gives 0.1 and 0.9, read as alpha = 0.1
and 0.9 for the others; the step falls with the epochs and the first batch is one of b, as in the
public code, which trains for 40 epochs. The training loss is the mean over the clients' local
steps, with dropout, and the training perplexity its exponential; the test perplexity is without.
The training loss at the end is the mean of the last {f.protocol.tail} rounds, the test perplexity
that of the last evaluation.
Who takes all {verdicts.WORDS:,} words for equally likely has a loss of
{math.log(verdicts.WORDS):.3f}. Gradients are clipped to norm 0.25, so that sqrt(v) is below
rho = 0.01 for nearly every coordinate, and FAFED should be close to STEM with the step eta/rho
([why](theory.md#by-arithmetic-alone)). That STEM is the control: what it reaches as well is a
matter of step size; what it does not reach, of the adaptive scale, or of the very first step, which
FAFED makes without its scale and the control with all of eta/rho.
{verdicts.sentence(verdicts.control_words(f))}

FAFED's place by training loss. {verdicts.sentence(verdicts.language_words(f))}

{{figure-1}}

Of the perplexities only what is below {ABOVE_LATER} times the largest of the second half is shown.
Dotted: all words taken for equally likely.

{chr(10).join(parts)}"""
