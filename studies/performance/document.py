"""The tables and the figure of docs/performance.md, from the results alone.

Pages mark their generated parts by `<!-- bench:NAME -->` ... `<!-- /bench:NAME -->`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from studies import markdown
from studies.performance import results
from studies.performance.contenders import CONTENDERS, OURS
from studies.performance.contest import ROUNDING, TOLERANCE
from studies.performance.environments import ROOT
from studies.performance.growth import FIXED

PAGES = (ROOT / "docs" / "performance.md", ROOT / "README.md")
FIGURE = ROOT / "docs" / "images" / "performance.svg"
SECURE = Path(__file__).parent / "silos" / "secure.json"  # of silos/secure.py
DOWN, UP = 4, 8  # bytes of a number: float32 to the silos, an integer under masks from them
NOTHING, ABSENT = "·", "left out"
NAMES = {"ours": "FedAvg", "ours-fafed": "FAFED", "plain-1": "plain loop"}

Results = dict[str, Any]


def write(path: Path) -> None:
    found = results.read(path)
    if not found:
        raise SystemExit(f"no results in {path}: run `python -m studies.performance` first")
    if found.get("growth"):
        from studies.performance import figure

        figure.draw(found["growth"], FIGURE)
    for page in PAGES:
        text = page.read_text()
        page.write_text(fill_in(text, found))


def fill_in(text: str, found: Results) -> str:
    """The page with every marked part written anew."""
    for name in markdown.part_names(text):
        study, _, part = name.partition(":")
        if study != "bench":
            continue
        if part not in PARTS:
            raise SystemExit(f"{name} is no part of the document; there are {', '.join(PARTS)}")
        text = markdown.replace_part(text, name, PARTS[part](found))
    return text


def ratios(found: Results) -> str:
    """Seconds per round, and the slowdown relative to fafed."""

    def entry(cell: Any) -> str:
        if cell is None or "seconds" not in cell:
            return NOTHING if cell is None else ABSENT
        if cell.get("equal") is False:
            return "wrong"
        times = f"**{cell['seconds'] / cell['ours']:.2g}**" if cell.get("ours") else NOTHING
        return f"{times} ({duration(cell['seconds'])})"

    return _by_job(found, entry, lambda name: CONTENDERS[name].comparable)


def memory(found: Results) -> str:
    """Peak memory in MiB."""

    def entry(cell: Any) -> str:
        return f"{cell['memory']:,.0f}" if cell and cell.get("memory") else NOTHING

    return _by_job(found, entry, lambda name: True)


def start(found: Results) -> str:
    """From the start of the process to the end of the warm-up."""

    def entry(cell: Any) -> str:
        return duration(cell["startup"]) if cell and "startup" in cell else NOTHING

    return _by_job(found, entry, lambda name: CONTENDERS[name].comparable)


def jobs(found: Results) -> str:
    rows = [
        (name, job["title"], f"{job['clients']:,}", job["b"], job["q"], _data(job))
        for name, job in _jobs(found).items()
    ]
    return table(["", "job", "clients", "b", "q", "data"], rows)


def notes(found: Results) -> str:
    """What is missing or wrong, and how much the final vectors differ."""
    lines: list[str] = []
    worst: dict[str, float] = {}
    for name, _, cell in _cells(found):
        if "left_out" in cell:
            lines.append(f"- {name}, {cell['label']}: left out ({cell['left_out']}).")
        if cell.get("equal") is False:
            lines.append(
                f"- {name}, {cell['label']}: its final vector is off by {cell['deviation']:.1g} "
                "of the way: its time means nothing."
            )
        elif "deviation" in cell:
            worst[name] = max(worst.get(name, 0.0), cell["deviation"])
    if worst:
        each = ", ".join(f"{name} {value:.0e}" for name, value in worst.items())
        lines.append(
            "- All other final vectors agree with the plain loop's; the largest difference, as a "
            f"share of the way from the first vector to the last: {each}. Refused is more than "
            f"{TOLERANCE:.0e}, or {ROUNDING:.0e} of the vector if that is more."
        )
    return "\n".join(lines) or NOTHING


def losses(found: Results) -> str:
    """The jobs in which another contender is faster than fafed or nearly as fast."""
    lines, compared = [], 0
    for name, who, cell in _cells(found):
        if who == OURS or not cell.get("ours") or not cell.get("equal"):
            continue
        compared += 1
        ratio = cell["seconds"] / cell["ours"]
        if ratio < 1.1 and who == "ours-1":
            lines.append(f"- {name}: the second worker does not pay (ratio {ratio:.2g}).")
        elif ratio < 1.1:
            word = "faster than" if ratio < 1 else "as fast as"
            lines.append(f"- {name}: {cell['label']} is {word} fafed (ratio {ratio:.2g}).")
    for name, job in _jobs(found).items():
        lines += _losses_on_one_core(name, job["cells"])
    if not lines and compared:
        lines.append("- On these jobs, nobody measured here is as fast as fafed.")
    return "\n".join(lines) or NOTHING


def _losses_on_one_core(name: str, cells: dict[str, Any]) -> Iterator[str]:
    """The same for fafed with one worker against contenders that use one core."""
    one = cells.get("ours-1", {})
    if not one.get("ours"):
        return
    for who in ("plain-1", "pfl-1", "fedlab"):
        cell = cells.get(who, {})
        if not cell.get("ours") or not cell.get("equal"):
            continue
        ratio = cell["seconds"] / cell["ours"] / (one["seconds"] / one["ours"])
        if ratio < 1.1:
            word = "faster than" if ratio < 1 else "as fast as"
            yield f"- {name}: {cell['label']} is {word} fafed with one worker (ratio {ratio:.2g})."
        more = one["memory"] / cell["memory"]
        if who == "plain-1" and more > 1.2:
            yield f"- {name}: fafed with one worker takes {more:.1f} times the plain loop's memory."


def algorithms(found: Results) -> str:
    """FAFED and SCAFFOLD relative to FedAvg, all in fafed with two workers."""
    rows = []
    for name, job in _jobs(found).items():
        cells = job["cells"]
        row = [name]
        for who in ("ours", "ours-fafed", "ours-scaffold"):
            cell = cells.get(who, {})
            known = "seconds" in cell and cell.get("ours")
            ratio = f"{cell['seconds'] / cell['ours']:.2f} " if known and who != OURS else ""
            row.append(f"{ratio}({duration(cell['seconds'])})" if known else NOTHING)
        rows.append(row)
    return table(["", "FedAvg", "FAFED", "SCAFFOLD"], rows)


def limit(found: Results) -> str:
    """The time of a round beside that of its gradients, and its share of the machine's peak."""
    rows = []
    limits = found.get("limits", {})
    for name, row in limits.get("gradients", {}).items():
        job = _jobs(found).get(name, {})
        seconds = job.get("cells", {}).get(OURS, {}).get("seconds")
        line = [name, duration(row["plain-1"]), duration(row["plain-2"])]
        line += [duration(row["ours-1"]), duration(row["ours"])]
        if seconds:
            count = job["clients"] * job["q"]
            alone = count * row["ours"]
            work = count * row["operations"]
            line += [f"{count:,}", duration(alone), duration(seconds)]
            line += [f"{1 - alone / seconds:.0%}", f"{work / seconds / limits['peak']['2']:.0%}"]
        rows.append(line + [NOTHING] * (10 - len(line)))
    heads = ["", "plain, 1 thread", "plain, 2 threads", "fafed, 1 worker", "fafed, 2 workers"]
    heads += ["gradients a round", "these alone", "our round", "outside gradients", "of the peak"]
    return table(heads, rows)


