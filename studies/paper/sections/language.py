"""The language model: Figure 1, and FAFED in the first rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from fafed import models
from fafed.experiments.config import Experiment
from fafed.report.numbers import NOTHING, listing
from studies.paper import tables, verdicts
from studies.paper.decisions import points
from studies.paper.findings import CONTROL, FAFED, STEM, Findings, title
from studies.paper.verdicts import NOT_YET

EPOCHS = 40  # in the public code
SHOWN = (1, 2, 5, 10, 20)  # of the first rounds


def figure_1(f: Findings) -> str:
    p = f.protocol.text
    e = f.protocol.experiment(p.experiment)
    words = e.data.words or verdicts.WORDS
    rounds = f.protocol.first_rounds.rounds
    trial = f.decisions.share_of(p.rungs[0].share, e.rounds)
    epochs = EPOCHS * trial / e.rounds
    seeds = listing([str(s) for s in p.seeds])
    tokens = e.data.tokens or 0
    return f"""\
## Figure 1: language model on WikiText-2

The paper trains a 2-layer LSTM with 650 dimensions, its public code for {EPOCHS} epochs. That would
take weeks on this machine. So we train a small model for as many epochs: {p.about},
the {words:,} most frequent words (the rest is unknown), and the first {tokens:,} of
2,088,628 words of text, in batches of {e.batch_size} columns. Clients (16), steps of a round (10),
clipping (0.25) and dropout (0.5) are the paper's. There are {e.rounds} rounds in {EPOCHS} epochs,
where the whole text has 744. A small model on little text need not rank the methods as the paper's
model does. {_order(f, epochs)}

**Choice.** Every method has {p.trials} trials of {epochs:.1f} epochs ({trial} rounds, seed
{f.protocol.choosing_seed}), ranked by the loss on held-out text. alpha, beta, beta1 and beta2 are
0.1 or 0.9, as in the paper. Step sizes are the paper's and smaller ones, because a small model
needs smaller steps: {_trials(f)}. **Measurement**: seeds {seeds}, {EPOCHS} epochs. The training
loss is the mean over the clients' local steps, with dropout, in the last {f.protocol.tail} rounds.
Who takes all words for equally likely has a loss of {math.log(words):.3f}.

{tables.text_table(f)}
{_place(f)}

{{figure-1}}

