"""The sections of docs/paper.md. Numbers come from the ledger, verdicts from the numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

from fafed.paper import tables, verdicts
from fafed.paper.figures import ABOVE_LATER
from fafed.paper.findings import CONTROL, Findings, level, title
from fafed.paper.plan import points
from fafed.paper.protocol import Search
from fafed.paper.verdicts import NOT_YET
from fafed.report.numbers import Stat, listing


def glance(f: Findings) -> str:
    """Questions and answers."""
    fair = {name: f.table2(name) for name in f.levels}
    gradients = {name: f.at_equal_cost(name, "gradients") for name in f.levels}
    sent = {name: f.at_equal_cost(name, "bytes") for name in f.levels}
    longer = {name: f.column(f.longs, name) for name in f.levels}
    tuned = {name: f.column(f.tuned, name) for name in f.levels}
    faster = {name: f.column(f.with_momentum, name) for name in f.levels}
    readings = f.protocol.readings.items()
    rows = [
        ("FAFED after the same number of rounds (Table 2)", verdicts.standings(f, fair)),
        ("FAFED beside the paper's FAFED", verdicts.beside_paper(f, f.finals)),
        ("FAFED with the same number of gradients", verdicts.standings(f, gradients)),
        ("FAFED with the same number of bytes", verdicts.standings(f, sent)),
        (
            f"FAFED after {f.protocol.long.times} times as many rounds",
            verdicts.standings(f, longer),
        ),
        ("FAFED after a search beyond the paper's grid", verdicts.standings(f, tuned)),
        ("The same, and momentum on the server for those without", verdicts.standings(f, faster)),
        *((f"FAFED, {r.about}", verdicts.reading_words(f, name)) for name, r in readings),
        ("FAFED's training loss among the six (Figures 2 to 4)", verdicts.losses_words(f)),
        (
            "Its training loss is smoother, that is, goes up less on the way (Figures 2 to 4)",
            verdicts.rises_words(f),
        ),
        ("FAFED's training loss in the language models (Figure 1)", verdicts.language_words(f)),
        ("Adaptivity in the language model (Figure 1)", verdicts.control_words(f)),
    ]
    words = (
        "Test accuracies on Fashion-MNIST, mean of "
        f"{_seeds(f)}, unless the row says otherwise. The spread over seeds is the larger of two "
        "sample standard deviations, FAFED's and the best other's; a lead that is smaller is no "
        "lead.\n\n"
    )
    return "## At a glance\n\n" + words + tables.markdown(("question", "answer"), rows)


def protocol(f: Findings) -> str:
    p = f.protocol
    sizes = {m: len(points(f.plan.grid(f.levels[0], m))) for m in p.methods}
    budgets = "; ".join(f"{level(n)} {verdicts.budget_words(f, n)}" for n in f.levels)
    return f"""\
## Protocol

The same for every method; as data in
[experiments/paper/protocol.toml](../experiments/paper/protocol.toml). In a round every client makes
q steps on batches of b examples; T is the number of rounds. eta is the clients' step size, eta_g
the server's. alpha and beta are the momenta of FAFED's gradient estimate and of its second moment,
rho is what is added to the root of that one; beta1, beta2 and tau are the same for FedAdam and
FedAMS.

1. **Rounds.** The paper does not say how long it trains. {title(p.budget.algorithm)} is run on its
   step-size grid for up to {p.budget.rounds} rounds (seed {p.choosing_seed}, whole training set);
   the budget T is the first evaluation at which one of the step sizes has a test accuracy (mean of
   {p.tail} evaluations, {p.experiment(f.levels[0]).eval_every} rounds apart) at the paper's. Within
   this protocol it is the only use of the test set in a choice, and it favours nobody but FedAvg.
   Here:
   {budgets}.
2. **Trials.** {100 * p.validation:.0f} % of the training data are held out. Every method tries the
   paper's grid, {p.fair.trials} points of it at most, seed {p.choosing_seed}:
   {verdicts.trials_words(sizes, p.fair.trials)}. Of larger grids it is a random choice that covers
   both step sizes evenly.
3. **Choice.** By accuracy on the held-out data: {_passes(f, p.fair)}. The pass in the middle was
   added to the protocol during the search, before anything was measured by step 4, because settings
   with momentum on the server start slowly and were being dropped. Winners that were not among the
   best three after the first pass: {verdicts.late_starters(f)}.
