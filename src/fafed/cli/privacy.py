"""The plan of what an experiment spends of its clients' privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fafed.cli.options import Changes, Json, Name, print_json

if TYPE_CHECKING:
    from fafed.experiments.config import Experiment
    from fafed.training.budget import Budget

Wanted = Annotated[
    float | None, typer.Option("--epsilon", help="Find the noise that spends this much.")
]
Examples = Annotated[
    str | None,
    typer.Option(metavar="N,N,...", help="How many examples each silo has."),
]
TENTHS = 10
SHOWN = 20  # clients of which the table has a row


def privacy(
    experiment: Name,
    changes: Changes = None,
    wanted: Wanted = None,
    examples: Examples = None,
    as_json: Json = False,
) -> None:
    """Show epsilon after each tenth of the rounds, or the noise for a wanted epsilon.

    The experiment needs a table [privacy] with a level. Nothing is trained. With --examples no data
    is read: the plan is that of silos with so many examples.
    """
    from rich.console import Console
    from rich.table import Table

    from fafed.errors import ConfigError
    from fafed.experiments import assemble
    from fafed.experiments.config import Experiment

    given = [*(changes or ())]
    if wanted is not None:
        given.append("privacy.noise=1.0")  # some noise, until it is found
    found = Experiment.read(experiment, given)
    if wanted is not None:
        table = {k: v for k, v in found.privacy.items() if k != "max_epsilon"}
        found = found.changed(privacy=table)
    budget = _over_silos(found, examples) if examples else assemble.prepare(found).run.budget
    if budget is None:
        raise ConfigError(
            f"{experiment} has no noise: add [privacy] with a level, noise, clip, delta"
        )
    accountant, rounds = budget.accountant, found.rounds
    if wanted is not None:
        accountant = accountant.with_noise(accountant.noise_for(wanted, rounds))
    steps = sorted({max(1, rounds * k // TENTHS) for k in range(1, TENTHS + 1)})
    clients = range(len(accountant.rates))
    if as_json:
        print_json(
            {
                "noise": accountant.noise,
                "delta": accountant.delta,
                "rounds": steps,
                "epsilon": [accountant.epsilon(r) for r in steps],
                "clients": [accountant.of_client(c, rounds) for c in clients],
                "affordable_rounds": budget.affordable(rounds),
            }
        )
        return
    level = found.privacy_options().level
    typer.echo(
        f"noise {accountant.noise:.4g}, delta {accountant.delta:g}, add or remove one {level}"
    )
    if budget.max_epsilon is not None:
        typer.echo(
            f"max_epsilon {budget.max_epsilon:g} allows {budget.affordable(rounds)} of {rounds} "
            "rounds"
        )
    shown = Table("round", "epsilon (worst client)")
    for r in steps:
        shown.add_row(str(r), f"{accountant.epsilon(r):.3f}")
    Console().print(shown)
    if level == "client":  # all clients have the same
        return
    each = Table("client", f"epsilon after round {rounds}")
    for client in clients[:SHOWN]:
        each.add_row(str(client), f"{accountant.of_client(client, rounds):.3f}")
    if len(clients) > SHOWN:
        each.add_row("...", f"{len(clients) - SHOWN} more: --json shows all")
    Console().print(each)


def _over_silos(experiment: Experiment, examples: str) -> Budget | None:
    """The plan of silos with these numbers of examples. None: the experiment has no noise."""
    from fafed.errors import ConfigError
    from fafed.experiments import assemble, model_options
    from fafed.silos.limits import refuse_client_level
    from fafed.silos.private import plan

    counts = [int(n) if n.strip().isdecimal() else 0 for n in examples.split(",")]
    if min(counts) < 1:
        raise ConfigError(f"--examples {examples} must be whole numbers, for example 1200,800,950")
    refuse_client_level(experiment)
    if experiment.privacy_options().level is None:
        return None
    model_options.require_sizes(experiment)
    return plan(experiment, assemble.model(experiment, text=False), counts)
