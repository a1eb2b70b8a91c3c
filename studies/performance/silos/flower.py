"""A Flower federation on loopback, as docs/silos.md sets it up: what is too slow for the tests.

    python studies/performance/silos/flower.py [law] [faults] [overhead] [large]

law: six algorithms over three silos, each ends with the very numbers of our simulation; and the
seconds of a message and its answer. faults: FAFED over two silos; one of them is killed in round 2
and started again, then the ServerApp is killed, then the SuperLink, and `flwr run` makes it go on.
The run ends where a simulation ends that lost the same client in the same rounds.

overhead and large: seconds of a round, ours and those of Flower's own FedAvg (FLOWERS_OWN below,
its PyTorch quickstart without the pictures), over the same SuperNodes: a linear model, one step on
one example. A round lasts from one global model's arrival in the first silo's ClientApp to the
next's; the median is printed, with the memory of all processes together at its peak. overhead:
26,620 parameters, three silos; large: 50 million, two silos. Needs fafed[flower].
"""

# ruff: noqa: E402  (the tests have the tools for a federation; they are found by path)
from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "tests"), str(Path(__file__).parent)]

import psutil
import torch
from flower_tools import Flower, answered, lines, wait
from overhead import linear
from silo_tools import final
from small import write_data, write_experiment

from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.training.cohort import Cohort

SIX = ("fedavg", "scaffold", "fedadam", "stem", "fafed", "mime")
NAMES = ("north", "south", "west")
PROJECT = """
[project]
name = "own"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fafed"
[tool.flwr.app.components]
serverapp = "own.apps:server"
clientapp = "own.apps:client"
[tool.flwr.app.config]
silos = 3
inputs = 1
rounds = 1
"""
FLOWERS_OWN = """
import os, time
import torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from overhead import examples

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    config = context.run_config
    silos, arrays = config["silos"], torch.nn.Linear(config["inputs"], 10).state_dict()
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=silos, min_available_nodes=silos)
    strategy.start(grid, ArrayRecord(arrays), num_rounds=config["rounds"])

@client.train()
def train(message, context):
    with open(f"{os.environ['FLOWER_TIMES']}-{os.environ['FLOWER_SILO']}", "a") as file:
        print(time.time(), file=file)
    inputs = context.run_config["inputs"]
    model = torch.nn.Linear(inputs, 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    (pair, *_), _ = examples(1, inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.nn.functional.cross_entropy(model(pair[0][:1]), pair[1][:1]).backward()
    optimizer.step()
    metrics = MetricRecord({"num-examples": 2})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
"""


def federation(folder: Path, silos: int, rounds: int) -> tuple[Flower, Experiment]:
    """A SuperLink and SuperNodes that share the experiment's data."""
    data, file = folder / "data", folder / "hospitals.toml"
    write_data(data, silos)
    write_experiment(file, data, name="hospitals", rounds=rounds, engine="loop")
    return begun(folder, silos, str(data)), Experiment.read(file)


def begun(folder: Path, silos: int, data: str) -> Flower:
    flower = Flower(folder)
    allow = f'allow = ["softmax", "{data}"]\n[data]\nshare = true\n'
    flower.link()
    flower.nodes(**{name: f'folder = "kept-{name}"\n{allow}' for name in NAMES[:silos]})
    return flower


def exported(flower: Flower, silos: int, more: str) -> str:
    """Write the app; the command that runs it."""
    line = flower.typed("fafed export flower").replace(",".join(NAMES), ",".join(NAMES[:silos]))
    flower.do(f"{line} {more}")
    return flower.typed("flwr run")


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
        place = RunDir.for_experiment(one, folder / "runs")
        execute(one, RunDir(folder / "simulated" / name))
        here, there = final(RunDir(folder / "simulated" / name)), final(place)
        torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-7)
        exchanges += sum(x["direction"] == "sent" for x in lines(place.path)) // 3
        print(f"{name}: the same numbers ({float((here - there).abs().max()):.1e} apart)")
    print(f"{exchanges} exchanges in {took:.0f} s: {took / exchanges:.1f} s each, 3 silos")


class Scripted(Cohort):
    """A cohort with the clients that really answered in each round."""

    def __init__(self, population: int, answered: dict[int, tuple[int, ...]]) -> None:
        super().__init__(population)
        self.answered = answered

    def answering(self, round: int, invited: Any) -> tuple[int, ...]:
        return self.answered[round]


