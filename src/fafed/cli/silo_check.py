"""What `fafed silos check` prints on a silo."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fafed.experiments.config import Experiment
    from fafed.silos.rehearsal import Leaving, Look, Spending
    from fafed.silos.site import Site


def shown(kit: Path, experiment: Experiment | None) -> Iterator[str]:
    """Lines about the silo's data, its limits and, with an experiment, what would leave. Ends with
    the error that a run would end with, if it would."""
    from fafed.errors import ConfigError
    from fafed.experiments import model_options
    from fafed.silos.rehearsal import look, rehearse
    from fafed.silos.site import Site

    file = kit if kit.is_file() else kit / "local" / "fafed.toml"
    if kit.is_dir() and not file.is_file():
        raise ConfigError(
            f"{kit} has no local/fafed.toml: give a silo's kit that `fafed silos site` has set "
            "up, or its file"
        )
    site = Site.read(file)
    found = look(site.data)
    yield from _data(found)
    if kit.is_dir() and find_spec("nvflare") is not None:
        yield from _certificate(kit)
    yield from _limits(site)
    if experiment is None:
        yield "Give the experiment, too, to see what it would send from here."
        return
    if absent := model_options.missing(experiment):
        given = {"inputs": found.numbers, "outputs": _outputs(found)}
        options = ", ".join(f"{name} = {given[name]}" for name in absent if given[name])
        yield f"\nThe experiment does not say {' and '.join(absent)}. Here they are: {options}"
    model_options.require_sizes(experiment)
    done = rehearse(experiment, site, kit.absolute().name if kit.is_dir() else "this-silo")
    yield f"\n{experiment.name}: this silo would take part"
    yield f"  rows to train on  {done.train}"
    yield f"  rows held out     {done.held_out}"
    yield f"  model             {experiment.model.name}, {done.parameters:,} parameters"
    if done.spending is not None:
        yield from _spending(done.spending, site)
    yield from _leaving(done.leaving, experiment)


def _data(found: Look) -> Iterator[str]:
    yield f"{found.where}"
    yield f"  rows     {found.rows}"
    if found.inputs:
        yield f"  inputs   {' x '.join(map(str, found.inputs))}"
    if found.columns:
        yield f"  columns  {', '.join(found.columns)}"
    if found.classes is not None:
        names = dict(enumerate(found.names))
        counts = ", ".join(f"{names.get(k, k)}: {rows}" for k, rows in found.classes.items())
        yield f"  classes  {counts} rows (this stays here)"
    for note in found.notes:
        yield f"  note     {note}"


def _outputs(found: Look) -> int | None:
    return None if not found.classes else max(2, 1 + max(found.classes))


def _certificate(kit: Path) -> Iterator[str]:
    from fafed.silos.transports.nvflare.certificates import ends, warning

    yield f"\nThe certificates of this kit end {ends(kit):%Y-%m-%d}"
    if text := warning(kit):
        yield f"WARNING: {text}"


def _limits(site: Site) -> Iterator[str]:
    yield "\nThis silo refuses what exceeds its limits, and runs only what its file allows:"
    yield f"  allow = {json.dumps(site.allow)}"
    for name, value in site.limits.model_dump().items():
        yield f"  {name} = {'inf' if value == math.inf else json.dumps(value)}"


def _spending(plan: Spending, site: Site) -> Iterator[str]:
    yield f"\nEpsilon of this silo's rows in the run, at delta = {plan.delta:g}:"
    for number, epsilon in zip(plan.rounds, plan.epsilon, strict=True):
        yield f"  after round {number:<6} {epsilon:.3f}"
    limits = site.limits
    yield f"Other runs have spent {plan.before:.3f} at max_delta = {limits.max_delta:g}."
    yield f"This silo's file has max_epsilon = {limits.max_epsilon:g} for all runs together."


def _leaving(leaving: list[Leaving], experiment: Experiment) -> Iterator[str]:
    if experiment.privacy_options().secure:
        yield "\nThe secure sum was left out here. With it, messages have other sizes."
    yield "\nThis would leave (two rounds were made in this process; nothing was sent):"
    yield f"  {'when':<18}{'what':<10}{'bytes':>12}  content"
    total = 0
    for one in leaving:
        last = one.kind == "kept"
        when = (
            "once per run"
            if one.kind == "sums"
            else "once per job"
            if not one.round
            else "at the end"
            if last
            else f"round {one.round}"
        )
        later = one.round == 2 and not last
        when = "each later round" if later else when
        total += one.bytes * (experiment.rounds - 1 if later else 1)
        facts = [f"{name} = {json.dumps(value)}" for name, value in one.facts.items()]
        yield f"  {when:<18}{one.kind:<10}{one.bytes:>12,}  {', '.join([*one.tensors, *facts])}"
    yield f"  {'in all':<18}{f'{experiment.rounds} rounds':<10}{total:>12,}"
