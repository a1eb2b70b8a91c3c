"""Verdicts in words, computed from the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fafed.report.numbers import NOTHING, Stat, listing
from studies.paper import decay
from studies.paper.decisions import Grid, Race
from studies.paper.findings import (
    FAFED,
    STEM,
    Findings,
    Races,
    Runs,
    Standing,
    level,
    title,
)
from studies.paper.ledger import Outcome
from studies.paper.protocol import Search, Settings

NOT_YET = "not run yet"
ORDINALS = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)
PLACES = ("1st", "2nd", "3rd", *(f"{n}th" for n in range(4, 11)))
RIVALS = ("fedadam", "fedams")  # the paper says that their curves are less smooth
EXAMPLES = 60_000  # in the training set of Fashion-MNIST
WORDS = 33_278  # in the vocabulary of WikiText-2


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def standing(
    f: Findings,
    column: Mapping[str, Stat],
    method: str = FAFED,
    among: Sequence[str] | None = None,
) -> str:
    """Where a method stands, in words."""
    place = f.standing(dict(column), method, among=among)
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


def judged(f: Findings, column: Mapping[str, Stat], among: Sequence[str] | None = None) -> str:
    """Whether a column of accuracies shows FAFED in front, in few words. A lead within the spread
    over seeds is no lead, and one seed decides nothing."""
    place = f.standing(column, among=among)
    if place is None:
        return NOT_YET
    far = f"{ORDINALS[place.rank - 1]}, {place.lead:+.4f}"
    return f"{verdict(place, column[FAFED].n)} ({far})"


def verdict(place: Standing, seeds: int) -> str:
    if seeds == 1:
        return "one seed, no verdict"
    if abs(place.lead) <= place.spread:
        return "open"
    return "**holds**" if place.lead > 0 else "**does not hold**"


def sureness(
    f: Findings,
    columns: Mapping[str, Mapping[str, Stat]],
    seeds: Sequence[int],
    among: Sequence[str] | None = None,
) -> str:
    """The seeds behind these verdicts, and the spread over them at each level."""
    places = {name: f.standing(column, among=among) for name, column in columns.items()}
    spreads = {name: place for name, place in places.items() if place}
    if not spreads:
        return NOTHING
    done = max(columns[name][FAFED].n for name in spreads)
    words = f"seeds {listing([str(s) for s in seeds[:done]])}" if done > 1 else f"seed {seeds[0]}"
    if done > 1:
        told = [f"{level(name)} {place.spread:.4f}" for name, place in spreads.items()]
        words += f"; spread {', '.join(told)}"
    return words


def rank(f: Findings, column: Mapping[str, Stat]) -> str:
    """FAFED's place in one word."""
    place = f.standing(dict(column))
    return NOT_YET if place is None else ORDINALS[place.rank - 1]


def cell(f: Findings, column: Mapping[str, Stat], among: Sequence[str] | None = None) -> str:
    """FAFED's place in a cell of a table: rank, margin to the best other, spread over seeds."""
    place = f.standing(dict(column), among=among)
    if place is None:
        return NOT_YET
    spread = f"{place.spread:.4f}" if column[FAFED].n > 1 else "one seed"
    return f"{PLACES[place.rank - 1]}, {place.lead:+.4f} ({spread})"


def standings(
    f: Findings,
    columns: Mapping[str, Mapping[str, Stat]],
    among: Sequence[str] | None = None,
) -> str:
    words = {name: standing(f, column, among=among) for name, column in columns.items()}
    return levels_words(words)


def edge(f: Findings, name: str, method: str, race: Race) -> str:
    """Whether the chosen step size is the smallest or the largest of those tried with the same
    other settings."""

    def parted(settings: Settings) -> tuple[float, str]:
        eta = settings["eta"]
        others = {k: v for k, v in settings.items() if k != "eta"}
        return (eta["peak"] if isinstance(eta, Mapping) else eta), repr(sorted(others.items()))

    tried = [parted(settings) for settings in decay.candidates(f.decisions, name, method)]
    eta, own = parted(race.winner.job.settings)
    etas = [e for e, others in tried if others == own]
    if eta == max(etas):
        return "largest"
    return "smallest" if eta == min(etas) else ""


