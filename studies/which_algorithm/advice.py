"""What to take in which situation. The numbers choose, and the sentences show them."""

from __future__ import annotations

from fafed.algorithms import ALGORITHMS
from fafed.report.numbers import listing
from studies.which_algorithm import jobs
from studies.which_algorithm.cifar import Found
from studies.which_algorithm.cifar_part import deeper
from studies.which_algorithm.jobs import END, JOBS
from studies.which_algorithm.results import (
    ALIKE,
    EXPERIMENTAL,
    PARTIAL,
    SKEWED,
    TITLES,
    Results,
    class_name,
    keeps_nothing,
    link,
    listed,
    percent,
    points,
    written,
)

UNTUNED = "#what-it-costs-to-choose-nothing"


def advice(r: Results, found_on_cifar: Found) -> str:
    """A list: the situation, what to take, and why."""
    found = [
        ("You begin", _first(r)),
        ("No time to tune", _untuned(r)),
        ("Data differ, all clients in every round", _skewed(r)),
        ("Data are alike", _alike(r)),
        ("Clients come and go", _partial(r)),
        ("Bytes are scarce", _bytes(r)),
        ("Gradients are scarce", _gradients(r)),
    ]
    if all(r.mean(part, EXPERIMENTAL) > r.mean(part, r.best(part, _there(r))) for part in JOBS):
        found.append(("An experiment is welcome", _experiment(r)))
    if told := deeper(found_on_cifar):
        found.append(("A deeper network, few rounds", told))
    lines = [f"- **{situation}:** {' '.join(words)}\n" for situation, words in found]
    return "## In short\n\n" + "".join(lines)


def falling(peak: float) -> str:
    """The line in a file."""
    return f'`eta = {{ schedule = "linear", peak = {peak:g}, end = {END:g} }}`'


def _plain(r: Results) -> list[str]:
    """The methods with FedAvg's cost per round."""
    return r.advisable(lambda c: (c.up, c.down, c.gradients, c.besides) == (1, 1, 1, ()))


def _there(r: Results) -> list[str]:
    return [name for name in r.advisable() if name in r.parts[PARTIAL]]


def _first(r: Results) -> list[str]:
    return [
        f"{link('fedavg')} with {falling(r.parts[SKEWED]['fedavg']['setting']['eta'])}. One vector",
        "each way, one gradient per step, nothing to keep, one step size. It ends at",
        f"{_three([percent(r.mean(part, 'fedavg')) for part in JOBS])}.",
    ]


def _untuned(r: Results) -> list[str]:
    best, following = sorted(_there(r), key=r.worst_gap)[:2]
    default, gap, count = r.parts[SKEWED][best]["default"], r.worst_gap(best), r.jobs_of_defaults
    peak = falling(default["eta"])
    others = {key: value for key, value in default.items() if key != "eta"}
    told = f"{peak} and `{written(others)}`" if others else peak
    result = (
        f"It ended above tuned FedAvg on all {count} jobs"
        if gap <= 0
        else f"On {count} jobs it was never more than {points(gap)} below tuned FedAvg"
    )
    return [
        f"{link(best)} with {told}, its default as the peak. [{result}]({UNTUNED}), with one seed.",
        f"The choice had not seen {count - len(JOBS)} of them. It ends at",
        f"{_three([percent(r.untuned(part, best)) for part in JOBS])}. Next is {link(following)}.",
    ]


def _skewed(r: Results) -> list[str]:
    best, plain = r.best(SKEWED, r.advisable()), r.best(SKEWED, _plain(r))
    quick = r.cheapest(SKEWED, "rounds", _plain(r))[0]
    return [
        f"{link(best)} ends highest, at {r.end(SKEWED, best)}{_level(r, SKEWED, best)}.",
        f"At FedAvg's cost per round it is {link(plain)} with {r.end(SKEWED, plain)},",
        f"{points(r.lead(SKEWED, plain))} above FedAvg. {class_name(quick)} is the quickest of",
        f"these: {r.target(SKEWED)} after {r.took(SKEWED, quick)} rounds, FedAvg after",
        f"{r.took(SKEWED, 'fedavg')}.",
    ]


