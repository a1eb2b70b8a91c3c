"""Measure every federated algorithm on small jobs, and write the pages from that:
docs/which-algorithm.md with the advice, docs/which-algorithm-numbers.md with every number.

    python -m studies.which_algorithm                 # measures, then renders: two hours
    python -m studies.which_algorithm --missing       # measures what results.json does not have
    python -m studies.which_algorithm --collect       # takes what --missing has made so far
    python -m studies.which_algorithm --render-only   # renders results.json again
    python -m studies.which_algorithm.cifar           # the runs on CIFAR-10, one after the other

The jobs are in configs/. Runs live below --runs (runs/which-algorithm); what is
finished is not run again, so the command can be stopped and started at will.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from studies.which_algorithm import fafed_default
from studies.which_algorithm.figure import draw
from studies.which_algorithm.jobs import ROOT
from studies.which_algorithm.measurement import Runs, measure
from studies.which_algorithm.numbers_page import render_numbers
from studies.which_algorithm.page import render
from studies.which_algorithm.results import NUMBERS, PAGE, PICTURE, RESULTS, Results

# No warning of clients that change or have few examples: the jobs are made so. This stands at the
# top of the file because worker processes import it.
logging.getLogger("fafed").setLevel(logging.ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "which-algorithm")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--missing", action="store_true", help="keep what is measured")
    parser.add_argument(
        "--collect", action="store_true", help="the same, with runs that have ended"
    )
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.render_only:
        keeps = options.missing or options.collect
        old = json.loads(RESULTS.read_text("utf-8")) if keeps else None
        make = Runs(options.runs, options.jobs, collect=options.collect)
        results = measure(make, old)
        if "fafed_options" not in results:
            results["fafed_options"] = fafed_default.measure(make)
        known = results.get("fafed_as_it_comes", {})
        results["fafed_as_it_comes"] = fafed_default.as_it_comes(make, known)
        known = results.get("fafed_as_called", {})
        results["fafed_as_called"] = fafed_default.as_called(make, known)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    found = Results(json.loads(RESULTS.read_text("utf-8")))
    PAGE.write_text(render(found), "utf-8")
    NUMBERS.write_text(render_numbers(found), "utf-8")
    draw(found, PICTURE)


if __name__ == "__main__":
    main()
