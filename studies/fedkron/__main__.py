"""Compare FedKron with other methods, and write docs/fedkron.md from it.

    python -m studies.fedkron                       # measures what studies.which_algorithm has not
    python -m studies.fedkron choices               # its default and its parts, on held-out data
    python -m studies.fedkron networks --minutes 60 # convolutional networks: hours, in slices
    python -m studies.fedkron speed                 # seconds of a round; on a quiet machine
    python -m studies.fedkron counterexample        # seconds
    python -m studies.fedkron render                # renders the results again

The jobs and most numbers are those of studies.which_algorithm: measure them first. Runs live below
--runs; what is finished is not run again. Choices and networks keep every run in a file beside this
one, so another machine can go on.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from pathlib import Path

from studies.fedkron import choices, counterexample, networks, speed
from studies.fedkron.ledger import Ledger
from studies.fedkron.measurement import measure
from studies.fedkron.page import PAGE, RESULTS, read, render
from studies.which_algorithm.jobs import ROOT
from studies.which_algorithm.measurement import Runs

logging.getLogger("fafed").setLevel(logging.ERROR)
PARTS = ("jobs", "choices", "networks", "speed", "counterexample", "render")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", default="jobs", choices=PARTS)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "which-algorithm")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at the same time (jobs)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no run begins")
    parser.add_argument(
        "--tasks", nargs="+", default=networks.TASKS, choices=networks.TASKS, help="of networks"
    )
    options = parser.parse_args()
    if options.part == "jobs":
        found = measure(Runs(options.runs, options.jobs))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    elif options.part == "choices":
        choices.measure(Ledger(choices.RESULTS, options.runs, options.minutes))
    elif options.part == "networks":
        networks.measure(Ledger(networks.RESULTS, options.runs, options.minutes), options.tasks)
    elif options.part == "speed":
        speed.main()
    elif options.part == "counterexample":
        counterexample.main()
    PAGE.write_text(render(*read()), "utf-8")


if __name__ == "__main__":
    main()