def _alike(r: Results) -> list[str]:
    best, plain = r.best(ALIKE, r.advisable()), r.best(ALIKE, _plain(r))
    return [
        f"{link(best)} ends highest, at {r.end(ALIKE, best)}{_level(r, ALIKE, best)}. It reaches",
        f"{r.target(ALIKE)} after {r.took(ALIKE, best)} rounds, FedAvg after",
        f"{r.took(ALIKE, 'fedavg')}. At FedAvg's cost per round it is {link(plain)} with",
        f"{r.end(ALIKE, plain)}.",
    ]


def _partial(r: Results) -> list[str]:
    there = _there(r)
    best, light = r.best(PARTIAL, there), r.best(PARTIAL, filter(keeps_nothing, there))
    return [
        f"{link(best)}{_wire(best)} ends highest, at",
        f"{r.end(PARTIAL, best)}{_level(r, PARTIAL, best)}. FedAvg ends at",
        f"{r.end(PARTIAL, 'fedavg')}. Clients that do not come back cannot keep a state. Of the",
        f"methods that keep none, {link(light)}{_wire(light)} ends highest, at",
        f"{r.end(PARTIAL, light)}. {_refusals()}",
    ]


def _bytes(r: Results) -> list[str]:
    best, following = r.best_at(SKEWED, "bytes", r.advisable())[:2]
    alike = r.best_at(ALIKE, "bytes", r.advisable())[0]
    return [
        f"{link(best)}. With the bytes of FedAvg's run it ends at",
        f"{percent(r.equal(SKEWED, best, 'bytes'))} (skewed). Then comes {class_name(following)}",
        f"with {percent(r.equal(SKEWED, following, 'bytes'))}. On alike data {class_name(alike)}",
        f"is first: {percent(r.equal(ALIKE, alike, 'bytes'))}. If only bytes up are scarce,",
        f"{link('fedcams')} sends {r.cards['fedcams'].up:.3f} vectors instead of 1, but ends at",
        f"{r.end(SKEWED, 'fedcams')}. [Compressed messages](wire.md) work with every other method.",
    ]


def _gradients(r: Results) -> list[str]:
    best, following = r.best_at(SKEWED, "gradients", r.advisable())[:2]
    alike = r.best_at(ALIKE, "gradients", r.advisable())[0]
    return [
        f"{link(best)}. With the gradients of FedAvg's run it ends at",
        f"{percent(r.equal(SKEWED, best, 'gradients'))} (skewed). Then comes",
        f"{class_name(following)} with {percent(r.equal(SKEWED, following, 'gradients'))}. On",
        f"alike data {class_name(alike)} is first: {percent(r.equal(ALIKE, alike, 'gradients'))}.",
    ]


def _experiment(r: Results) -> list[str]:
    return [
        f"{link(EXPERIMENTAL)} ends highest in all three settings:",
        f"{_three([r.end(part, EXPERIMENTAL) for part in JOBS])}. It sends one vector each way if",
        "all clients take part. It is fafed's own and has not been tried by others. Its rounds",
        "take longer. [FedKron](fedkron.md) has more. The entries above leave it out.",
    ]


def _three(ends: list[str]) -> str:
    return listing([f"{end} ({TITLES[part]})" for part, end in zip(JOBS, ends, strict=True)])


def _level(r: Results, part: str, first: str) -> str:
    """Who is not told apart from the first by the spread."""
    among = _there(r) if part == PARTIAL else r.advisable()
    names = r.level(part, first, among)
    return f" (within the spread: {listed(names)})" if names else ""


def _wire(name: str) -> str:
    wire = jobs.experiment(PARTIAL).settings.get(name, {}).get("wire")
    return f' with wire="{wire}"' if wire else ""


def _refusals() -> str:
    names = [n for n in jobs.experiment(SKEWED).search if ALGORITHMS[n]().requires_all_clients]
    never = listed(name for name in names if not _wire(name))
    optional = listed(name for name in names if _wire(name))
    return f'{never} needs all clients. So do {optional}, except with wire="full".'
