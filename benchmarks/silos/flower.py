"""A Flower federation on loopback, as docs/silos.md sets it up: what is too slow for the tests.

    python benchmarks/silos/flower.py [law] [faults]

law: six algorithms over three silos, each ends with the very numbers of our simulation; and the
seconds of a message and its answer. faults: FAFED over two silos; one of them is killed in round 2
and started again, then the ServerApp is killed, then the SuperLink, and `flwr run` makes it go on.
The run ends where a simulation ends that lost the same client in the same rounds. Needs
fafed[flower].
"""

# ruff: noqa: E402  (the federation's helper is the tests', found by its path)
from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "silos"), str(ROOT / "tests")]

import torch
from flower_tools import Flower
from silo_tools import final
from small import write_data, write_experiment

from fafed.cohort import Cohort
from fafed.experiment import Experiment
from fafed.preparation import prepare
from fafed.rundir import RunDir, execute

SIX = ("fedavg", "scaffold", "fedadam", "stem", "fafed", "mime")
NAMES = ("north", "south", "west")


def federation(folder: Path, silos: int, rounds: int) -> tuple[Flower, Experiment]:
    """A SuperLink and SuperNodes that share the experiment's data."""
    flower = Flower(folder)
    data = folder / "data"
    write_data(data, silos)
    file = folder / "hospitals.toml"
    write_experiment(file, data, name="hospitals", rounds=rounds, engine="loop")
    flower.link()
    for name in NAMES[:silos]:
        allow = f'allow = ["softmax", "{data}"]'
        flower.node(name, f'folder = "kept-{name}"\n{allow}\n[data]\nshare = true\n')
    flower.online(silos)
    return flower, Experiment.read(file)


def exported(flower: Flower, silos: int, more: str) -> str:
    """Write the app; the command that runs it."""
    line = flower.typed("fafed export flower").replace(",".join(NAMES), ",".join(NAMES[:silos]))
    flower.do(f"{line} {more}")
    return flower.typed("flwr run")


def lines(place: RunDir) -> list[dict[str, Any]]:
    file = place.path / "audit.jsonl"
    return [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []


def law(folder: Path) -> None:
    flower, found = None, None
    try:
        flower, found = federation(folder, 3, 1)
        began = time.monotonic()
        flower.do(exported(flower, 3, f"--algorithms {','.join(SIX)}"), seconds=900)
        took = time.monotonic() - began
    finally:
        if flower:
            flower.stop()
    exchanges = 0
    for name in SIX:
        one = found.with_algorithm(name)
        place = RunDir.of(one, folder / "runs")
        execute(one, RunDir(folder / "simulated" / name))
        here, there = final(RunDir(folder / "simulated" / name)), final(place)
        torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-7)
        exchanges += sum(x["direction"] == "sent" for x in lines(place)) // 3
        print(f"{name}: the same numbers ({float((here - there).abs().max()):.1e} apart)")
    print(f"{exchanges} exchanges in {took:.0f} s: {took / exchanges:.1f} s each, 3 silos")


class Scripted(Cohort):
    """Who answered in each round, as it really went."""

    def __init__(self, population: int, answered: dict[int, tuple[int, ...]]) -> None:
        super().__init__(population)
        self.answered = answered

    def answering(self, round: int, invited: Any) -> tuple[int, ...]:
        return self.answered[round]


def sent(place: RunDir, round: int, seconds: float = 300) -> None:
    """Wait until a round's messages are on their way."""
    end = time.monotonic() + seconds
    while not any(x["round"] >= round and x["direction"] == "sent" for x in lines(place)):
        assert time.monotonic() < end, f"round {round} has not begun"
        time.sleep(0.2)


def faults(folder: Path) -> None:
    flower = None
    try:
        flower, found = federation(folder, 2, 7)
        line = exported(flower, 2, "--min-silos 1 --deadline 120")
        place = RunDir.of(found, folder / "runs")

        def begin() -> None:
            threading.Thread(target=flower.do, args=(line, 900, None), daemon=True).start()

        begin()
        sent(place, 2)
        for process in flower.family("south"):
            process.kill()
        flower.processes["south"].wait()
        print("round 2: a silo was killed")
        killed = time.monotonic()
        back = ""
        while "SuperNode ID" not in back:  # refused until Flower knows that the old one is gone
            log = flower.start("south", flower.typed("flower-supernode", "south"))
            size = log.stat().st_size
            while flower.processes["south"].poll() is None and "SuperNode ID" not in back:
                time.sleep(0.5)
                back = log.read_text()[size:]
        print(f"  back after {time.monotonic() - killed:.0f} s")
        at = max(x["round"] for x in lines(place))
        sent(place, at + 1)
        (server,) = [p for p in flower.family("superlink") if "flwr-serverapp" in str(p.cmdline())]
        server.kill()
        print(f"round {at + 1}: the ServerApp was killed")
        begin()
        sent(place, at + 2)
        for process in flower.family("superlink"):
            process.kill()
        flower.processes["superlink"].wait()
        print(f"round {at + 2}: the SuperLink was killed")
        flower.up()
        flower.online(2, 120)
        flower.do(line, seconds=900)
    finally:
        if flower:
            flower.stop()
    rounds: dict[tuple[int, str], set[int]] = {}
    for x in lines(place):
        if x["round"]:
            who = rounds.setdefault((x["round"], x["attempt"]), set())
            if x["kind"] == "answer" and x["direction"] == "received":
                who.add(NAMES.index(x["peer"]))
    answered = {round: tuple(sorted(who)) for (round, _), who in rounds.items()}
    run = prepare(found).run
    run.cohort = Scripted(2, answered)
    for _ in run:
        pass
    assert [x.round for x in place.records()] == list(range(1, 8))
    torch.testing.assert_close(final(place), run.state.shared.x, rtol=1e-6, atol=1e-7)
    print(f"the same numbers; who counted: {answered}")


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    for chosen in sys.argv[1:] or ("law", "faults"):
        with tempfile.TemporaryDirectory() as folder:
            {"law": law, "faults": faults}[chosen](Path(folder) / "flower")


if __name__ == "__main__":
    main()
