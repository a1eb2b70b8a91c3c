"""docs/paper.md and the README's part, from the ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fafed.errors import ConfigError, nearest
from studies import markdown
from studies.paper import figures, tables, verdicts
from studies.paper.findings import Findings
from studies.paper.sections import accuracy, claims, curves, decay, language, overview

README_PART = "paper"  # the name of the markers in README.md

INTRODUCTION = """\
# The paper's experiments, run again

We ran the experiments of the FAFED paper
([Wu et al., AAAI 2023](https://arxiv.org/abs/2212.00974)) again. This page has what we found; the
[appendix](paper-appendix.md) has every rule, setting and further run. `python -m studies.paper
document` writes both, verdicts included, from the records in
[studies/paper/results](../studies/paper/results). What has not been run yet is called so.

"""

APPENDIX = """\
# The paper's experiments, run again: appendix

Rules, settings and further runs behind [the page](paper.md), and how the rules came about.

"""

DEVIATIONS = """\
## Deviations

Where the paper leaves something open, or its public code does something else. The table shows what
each choice changes, for one seed ({seed}) and the settings of Table 2, not tuned again.

{table}
- *Number of rounds.* Not given in the paper, which says that the epochs were the same. The rule
  above makes FedAvg agree with the paper's by construction, so the other rows are what is compared.
  The moderate and the high level come to about the same number of epochs, the low one to far fewer:
  either the paper trained that one for fewer epochs, or its batches there were not of 5.
- *Batches and local steps.* The paper gives b from {{5, 50, 100}} and q from {{5, 10, 20}}, with
  larger b and smaller q as the data differ more: read as (5, 20), (50, 10), (100, 5).
- *Data of the high level.* Five of ten classes for each client. The public code makes two groups of
  clients with complementary classes; so do we.
- *Data of the moderate level.* Disjoint parts with all classes: every class is dealt out evenly, so
  that the clients' data are as alike as can be, more than at the low level. The paper may have
  meant uneven shares.
- *Data of the low level.* "95 % similar" is read as in SCAFFOLD: 95 % dealt out at random, the rest
  sorted by label. Nothing is given twice.
- *Grid.* FedAdam and FedAMS have 60 points in the paper's grid. They get as many trials as the
  others at most. The best step size of most methods is the largest of the grid; what lies beyond
  is [searched further](#table-2-searched-further).
- *Models.* The paper's tables list an activation after the last layer, too; here the logits have
  none. Initial weights and the normalisation of the images are those of the public code.
- *Bytes.* SCAFFOLD sends one vector each way instead of two (`wire = "compact"`, for which all
  clients must take part in every round): the other follows from it.
- *Options.* FAFED is the paper's Algorithm 2: the new scale in the q-th step, the old gradient with
  factor 1, rho = 0.01, a first batch of b q. The public code differs in each.
- *Settings chosen on held-out data.* The paper does not say by what it chose.
"""

AGAIN = """\
## Make it again

```
python -m studies.paper status                   # stages, and what is missing of each
python -m studies.paper run                      # what is missing; stop it when you like
python -m studies.paper run --only wikitext-2    # one stage; takes hours, run only on request
python -m studies.paper show table-2             # one part of this page, in the terminal
python -m studies.paper figure figure-2          # one figure
python -m studies.paper document                 # these pages, their figures and the README's part
```

The records of this page are in studies/paper/results, so there is little to run. From nothing, with
folders of their own for records and runs, which `show` and `figure` take, too:

```
python -m studies.paper run --only fashion-mnist-high --results again --runs runs/again
python -m studies.paper show table-2 --results again --runs runs/again
```

| of this page | stages |
| --- | --- |
| Number of rounds | budget |
| Table 2, equal gradients and bytes | fashion-mnist-low, -moderate and -high |
| Table 2 under other rules | tuned, momentum, momentum-long, and two columns read otherwise |
| With a falling step size | decay-low, decay-moderate, decay-high |
| Figures 2 to 4 | those of Table 2, and mnist-low to cifar-10-high |
| The same with three seeds | mnist-low-again to cifar-10-high-again |
| Figure 1 | text, text-check, wikitext-2 |
| The first rounds | first-rounds |
| Table 1 and Theorem 1 | `python -m studies.theory all` |
| Appendix | long, long-seeds, fashion-mnist-low-b50, fashion-mnist-high-random, sensitivity |
| Deviations | deviations |

MNIST, CIFAR-10 and WikiText-2 are fetched with `fafed data get`. Each run is an ordinary run
directory: `fafed report runs/again/fashion-mnist-high` shows its curves.
"""

Section = Callable[[Findings], str]
PAGE: dict[str, Section] = {
    "claims": claims.claims,
    "how": overview.how,
    "table-2": accuracy.table_2,
    "equal-cost": accuracy.equal_cost,
    "places": accuracy.places,
    "decay": decay.decay,
    "figures": curves.figures,
    "language": language.figure_1,
    "table-1": overview.theory,
}
BEHIND: dict[str, Section] = {
    "protocol": overview.protocol,
    "settings": accuracy.table_2_more,
    "readings": accuracy.readings,
    "long": accuracy.longer,
    "tuned": accuracy.tuned,
    "momentum": accuracy.momentum,
    "decay-settings": decay.decay_more,
    "sensitivity": accuracy.sensitivity,
    "numbers": curves.figures_more,
    "deviations": lambda f: _deviations(f),
    "effort": overview.effort,
}
SECTIONS = PAGE | BEHIND


def render(findings: Findings, drawn: Collection[str]) -> str:
    """The page; `drawn` are the figures that exist."""
    return _rendered(INTRODUCTION, PAGE, [AGAIN], findings, drawn)


def render_appendix(findings: Findings, drawn: Collection[str]) -> str:
    return _rendered(APPENDIX, BEHIND, [], findings, drawn)


def _rendered(
    head: str,
    sections: Mapping[str, Section],
    more: Sequence[str],
    findings: Findings,
    drawn: Collection[str],
) -> str:
    parts = [section(findings).rstrip("\n") + "\n" for section in sections.values()]
    text = head + "\n".join(_pictured(part, drawn) for part in [*parts, *more])
    return markdown.wrap(text)


def section(findings: Findings, name: str) -> str:
    """One part of the page, without its pictures."""
    if name not in SECTIONS:
        raise ConfigError(f"docs/paper.md has no part {name!r}; {nearest(name, SECTIONS)}")
    text = SECTIONS[name](findings)
    return re.sub(r"\n*\{[a-z0-9-]+\}\n*", "\n\n", text).rstrip() + "\n"


def readme_part(findings: Findings, drawn: Collection[str]) -> str:
    """The README's part: Table 2, FAFED's place in it, and its figure."""
    seeds = ", ".join(str(seed) for seed in findings.protocol.seeds)
    rounds = [findings.rounds(name) for name in findings.levels]
    budgets = " / ".join("?" if r is None else str(r.count) for r in rounds)
    picture = "![Test accuracy against rounds](docs/paper/table-2.svg)\n\n"
    return f"""\
Test accuracy on Fashion-MNIST after {budgets} rounds (low / moderate / high heterogeneity), seeds
{seeds}; settings chosen on held-out data with the same number of trials at most for each method:

{tables.table_2(findings)}
FAFED's place among the six methods. A cell has its rank, its margin to the best other method, and
in brackets the spread over seeds (the larger standard deviation of the two):

{claims.places(findings)}
The last two rows are other readings of the paper's setting. They were added afterwards, because
FAFED had gained in them. [The whole comparison](docs/paper.md) has longer runs, other data and
deviations.

{picture if "table-2" in drawn else ""}"""


def write(findings: Findings, docs: Path, readme: Path) -> list[Path]:
    """Write the page, its figures and the README's part; return the paths."""
    drawn = figures.write(findings, docs / "paper")
    page, appendix = docs / "paper.md", docs / "paper-appendix.md"
    page.write_text(render(findings, drawn), "utf-8")
    appendix.write_text(render_appendix(findings, drawn), "utf-8")
    text, part = readme.read_text("utf-8"), readme_part(findings, drawn)
    readme.write_text(markdown.replace_part(text, README_PART, part), "utf-8")
    return [*(docs / "paper" / f"{name}.svg" for name in drawn), page, appendix, readme]


def _deviations(f: Findings) -> str:
    return DEVIATIONS.format(seed=f.protocol.seeds[0], table=tables.deviations_table(f))


def _pictured(text: str, drawn: Collection[str]) -> str:
    """Replace {name} by the picture of that name, or by "not run yet"."""

    def picture(match: re.Match[str]) -> str:
        name = match[1]
        return f"![{name}](paper/{name}.svg)" if name in drawn else f"({verdicts.NOT_YET})"

    return re.sub(r"^\{([a-z0-9-]+)\}$", picture, text, flags=re.MULTILINE)
