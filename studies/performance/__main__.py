"""`make bench`.

python -m studies.performance                                 everything, then docs/performance.md
python -m studies.performance --jobs J1,J2 --with ours,plain  some of it; other results stay
python -m studies.performance setup                           the competitors' environments alone
python -m studies.performance document                        docs/performance.md from the results
python -m studies.performance engine-choice                   where vmap stops paying
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from studies.performance import contenders, document, engine_choice, environments, machine, results
from studies.performance.contest import compete
from studies.performance.growth import growth
from studies.performance.jobs import HEAVY, JOBS
from studies.performance.limits import limits
from studies.performance.startup import startup

PARTS = ("jobs", "limits", "growth", "startup")


def main() -> None:
    asked = _arguments()
    if asked.command == "run":
        run(asked)
    elif asked.command == "setup":
        for name in environments.REQUIREMENTS:
            environments.python(name)
            print(name, environments.versions(name))
    elif asked.command == "document":
        document.write(asked.output)
    else:
        engine_choice.main()


def run(asked: argparse.Namespace) -> None:
    who = contenders.chosen(asked.chosen)
    cores = machine.pin(2)
    results.merge(asked.output, {"machine": machine.describe(cores), "versions": _versions(who)})
    wrong: list[str] = []
    chosen = [JOBS[name] for name in asked.jobs]
    if "jobs" in asked.parts:
        for job in chosen:
            cells = compete(
                job,
                who,
                rounds=asked.rounds or job.rounds,
                repeat=asked.repeat or job.repeat,
                budget=asked.budget,
            )
            about = {"title": job.title, "clients": job.clients, "b": job.batch, "q": job.steps}
            results.merge(asked.output, {"jobs": {job.name: about | {"cells": cells}}})
            wrong += [f"{job.name} {n}: {w}" for n, c in cells.items() if (w := _wrong(c))]
    if "limits" in asked.parts:
        results.merge(asked.output, {"limits": limits(chosen, asked.repeat or 3)})
    if "growth" in asked.parts:
        results.merge(asked.output, {"growth": growth(asked.budget)})
    if "startup" in asked.parts:
        results.merge(asked.output, {"startup": startup()})
    if asked.output == results.DEFAULT:
        document.write(asked.output)
    if wrong:
        raise SystemExit("\n".join(wrong))


def _wrong(cell: dict[str, Any]) -> str | None:
    if cell.get("equal") is False:
        return f"its vector is off by {cell['deviation']:.1g} of the way: its time means nothing"
    return cell.get("failed")


def _versions(who: list[contenders.Contender]) -> dict[str, Any]:
    found = {}
    for name in dict.fromkeys(c.environment for c in who):
        try:
            found[name] = environments.versions(name)
        except environments.NotInstalled as cause:
            print(cause)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m studies.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = ["run", "setup", "document", "engine-choice"]
    parser.add_argument("command", nargs="?", default="run", choices=commands)
    parser.add_argument("--jobs", help=f"of {', '.join(JOBS)}; all but {', '.join(HEAVY)}")
    parser.add_argument("--with", dest="chosen", help="contenders or groups of them; all")
    parser.add_argument(
        "--parts", help=f"of {', '.join(PARTS)}; all, or the jobs alone with --jobs or --with"
    )
    parser.add_argument("--repeat", type=int, help="starts of each contender; depends on the job")
    parser.add_argument("--rounds", type=int, help="timed rounds in a start; depends on the job")
    parser.add_argument(
        "--budget", type=float, default=25, help="seconds for a contender in a job, about (25)"
    )
    parser.add_argument("-o", "--output", type=Path, default=results.DEFAULT)
    asked = parser.parse_args()
    partial = asked.jobs or asked.chosen
    asked.parts = _among("--parts", asked.parts or ("jobs" if partial else ",".join(PARTS)), PARTS)
    asked.jobs = _among("--jobs", asked.jobs or ",".join(j for j in JOBS if j not in HEAVY), JOBS)
    asked.chosen = asked.chosen or "all"
    return asked


def _among(option: str, text: str, known: Any) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"{option}: nothing is called {name!r}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