def levels_words(words: Mapping[str, str]) -> str:
    if all(word == NOT_YET for word in words.values()):
        return NOT_YET
    return "; ".join(f"{level(name)}: {word}" for name, word in words.items())


def beside_paper(f: Findings, runs: Runs) -> str:
    """FAFED's accuracies beside the paper's."""
    ends = {name: f.end(runs(name, FAFED)) for name in f.levels}
    return levels_words({n: beside(end, f.protocol.table2[n][FAFED]) for n, end in ends.items()})


def beside(stat: Stat | None, paper: float) -> str:
    if stat is None or math.isnan(stat.mean):
        return NOT_YET if stat is None else "diverged"
    difference = stat.mean - paper
    side = "above" if difference >= 0 else "below"
    seeds = " (one seed)" if stat.n == 1 else ""
    return f"{abs(difference):.4f} {side} the paper's {paper:.4f}{seeds}"


def scale_words(columns: Mapping[str, Mapping[str, Stat]]) -> str:
    """What the adaptive scale adds: FAFED beside STEM, which is FAFED without it."""
    words = {}
    for name, column in columns.items():
        words[name] = NOT_YET
        if FAFED in column and STEM in column:
            ours, theirs = column[FAFED], column[STEM]
            spread = max(ours.std or 0.0, theirs.std or 0.0)
            words[name] = f"{ours.mean - theirs.mean:+.4f} (spread over seeds, {spread:.4f})"
    return levels_words(words)


def at_an_end(f: Findings, races: Races, grids: Callable[[str, str], Grid]) -> str:
    """Which chosen step sizes are the largest of the grid, so that a larger one may be better."""
    found = []
    for name in f.levels:
        mine = []
        for method in f.protocol.methods:
            race = races(name, method)
            chosen = race.winner.job.settings if race else {}
            grid = grids(name, method) if race else {}
            several = {s: grid[s] for s in ("eta", "eta_g") if len(grid.get(s, ())) > 1}
            steps = [s for s, values in several.items() if chosen[s] == max(values)]
            mine += [f"{title(method)} ({listing(steps)})"] if steps else []
        if mine:
            found.append(f"{level(name)}: {listing(mine)}")
    return "; ".join(found) or NOTHING


def tried(size: int, most: int) -> str:
    """How many points of a grid are tried."""
    return f"{most} of {size}" if most < size else f"all {size}"


def trials_words(sizes: Mapping[str, int], most: int) -> str:
    """How many points of its grid each method has tried: method -> points that it has."""
    by_count: dict[str, list[str]] = {}
    for method, size in sizes.items():
        by_count.setdefault(tried(size, most), []).append(title(method))
    return "; ".join(f"{listing(names)} {words}" for words, names in by_count.items())


def losses_words(f: Findings) -> str:
    """FAFED's rank in training loss, in every panel of Figures 2 to 4."""
    words = {}
    for name in f.levels:
        ranks = []
        for data, experiment in f.data_of(level(name)).items():
            found = {method: end for method, (end, _) in f.training(experiment).items()}
            if FAFED in found:
                place = sum(end < found[FAFED] for end in found.values())
                ranks.append(f"{data} {ORDINALS[place]}")
        words[name] = ", ".join(ranks) or NOT_YET
    return levels_words(words)


def rises_words(f: Findings) -> str:
    """In how many panels FAFED's training loss goes up less than FedAdam's and FedAMS's."""
    calmer, panels = dict.fromkeys(RIVALS, 0), 0
    for name in f.levels:
        for experiment in f.data_of(level(name)).values():
            found = {method: round(ups, 2) for method, (_, ups) in f.training(experiment).items()}
            if {FAFED, *RIVALS} <= set(found):
                panels += 1
                for rival in RIVALS:
                    calmer[rival] += found[FAFED] < found[rival]
    if not panels:
        return NOT_YET
    words = [f"than {title(rival)}'s in {count}" for rival, count in calmer.items()]
    return f"{', '.join(words)} of {panels} panels"


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