Gradients are clipped to norm 0.25, so sqrt(v) can reach rho = 0.01 in at most 625 of
{_coordinates(e):,} coordinates ([why](theory.md#by-arithmetic-alone)). If those few do not matter,
FAFED is STEM with the step eta/rho. That STEM, with FAFED's alpha, is the control (*{CONTROL}*).

**The paper's size.** Step sizes are the paper's, momentum is what was best with them in the small
model's trials. {_large(f)} Earlier records of this model used a step size that fell one step too
early, and are withdrawn.

## What happens to FAFED in the first rounds

With the paper's eta = 1 and rho = 0.01, a local step of FAFED is up to eta/rho = 100 times its
estimate m. FedAvg's is 10 times a gradient. The table and the figure show what such steps do in
the first rounds, and what makes them shorter or safer. One thing at a time is changed, on the small
model: seed {f.protocol.first_rounds.seed}, {rounds} rounds, constant steps. The
last column is the share of coordinates with sqrt(v) above rho in the first and the last round.

{tables.first_rounds_table(f, SHOWN)}
{{first-rounds}}

{_first_words(f, math.log(words))}"""


def _order(f: Findings, epochs: float) -> str:
    """The methods by the loss of their best trial, in the small model and in a larger one."""
    p = f.protocol.text
    races = {
        title(m): (small, large)
        for m in p.methods
        if (small := f.text_setting(m)) and (large := f.text_check(m))
    }
    if len(races) < len(p.methods):
        return f"Whether one of {p.check.about} does is not known: its trials are not complete."
    losses = {
        label: [race.winner.end("validation_loss", 1) for race in pair]
        for label, pair in races.items()
    }
    pairs = list(itertools.combinations(losses.values(), 2))
    alike = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    orders = [
        f"{about}: "
        + ", ".join(
            f"{label} {own[i]:.3f}" for label, own in sorted(losses.items(), key=lambda x: x[1][i])
        )
        for i, about in enumerate((p.about, p.check.about))
    ]
    return (
        f"So we made the same trials with {p.check.about} on the same text. The methods by the "
        f"loss of their best trial on held-out text, after {epochs:.1f} epochs: "
        f"{'; '.join(orders)}. The two models agree on the order of {alike} of {len(pairs)} pairs "
        "of methods."
    )


def _coordinates(e: Experiment) -> int:
    model = models.build(e.model.name, seed=0, **e.model.options)
    return sum(p.numel() for p in model.parameters())


def _trials(f: Findings) -> str:
    """How many step sizes each method tries."""
    p = f.protocol.text
    counts: dict[int, list[str]] = {}
    for method in p.methods:
        counts.setdefault(len(p.grids[method]["eta"]), []).append(title(method))
        assert len(points(p.grids[method])) == p.trials
    told = [f"{number} for {listing(names)}" for number, names in counts.items()]
    return "; ".join(told)


def _place(f: Findings) -> str:
    p = f.protocol.text
    column = f.text_column()
    place = f.standing(column, among=p.methods, lower=True)
    if place is None:
        return f"FAFED's place: {NOT_YET}."
    n = column[FAFED].n
    spread = f"spread over seeds {place.spread:.3f}" if n > 1 else "one seed, so no verdict"
    side = "below" if place.lead > 0 else "above"
    rank, rival = verdicts.ORDINALS[place.rank - 1], title(place.rival)
    return (
        f"FAFED's place by training loss: {rank}, {abs(place.lead):.3f} {side} {rival} ({spread}; "
        f"{n} of {len(p.seeds)} seeds)."
    )


def _large(f: Findings) -> str:
    """What there is of the model of the paper's size."""
    parts = [verdicts.sentence(verdicts.language_words(f))]
    for name, wanted in f.protocol.language.items():
        if runs := f.language(name):
            if control := f.control(name):
                runs = {**runs, CONTROL: control}
            rounds = f.protocol.experiment(name).rounds
            parts += [
                f"\n\n{wanted.about}, {rounds} rounds, seed {wanted.seed}:\n",
                tables.language_table(runs, f.protocol.tail),
            ]
    return "\n".join(parts)


def _scale_words(f: Findings) -> str:
    """FAFED beside STEM with the same alpha and the step eta/rho."""
    words = []
    runs = [(case, run) for case, run in f.first_rounds() if not run.failure]
    for case, run in runs:
        plain = case.algorithm == FAFED and set(case.settings) == {"eta", "alpha", "beta", "rho"}
        if not plain or case.changes or isinstance(case.settings["eta"], Mapping):
            continue
        alpha, eta = case.settings["alpha"], case.settings["eta"] / case.settings["rho"]
        for other, same in runs:
            stem = other.settings
            if (
                other.algorithm == STEM
                and set(stem) == {"eta", "alpha"}
                and stem["alpha"] == alpha
                and math.isclose(stem["eta"], eta)
            ):
                ends = [one.series("train_loss")[-1][1] for one in (run, same)]
                words.append(f"{ends[0]:.2f} against {ends[1]:.2f} (alpha = {alpha:g})")
    if not words:
        return ""
    return (
        "FAFED and STEM with the step eta/rho differ by the scale and the very first step alone. "
        f"Their losses in the last round: {'; '.join(words)}. The last column says how many "
        "coordinates the scale changes much. "
    )


def _first_words(f: Findings, guess: float) -> str:
    """In how many of the rounds the loss is above that of a uniform guess."""
    never, above = [], []
    for case, run in f.first_rounds():
        count = sum(y > guess for _, y in run.series("train_loss"))
        if run.failure or count:
            end = "diverged" if run.failure else f"{count} round{'s' if count > 1 else ''}"
            above.append(f"{case.about} ({end})")
        else:
            never.append(case.about)
    if not never and not above:
        return ""
    return (
        f"{_scale_words(f)}Above {guess:.3f}, the loss of a uniform guess (dotted): "
        f"{'; '.join(above) or NOTHING}. "
        f"Never above it: {'; '.join(never) or NOTHING}. This is one seed of a small model."
    )