def secure(found: Results) -> str:
    """The time and bytes of a secure round beside what it cannot be below."""
    rows = []
    for case in (found.get("secure") or results.read(SECURE)).get("cases", {}).values():
        plain, hidden, alone = case["open"], case["secure"], case.get("masks")
        shared = case["where"] != "in process"  # silos work at the same time: seconds do not add up
        outside = NOTHING
        if alone is not None and not shared:
            outside = f"{1 - (plain['seconds'] + alone) / hidden['seconds']:.0%}"
        sizes = (DOWN + UP) * case["parameters"] / 1000, hidden["kilobytes"]
        rows.append(
            [
                f"{case['silos']}, {case['where']}",
                f"{case['parameters']:,}",
                NOTHING if alone is None else duration(alone),
                *(duration(one["seconds"]) for one in (plain, hidden)),
                outside,
                *(f"{size:,.0f}" for size in sizes),
            ]
        )
    heads = ["silos", "parameters", "masks alone", "open round", "secure round", "outside both"]
    return table([*heads, "kB at least", "kB"], rows) if rows else NOTHING


def growing(found: Results) -> str:
    blocks = []
    for series, points in found.get("growth", {}).items():
        who = list(next(iter(points.values())))
        rows = [
            (f"{int(n):,}", *(_time_and_memory(cells[w]) for w in who))
            for n, cells in points.items()
        ]
        blocks.append(f"Against {series} ({FIXED[series]}):\n")
        blocks.append(table([series, *(NAMES[w] for w in who)], rows))
    return "\n".join(blocks).strip() or NOTHING


