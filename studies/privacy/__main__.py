"""Measure what privacy costs in accuracy, and write the table of docs/privacy.md from it.

    python -m studies.privacy                 # measures, then renders
    python -m studies.privacy --render-only   # renders results.json again

The jobs are in configs/. Runs live below --runs (runs/privacy). What is finished is not run again,
so the command can be stopped and started at will.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from studies.privacy.measurement import RESULTS, ROOT, measure, read_results
from studies.privacy.page import PAGE, render

logging.getLogger("fafed").setLevel(logging.ERROR)  # each run would say that it protects nobody


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "privacy")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.render_only:
        results = measure(options.runs, options.jobs)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    results = read_results()
    PAGE.write_text(render(results, PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
