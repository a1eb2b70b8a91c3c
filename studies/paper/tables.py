"""The tables of docs/paper.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fafed.report.numbers import NOTHING, Stat, duration, listing
from studies import markdown
from studies.paper.findings import (
    ACCURACY,
    CONTROL,
    FAFED,
    Findings,
    Races,
    level,
    perplexity,
    title,
)
from studies.paper.ledger import Outcome
from studies.paper.verdicts import NOT_YET, tried


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, or one sentence if nothing in it has been run yet."""
    rows = list(rows)
    if all(cell == NOT_YET for row in rows for cell in row[1:]):
        return f"{NOT_YET.capitalize()}.\n"
    return markdown.table(head, rows)


def accuracy(stat: Stat | None, best: bool = False) -> str:
    """As the paper writes it, with the standard deviation over seeds."""
    if stat is None:
        return NOT_YET
    if math.isnan(stat.mean):
        return "diverged"
    text = f"{stat.mean:.4f}" + (" (1 seed)" if stat.std is None else f" ± {stat.std:.4f}")
    return f"**{text}**" if best else text


def settings(values: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    return ", ".join(f"{k} = {value_text(v)}" for k, v in values.items() if k not in without)


def value_text(value: Any) -> str:
    if isinstance(value, Mapping) and value["schedule"] == "linear":
        rises = f", rising over {100 * value['warmup']:.0f} %" if value.get("warmup") else ""
        return f"{value['peak']:.3g} falling{rises}"
    if isinstance(value, Mapping):
        exponent = value.get("exponent", 1 / 3)
        return f"{value['kappa']:g}/({value.get('w', 1.0):g} + {value['every']})^{exponent:.3g}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# Table 2 and its relatives: one row for each method, one column for each level.


def table_2(f: Findings) -> str:
    columns = {name: f.table2(name) for name in f.levels}
    best = {name: _best(column) for name, column in columns.items()}
    rows = []
    for method in f.protocol.methods:
        row = [title(method)]
        for name in f.levels:
            row.append(f"{f.protocol.table2[name][method]:.4f}")
            row.append(accuracy(columns[name].get(method), method == best[name]))
        rows.append(row)
    head = ["method"]
    for name in f.levels:
        head += [f"{level(name)}, paper", f"{level(name)}, fafed"]
    return table(head, rows)


def reading_table(f: Findings, name: str) -> str:
    """One column of Table 2, with settings."""
    paper, column = f.protocol.reported(name), f.table2(name)
    rows = []
    for method in f.protocol.methods:
        race = f.setting(name, method)
        chosen = settings(race.winner.job.settings, ("tau",)) if race else NOT_YET
        found = accuracy(column.get(method), method == _best(column))
        rows.append([title(method), f"{paper[method]:.4f}", found, chosen])
    return table(["method", "paper", "fafed", "setting"], rows)


def levels_table(
    f: Findings,
    columns: Mapping[str, Mapping[str, Stat]],
    methods: Sequence[str] | None = None,
) -> str:
    """Level -> method -> number."""
    methods = methods or f.protocol.methods
    whole = {name: len(column) == len(methods) for name, column in columns.items()}
    best = {name: _best(column) if whole[name] else None for name, column in columns.items()}
    rows = [
        [title(m), *(accuracy(columns[name].get(m), m == best[name]) for name in columns)]
        for m in methods
    ]
    return table(["method", *(level(name) for name in columns)], rows)


def _best(column: Mapping[str, Stat]) -> str | None:
    finite = {method: stat.mean for method, stat in column.items() if not math.isnan(stat.mean)}
    return max(finite, key=lambda method: finite[method]) if finite else None


def settings_table(
    f: Findings,
    races: Races,
    without: Sequence[str] = (),
    methods: Sequence[str] | None = None,
) -> str:
    rows = []
    for method in methods or f.protocol.methods:
        row = [title(method)]
        for name in f.levels:
            race = races(name, method)
            row.append(settings(race.winner.job.settings, without) if race else NOT_YET)
        rows.append(row)
    return table(["method", *(level(name) for name in f.levels)], rows)


def costs_table(f: Findings) -> str:
    """What a run costs, as a multiple of FedAvg's."""
    rows = []
    for method in f.protocol.methods:
        found = f.costs(f.levels[-1], method)
        numbers = [f"{found[axis]:.2f}" for axis in found] if found else [NOT_YET] * 2
        rows.append([title(method), *numbers])
    return table(["method", "gradients", "bytes"], rows)


# Single runs.


def grids_table(f: Findings) -> str:
    """What the further search tries; methods with the same grid together."""
    search = f.protocol.tuned
    same: dict[tuple[str, str], list[str]] = {}
    for method in f.protocol.methods:
        grid = search.grids[method]
        size = len(search.eta_times) * math.prod(map(len, grid.values()))
        same.setdefault((_values(grid), tried(size, search.trials)), []).append(title(method))
    rows = [[listing(names), *cells] for cells, names in same.items()]
    return table(["method", "beside eta", "trials"], rows)


def momentum_table(f: Findings) -> str:
    """What is tried of each kind of momentum; trials are those of one method, from two settings."""
    rows = []
    for kind in f.protocol.momentum:
        times = listing([f"{t:g}" for t in kind.eta_times])
        trials = 2 * len(kind.eta_times) * math.prod(map(len, kind.grid.values()))
        methods = listing([title(method) for method in kind.methods])
        rows.append([kind.about, methods, _values(kind.grid), times, str(trials)])
    return table(["momentum", "methods", "beside eta", "eta times", "trials at most"], rows)


def _values(grid: Mapping[str, Sequence[Any]]) -> str:
    values = {key: listing([value_text(v) for v in grid[key]]) for key in grid}
    return "; ".join(
        f"{key} {'from' if len(grid[key]) > 1 else '='} {listed}" for key, listed in values.items()
    )


def alphas_table(f: Findings) -> str:
    """How many trials with each alpha were left after each pass of FAFED's further search."""
    rows = []
    for alpha in f.protocol.tuned.grids[FAFED]["alpha"]:
        row = [value_text(alpha)]
        for name in f.levels:
            race = f.tuned_setting(name, FAFED)
            passes = [
                [run for run in rung if run.job.settings["alpha"] == alpha]
                for rung in (race.rungs if race else [])
            ]
            if not passes:
                row.append(NOT_YET)
                continue
            best = max((run.end("validation_accuracy", 1) for run in passes[0]), default=math.nan)
            row.append(f"{' → '.join(str(len(left)) for left in passes)}, {best:.4f}")
        rows.append(row)
    return table(["alpha", *(level(name) for name in f.levels)], rows)


def training_table(f: Findings, names: Mapping[str, str]) -> str:
    """Training loss at the end, and how much it had risen on the way: data -> experiment."""
    found = {name: f.training(name) for name in names.values()}
    least = {
        name: min((end for end, _ in mine.values()), default=None) for name, mine in found.items()
    }
    rows = []
    for method in f.protocol.methods:
        row = [title(method)]
        for name in names.values():
            if method not in found[name]:
                row.append("diverged" if f.curves(name, method) else NOT_YET)
                continue
            end, ups = found[name][method]
            text = f"**{end:.4f}**" if end == least[name] else f"{end:.4f}"
            row.append(f"{text}, {ups:.2f}")
        rows.append(row)
    return table(["method", *names], rows)


def curves_settings_table(f: Findings, data: str) -> str:
    """The settings of the curves on data other than Fashion-MNIST."""
    names = f.protocol.curves.data[data]
    rows = []
    for method in f.protocol.methods:
        runs = [f.curves(name, method) for name in names]
        cells = [settings(found[0].job.settings, ("tau",)) if found else NOT_YET for found in runs]
        same = len(set(cells)) == 1
        rows.append([title(method), "; ".join(cells[:1] if same else cells)])
    return table(["method", " / ".join(level(name) for name in names)], rows)


def sensitivity_table(f: Findings) -> str:
    found = f.sensitivity()
    rows = []
    for what, values in f.protocol.sensitivity.values.items():
        runs = dict(found[what])
        cells = [f"{v:g}: {_single(runs[v], f)}" for v in map(float, values) if v in runs]
        rows.append([what.rpartition(".")[2].replace("_", " "), "; ".join(cells) or NOT_YET])
    return table(["changed", "value: test accuracy"], rows)


def deviations_table(f: Findings) -> str:
    rows = []
    for wanted in f.protocol.deviations:
        for method in wanted.methods:
            plain, other = f.deviation(wanted, method)
            cells = [_single(run, f) for run in (plain, other)]
            rows.append([f"{wanted.about}; {level(wanted.experiment)}, {title(method)}", *cells])
    return table(["instead", "as in Table 2", "instead"], rows)


def _single(run: Outcome | None, f: Findings) -> str:
    if run is None:
        return NOT_YET
    value = run.end(ACCURACY, f.protocol.tail)
    return "diverged" if math.isnan(value) else f"{value:.4f}"


def language_table(runs: Mapping[str, Outcome], tail: int) -> str:
    """Label -> run; the training loss is a mean of the last `tail` rounds."""
    rows = []
    for label, run in runs.items():
        train, test = run.end("train_loss", tail), run.end("test_loss", 1)
        chosen = settings(run.job.settings, ("tau",))
        if run.failure:
            rows.append([label, "diverged", "diverged", chosen])
        else:
            rows.append([label, f"{train:.3f}", f"{perplexity(test):.1f}", chosen])
    return table(["method", "training loss", "test perplexity", "setting"], rows)


def text_table(f: Findings) -> str:
    """The short language model: what was chosen, and where it ends."""
    p, column = f.protocol.text, f.text_column()
    least = min((s.mean for s in column.values() if not math.isnan(s.mean)), default=None)
    rows = []
    for label, runs in [*((title(m), f.texts(m)) for m in p.methods), (CONTROL, f.text_control())]:
        end = f.loss(runs)
        if end is None:
            rows.append([label, NOT_YET, NOT_YET, NOT_YET])
            continue
        test = Stat.from_values([perplexity(run.end("test_loss", 1)) for run in runs])
        words = f"**{loss(end)}**" if end.mean == least else loss(end)
        chosen = settings(runs[0].job.settings, ("tau",))
        rows.append([label, words, loss(test, 1), chosen])
    return table(["method", "training loss", "test perplexity", "setting"], rows)


def loss(stat: Stat, places: int = 3) -> str:
    if math.isnan(stat.mean):
        return "diverged"
    seeds = " (1 seed)" if stat.std is None else f" ± {stat.std:.{places}f}"
    return f"{stat.mean:.{places}f}{seeds}"


def first_rounds_table(f: Findings, at: Sequence[int]) -> str:
    """The training loss in some of the first rounds, and the largest."""
    found = {case.about: run for case, run in f.first_rounds()}
    rows = []
    for case in f.protocol.first_rounds.cases:
        run = found.get(case.about)
        losses = dict(run.series("train_loss")) if run else {}
        cells = [f"{losses[r]:.2f}" if r in losses else NOT_YET for r in at]
        top = f"{max(losses.values()):.2f}" if losses else NOT_YET
        if run and run.failure:
            cells, top = ["diverged"] * len(at), "diverged"
        rows.append([case.about, *cells, top, _adapted(run)])
    head = ["", *(f"round {r}" for r in at), "largest", "sqrt(v) > rho"]
    return table(head, rows)


def _adapted(run: Outcome | None) -> str:
    """The share of coordinates whose scale is more than rho, in the first and the last round."""
    shares = [100 * y for _, y in run.series("adaptive_fraction")] if run else []
    return f"{shares[0]:.2g} %, {shares[-1]:.2g} %" if shares else NOTHING


def effort_table(f: Findings) -> str:
    """The runs of each experiment, their gradients and their time."""
    outcomes = list(f.decisions.ledger.outcomes.values())
    rows = []
    for name in dict.fromkeys(sorted(o.job.experiment for o in outcomes)):
        mine = [o for o in outcomes if o.job.experiment == name]
        gradients = sum(float((o.columns.get("gradients") or [0])[-1] or 0) for o in mine)
        seconds = math.fsum(o.seconds for o in mine)  # fsum: the same in any order
        failed = sum(o.failure is not None for o in mine)
        rows.append([name, str(len(mine)), str(failed), f"{gradients:,.0f}", duration(seconds)])
    return table(["experiment", "runs", "of them diverged", "gradients", "time in rounds"], rows)
