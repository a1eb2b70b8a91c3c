"""What comes first and last on the page: the answers, the rules, the theory, the effort."""

from __future__ import annotations

import json

from studies.paper import tables, verdicts
from studies.paper.decisions import points
from studies.paper.findings import Findings, level, title
from studies.paper.verdicts import NOT_YET
from studies.theory.findings import RESULTS


def how(f: Findings) -> str:
    """The rules in short."""
    p = f.protocol
    budgets = ", ".join(
        f"{level(n)} {found.count if (found := f.rounds(n)) else NOT_YET}" for n in f.levels
    )
    return f"""\
## How we measured

Twenty clients share the data. At the level *low*, 95 % of them are dealt out alike; at *moderate*,
every class is dealt out evenly; at *high*, each client has five of the ten classes.

1. **Rounds.** The paper does not say how long it trains. We stop where the best FedAvg reaches the
   paper's accuracy of FedAvg. These are T rounds: {budgets}.
2. **Choice.** Every method tries at most {p.fair.trials} settings of the paper's grid. Accuracy on
   held-out data decides, with seed {p.choosing_seed}.
3. **Measurement.** The chosen setting is trained on all training data with other seeds. A result
   is the mean of the last {p.tail} evaluations on the test set; ± is the standard deviation over
   seeds.

Model, data, batches and initial weights of a seed are the same for all methods. The
[appendix](paper-appendix.md#protocol) has the rules in full, and
[what the paper leaves open](paper-appendix.md#deviations)."""


def protocol(f: Findings) -> str:
    p = f.protocol
    sizes = {m: len(points(f.decisions.grid(f.levels[0], m))) for m in p.methods}
    budgets = "; ".join(f"{level(n)} {verdicts.budget_words(f, n)}" for n in f.levels)
    return f"""\
## Protocol

The same for every method; as data in
[studies/paper/configs/protocol.toml](../studies/paper/configs/protocol.toml).
In a round every client makes q steps on batches of b examples; T is the number of rounds. eta is
the clients' step size, eta_g the server's. alpha is the share of new information in FAFED's
gradient estimate, beta the memory of its second moment, and rho is added to the root of that one.
beta1 and beta2 are the memories of the first and the second moment of FedAdam and FedAMS, and tau
is their smallest denominator.

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
3. **Choice.** By accuracy on the held-out data: {verdicts.passes_words(f, p.fair)}. The
   pass in the middle was added to the protocol during the search, before anything was measured by
   step 4, because settings with momentum on the server start slowly and were being dropped. Winners
   that were not among the best three after the first pass: {verdicts.late_starters(f)}.
4. **Measurement.** Whole training set, T rounds, {verdicts.seeds_words(f)}. A result is the
   mean of the last {p.tail} evaluations of a run, on the test set; ± is the standard deviation
   over seeds.

Model, data and initial values of a seed are the same for all methods, and so are the batches.
"""


def theory(f: Findings) -> str:
    """What the theory laboratory has found, from its own records."""
    rows = []
    for name, about in (("rates", "Table 1"), ("counterexample", "Theorem 1")):
        path = RESULTS / f"{name}.json"
        claims = json.loads(path.read_text("utf-8"))["claims"] if path.is_file() else []
        rows += [(about, claim["says"], claim["verdict"]) for claim in claims]
    table = tables.table(("of the paper", "claim", "verdict"), rows)
    return f"""\
## Table 1 and Theorem 1

Complexities and the counterexample are measured on problems whose truth is known, in
[Theory, measured](theory.md), which has the limits of each verdict. The paper's Table 1 gives the
samples and the rounds that an accuracy eps costs, up to constants, and the measured powers stand
beside them, with 95 % intervals; FedAdagrad, FedYogi, FedAdam and FedAMS, which it gives with
FedAvg's powers, were not measured.

{_powers()}
{table}"""


def _powers() -> str:
    path = RESULTS / "rates.json"
    if not path.is_file():
        return f"{NOT_YET.capitalize()}.\n"
    slopes = json.loads(path.read_text("utf-8"))["tables"]["slopes"]
    measured = {row[0]: dict(zip(slopes["columns"], row, strict=True)) for row in slopes["rows"]}
    rows = []
    for name, samples, rounds in (("FedAvg", "-4", "-4"), ("FAFED", "-3", "-2")):
        fixed, growing = measured[name], measured[f"{name}, q growing"]
        rows.append((name, samples, rounds, fixed["samples"], fixed["rounds"], growing["rounds"]))
    measures = ("samples", "rounds, q fixed", "rounds, q growing")
    return tables.table(("", "paper: samples", "paper: rounds", *measures), rows)


def effort(f: Findings) -> str:
    return f"""\
## What it took

Runs that this page is made from, so far. Seconds are those of a shared machine with two cores; they
say what to expect, not who is faster. Gradients are evaluations on a batch, over all clients.

{tables.effort_table(f)}"""