def first(found: Results) -> str:
    rows = [
        (f"`{k}`" if " " in k and k != "first round" else k, duration(v))
        for k, v in found.get("startup", {}).items()
        if k != "date"
    ]
    return table(["a fresh interpreter", "wall time"], rows)


def machine(found: Results) -> str:
    lines = [f"- {key}: {value}" for key, value in found.get("machine", {}).items()]
    peak = found.get("limits", {}).get("peak")
    if peak:
        rates = ", ".join(f"{peak[n] / 1e9:.0f} ({n})" for n in ("1", "2"))
        lines.append(f"- float32 matrix multiplication, GFLOP/s (threads): {rates}")
    for versions in found.get("versions", {}).values():
        lines.append("- " + ", ".join(f"{package} {v}" for package, v in versions.items()))
    dates = sorted({cell["date"] for _, _, cell in _cells(found)})
    if dates:
        lines.append(f"- measured {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else ""))
    return "\n".join(lines)


PARTS: dict[str, Callable[[Results], str]] = {
    "ratios": ratios,
    "jobs": jobs,
    "notes": notes,
    "losses": losses,
    "memory": memory,
    "start": start,
    "algorithms": algorithms,
    "limit": limit,
    "secure": secure,
    "growth": growing,
    "first": first,
    "machine": machine,
}


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""
    return markdown.table(heads, rows, right=True)


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds:.3g} s"


def _jobs(found: Results) -> dict[str, Any]:
    return dict(sorted(found.get("jobs", {}).items()))


def _cells(found: Results) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, job in _jobs(found).items():
        for who, cell in job["cells"].items():
            yield name, who, cell


def _by_job(found: Results, entry: Callable[[Any], str], wanted: Callable[[str], bool]) -> str:
    every = _jobs(found)
    present = {who for job in every.values() for who in job["cells"]}
    rows = [
        (CONTENDERS[who].label, *(entry(job["cells"].get(who)) for job in every.values()))
        for who in CONTENDERS
        if who in present and wanted(who)
    ]
    return table(["", *(_heading(name, job) for name, job in every.items())], rows)


def _heading(name: str, job: dict[str, Any]) -> str:
    """What the job is, so that nobody has to look it up."""
    return f"{name}: {job['title']}, {job['clients']:,} clients, b = {job['b']}"


def _data(job: dict[str, Any]) -> str:
    return ", ".join(sorted({c["data"] for c in job["cells"].values() if "data" in c})) or NOTHING


def _time_and_memory(cell: dict[str, Any]) -> str:
    if "seconds" not in cell:
        return ABSENT
    return duration(cell["seconds"]) + (f", {cell['memory']:,.0f} MiB" if cell["memory"] else "")
