"""The first table of the page: what the paper claims, what we find, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fafed.report.numbers import NOTHING, Stat, listing
from studies.paper import tables, verdicts
from studies.paper.findings import CONTROL, FAFED, Findings, level
from studies.paper.verdicts import NOT_YET
from studies.theory.findings import RESULTS

Row = tuple[str, str, str]
Columns = Mapping[str, Mapping[str, Stat]]


def claims(f: Findings) -> str:
    p = f.protocol
    rows = [
        _accuracy(f, "Table 2: FAFED's test accuracy is the best at every level", _table_2(f)),
        (
            "Table 2: FAFED reaches 0.8816, 0.8654 and 0.8188",
            verdicts.beside_paper(f, f.finals),
            verdicts.seeds_words(f),
        ),
        _accuracy(
            f,
            "The same, if every method is tuned further and all have momentum",
            f.columns(f.with_momentum),
        ),
        _decay(f, "The same with a falling step size, beside newer methods", "rounds"),
        _accuracy(f, "The same at equal gradients (Table 2's runs)", _equal(f, "gradients")),
        _accuracy(f, "The same at equal bytes (Table 2's runs)", _equal(f, "bytes")),
        _decay(f, "At equal gradients, with a falling step size", "gradients"),
        _decay(f, "At equal bytes, with a falling step size", "bytes"),
        (
            "Figures 2 to 4: FAFED's training loss is the lowest in all nine panels",
            verdicts.losses_words(f),
            f"Fashion-MNIST: {verdicts.seeds_words(f)}; MNIST and CIFAR-10: seed {p.curves.seed}, "
            f"{p.curves.rounds} rounds, so no verdict",
        ),
        (
            "Figures 2 to 4: its loss goes up less on the way than FedAdam's and FedAMS's",
            f"it goes up less {verdicts.rises_words(f)}",
            "as above",
        ),
        _text(f),
        _adaptive(f),
        *_theory(),
    ]
    return f"""\
## What the paper claims, and what we find

Of accuracies, *holds* means that FAFED leads the best other method by more than the spread over
seeds; *does not hold*, that it is behind by more than that; *open*, that the difference is smaller
than the spread. In brackets: FAFED's place and its lead. The spread is the larger of two standard
deviations over seeds, FAFED's and that of the best other method.

{tables.table(("claim", "what we find", "how sure"), rows)}"""


def _table_2(f: Findings) -> Columns:
    return f.columns(f.finals)


def _equal(f: Findings, axis: str) -> Columns:
    return {name: f.at_equal_cost(name, axis) for name in f.levels}


def _accuracy(f: Findings, claim: str, columns: Columns) -> Row:
    words = {name: verdicts.judged(f, column) for name, column in columns.items()}
    return (
        claim,
        verdicts.levels_words(words),
        verdicts.sureness(f, columns, f.protocol.seeds),
    )


def _decay(f: Findings, claim: str, axis: str) -> Row:
    p = f.protocol.decay
    columns = {name: f.decay_column(name, axis) for name in f.levels}
    words = {name: verdicts.judged(f, column, p.methods) for name, column in columns.items()}
    return claim, verdicts.levels_words(words), verdicts.sureness(f, columns, p.seeds, p.methods)


def _text(f: Findings) -> Row:
    claim = "Figure 1: FAFED's training loss is the lowest in the language model"
    p = f.protocol.text
    column = f.text_column()
    place = f.standing(column, among=p.methods, lower=True)
    if place is None:
        return claim, NOT_YET, NOTHING
    n = column[FAFED].n
    words = f"a small model: {verdicts.verdict(place, n)} ({verdicts.ORDINALS[place.rank - 1]}, "
    words += f"{column[FAFED].mean:.3f}, the best other {column[place.rival].mean:.3f})"
    return claim, f"{words}; the paper's size: {NOT_YET}", _text_sure(f, n, place.spread)


def _text_sure(f: Findings, n: int, spread: float) -> str:
    seeds = [str(s) for s in f.protocol.text.seeds[:n]]
    if n == 1:
        return f"seed {seeds[0]}"
    return f"seeds {listing(seeds)}; spread {spread:.3f}"


def _adaptive(f: Findings) -> Row:
    """FAFED beside STEM with FAFED's step, on the same seeds."""
    claim = "Figure 1: FAFED wins because its scale is adaptive"
    ours, control = f.loss(f.texts(FAFED)), f.loss(f.text_control())
    if ours is None or control is None:
        return claim, NOT_YET, NOTHING
    spread = max(ours.std or 0.0, control.std or 0.0)
    words = f"FAFED {ours.mean:.3f}, {CONTROL} {control.mean:.3f}"
    return claim, words, _text_sure(f, min(ours.n, control.n), spread)


def _theory() -> list[Row]:
    """Verdicts of the theory laboratory, from its own records."""
    told = {
        "rates": "Table 1: FAFED needs about eps^(-3) samples and eps^(-2) rounds",
        "counterexample": "Theorem 1: with private scales the mean model leaves the optimum",
    }
    wanted = {
        "rates": "An accuracy eps costs at most about eps^(-3) steps per client and eps^(-2) "
        "rounds.",
        "counterexample": "With private denominators the mean model leaves the optimum, however it "
        "is tuned.",
    }
    rows = []
    for name, claim in told.items():
        path = RESULTS / f"{name}.json"
        found = json.loads(path.read_text("utf-8"))["claims"] if path.is_file() else []
        words = [c["verdict"] for c in found if c["says"] == wanted[name]]
        verdict = f"**{words[0]}**" if words else NOT_YET
        rows.append((claim, verdict, "[Theory, measured](theory.md)"))
    return rows


def places(f: Findings) -> str:
    """FAFED's places under each protocol, as a table."""

    def row(about: str, columns: Columns, among: list[str] | None = None) -> list[str]:
        cells = [verdicts.cell(f, columns[n], among) if n in columns else "" for n in f.levels]
        return [about, *cells]

    def at_equal(axis: str) -> Columns:
        return {name: f.at_equal_cost(name, axis, f.with_momentum) for name in f.levels}

    def falling(axis: str) -> Columns:
        return {name: f.decay_column(name, axis) for name in f.levels}

    times, newer = f.protocol.long.times, f.protocol.decay.methods
    of = f"of {len(newer)} methods"
    rows = [
        row("the paper's grid of settings", f.columns(f.finals)),
        row("a wider grid for every method", f.columns(f.tuned)),
        row("wider, and momentum for every method", f.columns(f.with_momentum)),
        row("the same, at equal gradients", at_equal("gradients")),
        row("the same, at equal bytes", at_equal("bytes")),
        row(f"the same, {times} times as many rounds", f.columns(f.momentum_longs)),
        row(f"a falling step size, {of}, other seeds", falling("rounds"), newer),
        row("the same, at equal gradients", falling("gradients"), newer),
        row("the same, at equal bytes", falling("bytes"), newer),
    ]
    rows = [row for row in rows if any(cell != NOT_YET for cell in row[1:])]
    for name, reading in f.protocol.readings.items():
        (base,) = (known for known in f.levels if name.startswith(known))
        rows.append(row(reading.about, {base: f.table2(name)}))
    return tables.table(["protocol", *map(level, f.levels)], rows)
