"""Table 2 with a step size that falls, beside newer methods."""

from __future__ import annotations

from fafed.report.numbers import listing
from studies.paper import tables, verdicts
from studies.paper.findings import Findings, level, title


def decay(f: Findings) -> str:
    p = f.protocol.decay
    columns = {name: f.decay_column(name) for name in f.levels}
    gradients = {name: f.decay_column(name, "gradients") for name in f.levels}
    sent = {name: f.decay_column(name, "bytes") for name in f.levels}
    seeds = listing([str(s) for s in p.seeds])
    newer = listing([title(m) for m in p.methods if m not in f.protocol.methods])
    share = p.rungs[0].share
    return f"""\
## With a falling step size, beside newer methods

Here the step size of every method falls in a straight line to {100 * p.end:.0f} % of its first
value, with momentum as in the
[appendix](paper-appendix.md#beyond-the-paper-momentum). {newer} are newer than the paper or our
own. The seeds ({seeds}) were used for no choice before. Every method has {p.trials} trials on
held-out data ({100 * share:.0f} % of T rounds, each with a fall of its own): step sizes around
those that earlier searches had chosen, or a small grid for the newer methods. FedAdam and FedAMS
have twice as many: each is tried with a step of the server that stays, and with one that falls,
too. FedKron ran with an earlier form of its bound on local steps. The numbers are those of the last
evaluation.

{tables.levels_table(f, columns, p.methods)}
FAFED's place. {verdicts.sentence(verdicts.standings(f, columns, p.methods))}

{{decay}}

**Equal gradients.** Methods that cost more than FedAvg have a run of their own, whose step size
falls over fewer rounds. FAFED's place. {
        verdicts.sentence(verdicts.standings(f, gradients, p.methods))
    }

{tables.levels_table(f, gradients, p.methods)}
**Equal bytes.** FAFED's place. {verdicts.sentence(verdicts.standings(f, sent, p.methods))}

{tables.levels_table(f, sent, p.methods)}"""


def decay_more(f: Findings) -> str:
    p = f.protocol.decay
    words = []
    for name in f.levels:
        ends = []
        for method in p.methods:
            race = f.decay_setting(name, method)
            if race and (edge := verdicts.edge(f, name, method, race)):
                ends.append(f"{title(method)} ({edge})")
        if ends:
            words.append(f"{level(name)}: {listing(ends)}")
    return f"""\
## With a falling step size: settings

Step sizes are multiples ({listing([f"{t:g}" for t in p.eta_times])}) of those in the two latest
choices of each method: with momentum, and without. For FedAdam and FedAMS, whose momentum is their
own, they are the further and the first search. The newer methods have a grid of {p.trials} points.
The first value is shown.

{tables.settings_table(f, f.decay_setting, methods=p.methods)}
Step sizes at an end of those tried, so that others may do better:
{"; ".join(words) or "none so far"}."""