def faults(folder: Path) -> None:
    flower = None
    try:
        flower, found = federation(folder, 2, 7)
        line = exported(flower, 2, "--min-silos 1 --deadline 120")
        place = RunDir.for_experiment(found, folder / "runs")

        def begin() -> None:
            threading.Thread(target=flower.do, args=(line, 900, None), daemon=True).start()

        begin()
        wait(place.path, round=2, direction="sent")
        flower.kill("south")
        print("round 2: a silo was killed")
        killed = time.monotonic()
        flower.again("south")
        print(f"  back after {time.monotonic() - killed:.0f} s")
        at = max(x["round"] for x in lines(place.path))
        wait(place.path, round=at + 1, direction="sent")
        (server,) = [p for p in flower.family("superlink") if "flwr-serverapp" in str(p.cmdline())]
        server.kill()
        print(f"round {at + 1}: the ServerApp was killed")
        begin()
        wait(place.path, round=at + 2, direction="sent")
        flower.kill("superlink")
        print(f"round {at + 2}: the SuperLink was killed")
        flower.up()
        flower.online(2, 120)
        flower.do(line, seconds=900)
    finally:
        if flower:
            flower.stop()
    who = answered(place, NAMES)
    run = prepare(found).run
    run.cohort = Scripted(2, who)
    for _ in run:
        pass
    assert [x.round for x in place.records()] == list(range(1, 8))
    torch.testing.assert_close(final(place), run.state.shared.x, rtol=1e-6, atol=1e-7)
    print(f"the same numbers; who counted: {who}")


@contextlib.contextmanager
def watched(flower: Flower) -> Iterator[list[float]]:
    """The peak of the memory of all processes together, shared pages counted once."""
    peak, done = [0.0], threading.Event()

    def look() -> None:
        while not done.wait(1):
            now = 0
            for process in [p for name in list(flower.processes) for p in flower.family(name)]:
                with contextlib.suppress(psutil.Error):
                    now += process.memory_full_info().pss
            peak[0] = max(peak[0], now / 1e9)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def own_app(folder: Path, config: str) -> str:
    """Write Flower's own app; the command that runs it."""
    (folder / "own").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "own" / "__init__.py").touch()
    (folder / "own" / "apps.py").write_text(FLOWERS_OWN)
    return f"flwr run {folder.name} prod --stream --run-config '{config}'"


def ours_at(folder: Path) -> list[float]:
    """When the visits came to the first silo."""
    visits = [x for x in lines(folder / "kept-north") if x["kind"] == "visit"]
    return [datetime.fromisoformat(x["time"]).timestamp() for x in visits]


def theirs_at(folder: Path) -> list[float]:
    return [float(x) for x in (folder / "times-north").read_text().splitlines()]


def compared(folder: Path, silos: int, parameters: int, rounds: int, passes: int = 2) -> None:
    """Both take turns, because the machine may be busy for a while."""
    os.environ |= {"FLOWER_TIMES": str(folder / "times"), "PYTHONPATH": str(Path(__file__).parent)}
    inputs, flower = parameters // 10 - 1, None
    found = linear(inputs, rounds, silos).changed(name="hospitals")
    own = own_app(folder / "theirs", f"silos={silos} inputs={inputs} rounds={rounds}")
    try:
        flower = begun(folder, silos, "overhead:examples")
        for turn in range(passes):
            (folder / "hospitals.toml").write_text(found.changed(seed=turn).to_toml())
            with watched(flower) as ours_peak:
                flower.do(exported(flower, silos, ""), seconds=1800)
            with watched(flower) as their_peak:
                flower.do(own, seconds=1800)
    finally:
        if flower:
            flower.stop()
    print(
        f"{10 * (inputs + 1):,} parameters, {silos} silos, median of {passes * (rounds - 1)} rounds"
    )
    ours, theirs = (gaps(at(folder), rounds) for at in (ours_at, theirs_at))
    print(f"  fafed    {ours:7.2f} s, {ours_peak[0]:.1f} GB at the peak")
    print(
        f"  Flower's {theirs:7.2f} s, {their_peak[0]:.1f} GB; fafed takes {ours / theirs:.2f} of it"
    )


def gaps(times: list[float], rounds: int) -> float:
    """The median of the time between two rounds of the same run."""
    pairs = list(enumerate(itertools.pairwise(times), start=1))
    return statistics.median(b - a for i, (a, b) in pairs if i % rounds)


def overhead(folder: Path) -> None:
    compared(folder, 3, 26_620, 6)


def large(folder: Path) -> None:
    compared(folder, 2, 50_000_000, 4, passes=1)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = {"law": law, "faults": faults, "overhead": overhead, "large": large}
    for chosen in sys.argv[1:] or jobs:
        with tempfile.TemporaryDirectory() as folder:
            jobs[chosen](Path(folder) / "flower")


if __name__ == "__main__":
    main()