def language_words(f: Findings) -> str:
    """FAFED's place by training loss in the language models."""
    words = []
    for name, wanted in f.protocol.language.items():
        runs = f.language(name)
        ends = {label: run.end("train_loss", f.protocol.tail) for label, run in runs.items()}
        mine = ends.get(title(FAFED), math.nan)
        others = {label: end for label, end in ends.items() if end == end and label != title(FAFED)}
        if math.isnan(mine) or not others:
            failed = title(FAFED) in runs and math.isnan(mine)
            words.append(f"{wanted.about}: {'diverged' if failed else NOT_YET}")
            continue
        place = ORDINALS[sum(end < mine for end in others.values())]
        so_far = "" if len(runs) == len(wanted.methods) else " so far"
        best = min(others, key=lambda label: others[label])
        words.append(
            f"{wanted.about}: {place} of {len(runs)}{so_far}, {mine:.3f}, the best other {best} "
            f"{others[best]:.3f}, {lowest_words(runs)}"
        )
    return "; ".join(words)


def lowest_words(runs: Mapping[str, Outcome]) -> str:
    """In which rounds FAFED has the lowest training loss."""
    losses = {label: dict(run.series("train_loss")) for label, run in runs.items()}
    mine = losses.pop(title(FAFED))
    led = [r for r in mine if all(mine[r] < other.get(r, math.inf) for other in losses.values())]
    if not led:
        return "lowest in no round"
    which = f"from {led[0]:.0f} to {led[-1]:.0f}" if len(led) > 1 else f"round {led[0]:.0f}"
    return f"lowest in {len(led)} of {len(mine)} rounds, {which}"


def also_words(f: Findings) -> str:
    """FAFED's accuracy with its further choice and the settings of `tuned.also`."""
    ends = {name: f.end(f.tuned_also(name, FAFED)) for name in f.levels}
    words = {n: f"{end.mean:.4f} ± {end.std or 0:.4f}" for n, end in ends.items() if end}
    return levels_words({name: words.get(name, NOT_YET) for name in f.levels})


def reading_words(f: Findings, name: str) -> str:
    """FAFED's standing in another reading of a column, and the difference to the paper."""
    column = f.table2(name)
    words = standing(f, column)
    if words == NOT_YET:
        return NOT_YET
    fair = f"{words}, {beside(column.get(FAFED), f.protocol.reported(name)[FAFED])}"
    return f"{fair}; {at_equal_cost_words(f, name)}"


def at_equal_cost_words(f: Findings, name: str, runs: Runs | None = None) -> str:
    axes = ("gradients", "bytes")
    return ", ".join(f"at equal {a} {rank(f, f.at_equal_cost(name, a, runs))}" for a in axes)


def equal_costs_words(f: Findings, runs: Runs) -> str:
    """FAFED's ranks at equal gradients and bytes, for all levels."""
    return levels_words({name: at_equal_cost_words(f, name, runs) for name in f.levels})


def budget_words(f: Findings, name: str) -> str:
    found = f.rounds(name)
    if found is None:
        return NOT_YET
    e = f.protocol.experiment(name)
    epochs = found.count * e.local_steps * int(e.batch_size) * e.data.clients / EXAMPLES
    words = f"T = {found.count} ({epochs:.1f} epochs)"
    return words if found.reached else f"{words}, without reaching the paper's FedAvg"


def seeds_words(f: Findings) -> str:
    return f"seeds {listing([str(seed) for seed in f.protocol.seeds])}"


def passes_words(f: Findings, search: Search) -> str:
    """How a search chooses."""
    *rungs, last = search.rungs
    steps = [f"{100 * r.share:.0f} % of T, from which the best {r.keep} go on" for r in rungs]
    best = f"the best mean of {last.tail} evaluations"
    if last.more_seeds:
        seeds = [str(seed) for seed in (f.protocol.choosing_seed, *last.more_seeds)]
        best += f", over seeds {listing(seeds)},"
    return "; ".join([*steps, f"T rounds, of which {best} wins"])
