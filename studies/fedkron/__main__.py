"""Compare FedKron with other methods, and write docs/fedkron.md from it.

    python -m studies.fedkron                 # measures what studies.which_algorithm has not
    python -m studies.fedkron --networks      # convolutional networks alone; hours
    python -m studies.fedkron --render-only   # renders results.json again

The jobs and most numbers are those of studies.which_algorithm: measure them first. Runs live below
--runs; what is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from studies.fedkron import networks
from studies.fedkron.measurement import measure
from studies.fedkron.page import PAGE, RESULTS, read, render
from studies.which_algorithm.jobs import ROOT
from studies.which_algorithm.measurement import Runs

logging.getLogger("fafed").setLevel(logging.ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "which-algorithm")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    parser.add_argument("--networks", action="store_true", help="measure convolutional networks")
    options = parser.parse_args()
    if options.networks:
        networks.measure_all(Runs(options.runs, options.jobs))
    elif not options.render_only:
        found = measure(Runs(options.runs, options.jobs))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    PAGE.write_text(render(*read()), "utf-8")


if __name__ == "__main__":
    main()
