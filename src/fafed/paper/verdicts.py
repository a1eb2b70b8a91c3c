"""Verdicts in words, computed from the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fafed.paper.findings import FAFED, Findings, level, title
from fafed.report.numbers import NOTHING, Stat, listing
from fafed.tuning import space

NOT_YET = "not run yet"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
EXAMPLES = 60_000  # in the training set of Fashion-MNIST


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def standing(f: Findings, column: Mapping[str, Stat], method: str = FAFED) -> str:
    """Where a method stands, in words."""
    place = f.place(dict(column), method)
    if place is None:
        return NOT_YET
    done, wanted = column[method].n, len(f.protocol.seeds)
    within = "within the " if abs(place.lead) <= place.spread else ""
    note = f"{within}spread over seeds, {place.spread:.4f}" if done > 1 else "one seed"
    note += f"; {done} of {wanted} seeds so far" if 1 < done < wanted else ""
    if place.rank == 1:
        return f"first, {place.lead:.4f} ahead of {title(place.rival)} ({note})"
    rank = ORDINALS[place.rank - 1]
    return f"{rank}, {-place.lead:.4f} behind {title(place.rival)} ({note})"


def standings(f: Findings, columns: Mapping[str, Mapping[str, Stat]]) -> str:
    return levels_words({name: standing(f, column) for name, column in columns.items()})


def levels_words(words: Mapping[str, str]) -> str:
    if all(word == NOT_YET for word in words.values()):
        return NOT_YET
    return "; ".join(f"{level(name)}: {word}" for name, word in words.items())


def beside_paper(f: Findings) -> str:
    """FAFED's accuracies beside the paper's."""
    ends = {name: f.end(f.finals(name, FAFED)) for name in f.levels}
    return levels_words({n: beside(end, f.protocol.table2[n][FAFED]) for n, end in ends.items()})


def beside(stat: Stat | None, paper: float) -> str:
    if stat is None or math.isnan(stat.mean):
        return NOT_YET if stat is None else "diverged"
    difference = stat.mean - paper
    side = "above" if difference >= 0 else "below"
    seeds = " (one seed)" if stat.n == 1 else ""
    return f"{abs(difference):.4f} {side} the paper's {paper:.4f}{seeds}"


def at_an_end(f: Findings) -> str:
    """Which chosen step sizes lie at an end of the grid, so that a larger one may be better."""
    found = []
    for name in f.levels:
        mine = []
        for method in f.protocol.methods:
            race = f.setting(name, method)
            etas = space(f.protocol.experiment(name), method)["eta"]
            if race and race.winner.job.settings["eta"] == max(etas):
                mine.append(title(method))
        if mine:
            found.append(f"{listing(mine)} ({level(name)})")
    return "; ".join(found) or NOTHING


def late_starters(f: Findings, among: int = 3) -> str:
    """Settings that won although they were not among the best after the first pass."""
    found = []
    for name in f.levels:
        for method in f.protocol.methods:
            race = f.setting(name, method)
            if race is None:
                continue
            first = [outcome.job.settings for outcome in race.rungs[0]]
            rank = first.index(race.winner.job.settings) + 1
            if rank > among:
                found.append(f"{title(method)} ({level(name)}, {ORDINALS[rank - 1]})")
    return listing(found) or NOTHING


def control_words(f: Findings) -> str:
    found: Mapping[str, Any] = {}
    for name in f.protocol.language:
        runs = f.language(name)
        if "FAFED" in runs and any("eta/rho" in label for label in runs):
            found = runs
            break
    if not found:
        return f"STEM at step eta/rho: {NOT_YET}"
    (control,) = (run for label, run in found.items() if "eta/rho" in label)
    mine, other = found["FAFED"], control
    if other.failure or mine.failure:
        who = "the control" if other.failure else "FAFED"
        return f"{who} diverged"
    a, b, plain = (run.end("train_loss", 3) for run in (mine, other, found.get("STEM", other)))
    return (
        f"training loss {a:.3f} for FAFED, {b:.3f} for STEM at step eta/rho, {plain:.3f} for STEM"
    )


def tuned_words(f: Findings) -> str:
    return levels_words({name: tuned_standing(f, name) for name in f.levels})


def tuned_standing(f: Findings, name: str) -> str:
    stat = f.end(f.tuned(name))
    if stat is None:
        return NOT_YET
    column = f.table2(name) | {FAFED: stat}
    return f"{standing(f, column)}, {beside(stat, f.protocol.reported(name)[FAFED])}"


def reading_words(f: Findings, name: str) -> str:
    """Where FAFED stands in a column that is read otherwise, and beside the paper."""
    column = f.table2(name)
    words = standing(f, column)
    if words == NOT_YET:
        return NOT_YET
    fair = f"{words}, {beside(column.get(FAFED), f.protocol.reported(name)[FAFED])}"
    return f"{fair}; better tuned: {tuned_standing(f, name)}"


def budget_words(f: Findings, name: str) -> str:
    found = f.rounds(name)
    if found is None:
        return NOT_YET
    e = f.protocol.experiment(name)
    epochs = found.count * e.local_steps * int(e.batch_size) * e.data.clients / EXAMPLES
    words = f"T = {found.count} ({epochs:.1f} epochs)"
    return words if found.reached else f"{words}, without reaching the paper's FedAvg"
