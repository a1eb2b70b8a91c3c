"""Measure what compressed messages cost in accuracy, and write the table of docs/wire.md from it.

    python -m studies.wire                       # measures what is missing, then renders
    python -m studies.wire --only fedavg         # only rows of this algorithm
    python -m studies.wire --render-only         # renders results.json again

The job and the rows are in configs/. Runs live below --runs (runs/wire). Each run is written to
results.json as soon as it has ended, so the command can be stopped and started at will.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.wire.measurement import ROOT, measure, read_plan, read_results
from studies.wire.page import PAGE, render


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "wire")
    parser.add_argument("--only", action="append", default=[], help="an algorithm")
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.render_only:
        measure(options.runs, only=options.only)
    PAGE.write_text(render(read_plan(), read_results(), PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