4. **Measurement.** Whole training set, T rounds, {_seeds(f)}. A result is the mean of the last
   {p.tail} evaluations of a run, on the test set; ± is the standard deviation over seeds.

Model, data and initial values of a seed are the same for all methods, and so are the batches.
"""


def table_2(f: Findings) -> str:
    fair = {name: f.table2(name) for name in f.levels}
    last = {name: f.column(f.finals, name, 1) for name in f.levels}
    return f"""\
## Table 2: test accuracy on Fashion-MNIST

{verdicts.sentence(_seeds(f))[:-1]}; bold: the best of a column.

{tables.table_2(f)}
FAFED's place. {verdicts.sentence(verdicts.standings(f, fair))}
Beside the paper's FAFED. {verdicts.sentence(verdicts.beside_paper(f, f.finals))}

{{table-2}}

Lines are means over seeds, shading reaches from the lowest to the highest seed. The settings that
were chosen, with the rounds of the budget:

{tables.settings_table(f, f.setting, without=("tau",))}
tau = 0.01 for FedAdam and FedAMS. Step sizes that are the largest of the paper's grid, where a
larger one may do better ([searched further](#table-2-searched-further)):
{verdicts.at_an_end(f, f.setting, f.plan.grid)}.

With the last evaluation alone instead of the mean of {f.protocol.tail}:

{tables.levels_table(f, last)}"""


def readings(f: Findings) -> str:
    """Columns of Table 2 where the paper can be read in another way, on the same protocol."""
    parts = [
        f"""\
**{verdicts.sentence(reading.about)[:-1]}.** {reading.why.strip()}
{verdicts.sentence(verdicts.budget_words(f, name))} FAFED's place.
{verdicts.sentence(verdicts.reading_words(f, name))}

{tables.reading_table(f, name)}"""
        for name, reading in f.protocol.readings.items()
    ]
    return f"""\
## Table 2, read otherwise

Where the paper leaves a choice open that turned out to matter ([deviations](#deviations)), here is
the column once more with the other choice, on the whole protocol: rounds, trials, choice and
measurement. These readings were added when the table above was known, because FAFED had gained in
them with a measuring seed on the test set. They show how far an open choice moves the result; they
are no further evidence for FAFED.

{chr(10).join(parts)}"""


def equal_cost(f: Findings) -> str:
    gradients = {name: f.at_equal_cost(name, "gradients") for name in f.levels}
    sent = {name: f.at_equal_cost(name, "bytes") for name in f.levels}
    return f"""\
## The same at equal gradients and at equal bytes

A round is not the same for everybody. Gradients and bytes of a run, as multiples of FedAvg's:

{tables.costs_table(f)}
The same runs, each read where it had cost as much as FedAvg's T rounds: the mean of
{f.protocol.tail} readings as in Table 2, interpolated between evaluations. Settings were chosen for
T rounds, so those that are stopped early would have chosen differently, and where a curve is still
steep the mean is that of some rounds before.

**Equal gradients.** FAFED's place. {verdicts.sentence(verdicts.standings(f, gradients))}

{tables.levels_table(f, gradients)}
**Equal bytes.** FAFED's place. {verdicts.sentence(verdicts.standings(f, sent))}

{tables.levels_table(f, sent)}
{{costs}}
"""


def longer(f: Findings) -> str:
    times = f.protocol.long.times
    columns = {name: f.column(f.longs, name) for name in f.levels}
    seeds = sorted(
        {r.job.seed for n in f.levels for m in f.protocol.methods for r in f.longs(n, m)}
    )
    which = f"Seeds {listing([str(s) for s in seeds])}. " if seeds else ""
    return f"""\
## {times} times as long

The same settings for {times} T rounds. {which}FAFED's place.
{verdicts.sentence(verdicts.standings(f, columns))}

{tables.levels_table(f, columns)}
{{long}}
"""


def tuned(f: Findings) -> str:
    p = f.protocol.tuned
    columns = {name: f.column(f.tuned, name) for name in f.levels}
    times = listing([f"{t:g}" for t in p.eta_times])
    return f"""\
## Table 2, searched further

The best step sizes of most methods are the largest of the paper's grid, and FAFED has settings that
the paper keeps fixed. So here is the table once more, after a wider search for everybody, by one
rule. The grids were laid out when the results above were known: FAFED's first, those of the others
when a larger step size had turned out to suit FedAMS. eta is {times} times the fair choice.

{tables.grids_table(f)}
The choice, by accuracy on the held-out data: {_passes(f, p)}. Measured with {_seeds(f)}. The
further seeds of the last pass were added when a setting of FAFED's that one seed had chosen fell
with a measuring seed; of grids with more than 60 points a random choice of 60 was tried at first,
and the others when FAFED had come out last in two columns, lest luck decide.

{tables.levels_table(f, columns)}
FAFED's place. {verdicts.sentence(verdicts.standings(f, columns))}
Beside the paper's FAFED. {verdicts.sentence(verdicts.beside_paper(f, f.tuned))}

{{tuned}}

{tables.settings_table(f, f.tuned_setting)}
Step sizes that are again the largest: {verdicts.at_an_end(f, f.tuned_setting, f.plan.tuned_grid)}.

With v_bits = 8 the clients send v in a quarter of its bytes, and the server answers with all of it.
FAFED's accuracy then. {verdicts.sentence(verdicts.also_words(f))}

How far FAFED's values of alpha came: trials in the first, second and last pass, and the best
accuracy on held-out data after the first.

{tables.alphas_table(f)}"""


def momentum(f: Findings) -> str:
    p = f.protocol.momentum
    columns = {name: f.column(f.with_momentum, name) for name in f.levels}
    longer = {name: f.column(f.momentum_longs, name) for name in f.levels}
    values = listing([f"{value:g}" for value in p.server_momentum])
    times = listing([f"{t:g}" for t in p.eta_times])
    methods = listing([title(method) for method in p.methods])
    return f"""\
## Beyond the paper: momentum on the server

What FedAdam and FedAMS have and the others lack is momentum. With `server_momentum` = mu the server
adds mu times its last move to its next one, at no cost in gradients or bytes. {methods} have this
option (FedAvg's is known as FedAvgM; SCAFFOLD's clients take the server's move for its control
variate, so it has none), FAFED's and STEM's are ours. It came when everything above was known.

{methods} start from their settings of Table 2 and of the further search, with mu from {values} and
eta {times} times as large, {2 * len(p.server_momentum) * len(p.eta_times)} trials, and one without
momentum: the setting of the further search. The choice is made as there, by accuracy on held-out
data: {_passes(f, f.protocol.tuned)}. Measured with {_seeds(f)}; the other rows are those of the
further search. The values were laid out after 18 trials of FAFED on held-out data with seed 0, 16
at the low and 2 at the high level. FAFED alone had momentum at first, from the setting of the
further search and by the passes of the [protocol](#protocol); with that it was first, second and
first. Then the second setting and the passes with more seeds were added for it, and the same for
FedAvg and STEM.

{tables.levels_table(f, columns)}
FAFED's place with momentum. {verdicts.sentence(verdicts.standings(f, columns))}
Beside the paper's FAFED. {verdicts.sentence(verdicts.beside_paper(f, f.with_momentum))}
At equal cost. {verdicts.sentence(verdicts.equal_costs_words(f, f.with_momentum))}

{{momentum}}

{tables.settings_table(f, f.momentum_setting)}
**{f.protocol.long.times} times as long.** The same for {f.protocol.long.times} T rounds. FAFED's
place. {verdicts.sentence(verdicts.standings(f, longer))}
Beside the paper's FAFED. {verdicts.sentence(verdicts.beside_paper(f, f.momentum_longs))}

{tables.levels_table(f, longer)}"""


def sensitivity(f: Findings) -> str:
    s = f.protocol.sensitivity
    race = f.setting(s.experiment, s.algorithm)
    base = tables.settings(race.winner.job.settings) if race else NOT_YET
    e = f.protocol.experiment(s.experiment)
    return f"""\
## Sensitivity of FAFED

{s.experiment}, seed {s.seed}, {100 * s.share:.0f} % of T rounds. One thing at a time is
changed from {base}, {e.local_steps} local steps,
{e.data.clients} clients. Rounds stay the same, so more local steps are more work, and more clients
have less data each.

{tables.sensitivity_table(f)}
{{sensitivity}}
"""


def figures(f: Findings) -> str:
    c = f.protocol.curves
    first, last = (f.plan.share(f.protocol.other_data[0], rung.share) for rung in c.rungs)
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
        parts += [f"{words}{far}.\n", tables.language_table(runs)]
        if compared := f.controlled(name):
            after = compared[CONTROL].job.rounds
            words = f"**{wanted.about}, the control**: the same runs after {after} rounds, and STEM"
            parts += [f"{words} at FAFED's step over rho.\n", tables.language_table(compared)]
    return f"""\
## Figure 1: language model on WikiText-2

16 clients with a contiguous part of the text each, 2-layer LSTM, the settings that the paper gives:
nothing was tuned here. Of alpha, beta, beta1 and beta2 it gives 0.1 and 0.9, read as alpha = 0.1
and 0.9 for the others; the step falls with the epochs and the first batch is one of b, as in the
public code, which trains for 40 epochs. The training loss is the mean over the clients' local
steps, with dropout, and the training perplexity its exponential; the test perplexity is without.
Who takes all {verdicts.WORDS:,} words for equally likely has a loss of
{math.log(verdicts.WORDS):.3f}. Gradients are clipped to norm 0.25, so that sqrt(v) is below
rho = 0.01 for nearly every coordinate, and FAFED should be close to STEM with the step eta/rho
([why](theory.md#by-arithmetic-alone)). That STEM is the control: what it reaches as well is a
matter of step size; what it does not reach, of the adaptive scale, or of the very first step, which
FAFED makes without its scale and the control with all of eta/rho. It is run for fewer rounds, which
is enough to set it beside the others' first ones.
{verdicts.sentence(verdicts.control_words(f))}

FAFED's place by training loss. {verdicts.sentence(verdicts.language_words(f))}

{{figure-1}}

Of the perplexities only what is below {ABOVE_LATER} times the largest of the second half is shown.
Dotted: all words taken for equally likely.

{chr(10).join(parts)}"""


def theory(docs: Path) -> str:
    """What the theory laboratory has found, from its own records."""
    rows = []
    for name, about in (("rates", "Table 1"), ("counterexample", "Theorem 1")):
        path = docs / "theory" / f"{name}.json"
        claims = json.loads(path.read_text("utf-8"))["claims"] if path.is_file() else []
        rows += [(about, claim["says"], claim["verdict"]) for claim in claims]
    table = tables.markdown(("of the paper", "claim", "verdict"), rows)
    return f"""\
## Table 1 and Theorem 1

Complexities and the counterexample are measured on problems whose truth is known, in
[Theory, measured](theory.md), which has the limits of each verdict. The paper's Table 1 gives the
samples and the rounds that an accuracy eps costs, up to constants, and the measured powers stand
beside them, with 95 % intervals; FedAdagrad, FedYogi, FedAdam and FedAMS, which it gives with
FedAvg's powers, were not measured.

{_powers(docs)}
{table}"""


def effort(f: Findings) -> str:
    return f"""\
## What it took

Runs that this page is made from, so far. Seconds are those of a shared machine with two cores; they
say what to expect, not who is faster. Gradients are evaluations on a batch, over all clients.

{tables.effort_table(f)}"""


# Parts of these.


def _powers(docs: Path) -> str:
    path = docs / "theory" / "rates.json"
    if not path.is_file():
        return f"{NOT_YET.capitalize()}.\n"
    slopes = json.loads(path.read_text("utf-8"))["tables"]["slopes"]
    measured = {row[0]: dict(zip(slopes["columns"], row, strict=True)) for row in slopes["rows"]}
    rows = []
    for name, samples, rounds in (("FedAvg", "-4", "-4"), ("FAFED", "-3", "-2")):
        fixed, growing = measured[name], measured[f"{name}, q growing"]
        rows.append((name, samples, rounds, fixed["samples"], fixed["rounds"], growing["rounds"]))
    measures = ("samples", "rounds, q fixed", "rounds, q growing")
    return tables.markdown(("", "paper: samples", "paper: rounds", *measures), rows)


def _others(f: Findings, data: str) -> dict[str, dict[str, Stat]]:
    """Level -> method -> accuracy, on the other data."""
    names = f.protocol.curves.data[data]
    found = {n: {m: f.end(f.curves(n, m)) for m in f.protocol.methods} for n in names}
    return {n: {m: stat for m, stat in mine.items() if stat} for n, mine in found.items()}


def _seeds(f: Findings) -> str:
    return f"seeds {listing([str(seed) for seed in f.protocol.seeds])}"


def _passes(f: Findings, search: Search) -> str:
    *rungs, last = search.rungs
    steps = [f"{100 * r.share:.0f} % of T, from which the best {r.keep} go on" for r in rungs]
    best = f"the best mean of {last.tail} evaluations"
    if last.more_seeds:
        seeds = [str(seed) for seed in (f.protocol.choosing_seed, *last.more_seeds)]
        best += f", over seeds {listing(seeds)},"
    return "; ".join([*steps, f"T rounds, of which {best} wins"])
