"""List algorithms and presets."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from typing import Annotated

import typer

from fafed.cli.options import Json, print_json

Markdown = Annotated[bool, typer.Option("--markdown", help="Print the page docs/algorithms.md.")]


def algorithms(as_json: Json = False, as_markdown: Markdown = False) -> None:
    """List the algorithms: paper, hyper-parameters, cost."""
    from rich.console import Console
    from rich.table import Table

    from fafed.report.algorithm_cards import cards, markdown

    found = cards()
    if as_markdown:
        typer.echo(markdown(found), nl=False)
        return
    if as_json:
        print_json([asdict(card) for card in found])
        return
    table = Table(title="Algorithms", caption="vectors up/down: per client and round")
    for column in ("name", "paper", "hyper-parameters and defaults"):
        table.add_column(column, overflow="fold")
    for column in ("up", "down", "gradients\nper step"):
        table.add_column(column, justify="right")
    for card in found:
        settings = "\n".join(f"{s.name} = {s.default!r}" for s in card.settings)
        costs = (f"{value:g}" for value in (card.up, card.down, card.gradients))
        paper = card.paper.replace(", http", "\nhttp").replace("https://", "")
        table.add_row(f"[bold]{card.name}[/bold]", paper, settings, *costs, end_section=True)
    Console().print(table)


def presets(
    name: str = typer.Argument(None, help="Print this preset's TOML."), as_json: Json = False
) -> None:
    """List the experiments that come with fafed, or print one."""
    from rich.console import Console
    from rich.table import Table

    from fafed.errors import ConfigError, nearest
    from fafed.experiments.toml_text import presets as texts

    known = texts()
    if name is not None:
        if name not in known:
            raise ConfigError(f"no preset is called {name!r}; {nearest(name, known)}")
        typer.echo(known[name], nl=False)
        return
    if as_json:
        print_json({preset: tomllib.loads(text) for preset, text in known.items()})
        return
    table = Table("name", "what", "clients", "b", "q", "rounds", title="Presets")
    for preset, text in known.items():
        content = tomllib.loads(text)
        what = text.splitlines()[0].removeprefix("# ")
        numbers = (content[k] for k in ("batch_size", "local_steps", "rounds"))
        table.add_row(
            preset, what, str(content["data"].get("clients", "users")), *map(str, numbers)
        )
    Console().print(table)
