"""Write findings to disk: figures, JSON files, and one page for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from fafed.core.schedules import TheoryMomentum
from studies import markdown
from studies.theory import figures
from studies.theory.findings import Finding, Table, short

INTRODUCTION = """\
# Theory, measured

What is claimed about FAFED and the methods it is compared with, checked on problems small enough
that the right answer is known. Everything on this page is written by one command,

    python -m studies.theory all -o {folder}{results}

from runs of the library's own code: figures, tables, numbers and verdicts. Draws are functions of
the seed, so the command gives the same numbers again. Single experiments are
`python -m studies.theory counterexample`, `drift`, `rates` and `metric`; each takes less than two
minutes on two cores.

"""


def write(module: ModuleType, finding: Finding, folder: Path) -> list[Path]:
    """One experiment's files: NAME.json, NAME.md and its figures; returns the paths."""
    paths = _write_parts(module, finding, folder, folder)
    names = [path.name for path in paths if path.suffix == ".svg"]
    page = folder / f"{finding.name}.md"
    page.write_text(markdown.wrap(finding.markdown(names).removeprefix("#")), "utf-8")
    return [*paths, page]


def _write_parts(module: ModuleType, finding: Finding, folder: Path, results: Path) -> list[Path]:
    drawn = figures.write_figures(module.draw, finding, folder)
    results.mkdir(parents=True, exist_ok=True)
    table = results / f"{finding.name}.json"
    table.write_text(finding.json(), "utf-8")
    return [table, *drawn]


def write_page(
    findings: Sequence[tuple[ModuleType, Finding]], folder: Path, results: Path | None = None
) -> list[Path]:
    """Write all experiments' figures, their JSON files and the page FOLDER.md beside the folder.

    The JSON files go to `results`, or to the folder of the figures.
    """
    written, sections = [], []
    for module, finding in findings:
        paths = _write_parts(module, finding, folder, results or folder)
        written += paths
        names = [f"{folder.name}/{path.name}" for path in paths if path.suffix == ".svg"]
        sections.append(finding.markdown(names))
    text = INTRODUCTION.format(
        folder=folder.as_posix(), results=f" --results {results.as_posix()}" if results else ""
    )
    text += summary([finding for _, finding in findings]).markdown() + "\n"
    text += "\n".join(sections) + "\n" + by_arithmetic()
    page = folder.with_name(f"{folder.name}.md")
    page.write_text(markdown.wrap(text), "utf-8")
    return [*written, page]


def summary(findings: Sequence[Finding]) -> Table:
    rows = [
        (f"[{finding.title}](#{_anchor(finding.title)})", claim.says, claim.verdict)
        for finding in findings
        for claim in finding.claims
    ]
    return Table("At a glance", ("experiment", "claim", "verdict"), rows)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def by_arithmetic() -> str:
    """Points where the paper's text differs from its own formulas. They need no run."""
    N, q, b, rho = 16, 10, 20, 0.01  # the paper's language model
    constant = 1728 * q**3 * N**2
    alpha = float(TheoryMomentum(1.0, N, q, b, rho)(torch.tensor(1)))
    clip, d = 0.25, 5.0e7
    reach, near = (clip / rho) ** 2, (clip / (rho / 10)) ** 2
    points = {
        "The step size of the theorem diminishes.": (
            f"It is constant until t reaches 1728 q^3 N^2, which is {constant:,} for N = {N}, "
            f"q = {q}. With q = (T/N^2)^(1/3), as the corollary chooses it, that is 1728 T: the "
            "step never moves."
        ),
        "The experiments use an alpha that the theorem covers.": (
            f"For N = {N}, q = {q}, b = {b} and L = 1 the theorem's alpha is {short(alpha, 2)}; "
            f"the experiments use 0.1 and 0.9, {0.1 / alpha:,.0f} times that and more."
        ),
        "The first term of the bound grows like 1/rho as rho shrinks.": (
            f"Dividing the sum by rho eta_T T leaves 1/rho^2. At rho = {rho} the printed term is "
            f"{1 / rho:.0f} times too small."
        ),
        "The last bracket of the bound holds the squared heterogeneity 3/2 times.": (
            f"It is 8 times a sum in which it has the factor 3/8, that is {8 * 3 / 8:g} times."
        ),
        "All clients together need eps^(-3)/N samples.": (
            "That is the number for one client. Together they draw about eps^(-3), whatever N is, "
            "and evaluate two gradients on each."
        ),
        "The language model shows what adaptivity does.": (
            f"With gradients cut to norm {clip} the entries of v sum to at most {clip**2:g}, so at "
            f"most {reach:,.0f} of {d / 1e6:.0f} million coordinates can have "
            f"sqrt(v) >= rho = {rho}, and at most {near:,.0f} ({100 * near / d:.3g} per cent) can "
            f"have a tenth of it. Nearly everywhere A is rho, and the method is STEM with "
            f"{1 / rho:.0f} times the step: so says the count. [Runs of that "
            "STEM](paper.md#figure-1-language-model-on-wikitext-2) stand beside FAFED's."
        ),
        "The losses of the counterexample are continuous.": (
            f"As printed the steep one jumps at 1 from {3 * 1**2} to {6 * 1 - 2}; with 6|x| - 3 "
            "outside it does not. Gradients, and with them the example, stay the same."
        ),
        "Gradients of finite sums are bounded.": (
            "Those of a sum of quadratics are not. It is an assumption like the others."
        ),
    }
    head = (
        "## By arithmetic alone\n\nStatements of the paper that do not follow from its own "
        "formulas. None of this changes the algorithm.\n\n"
    )
    return head + "\n".join(f"- *{says}* {why}" for says, why in points.items()) + "\n"
