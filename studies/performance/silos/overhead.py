"""Seconds of a round over real silos on loopback beyond its computation: ours, and FLARE's own.

    python studies/performance/silos/overhead.py [--silos 3] [--parameters 26620,50000000]
                                                 [--passes 2] [--ours]

FedAvg on a linear model of about so many parameters, one step on one example, in the same kind of
federation: provisioned, mutual TLS, a process for each. FLARE's is its FedAvgRecipe with
fedavg_script.py; its sites ask for tasks every 2 s, which would be all there is to see, so they do
it every 0.1 s here. A round lasts from one global model's arrival at the first silo to the
next's, checkpoint and all. The two take turns, and the median of the passes is printed. The same
rounds in simulation are timed beside them, for the computation, and taken off. On a machine that
others use, too, seconds of the clock vary; those of the processor, over all processes of the
federation, are what the messages cost. What fafed does on purpose with a message is timed by
itself in the end. Needs fafed[nvflare].
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

HERE = Path(__file__).parent
POLL = 0.1


def examples(silos: int, inputs: int) -> Any:
    """Data for the experiment: two examples for each silo."""
    draw = torch.Generator().manual_seed(0)
    pair = (torch.randn(2, inputs, generator=draw), torch.tensor([0, 1]))
    return [pair] * silos, None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--parameters", default="26620,50000000")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--ours", action="store_true", help="leave FLARE's own out")
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sys.path.insert(0, str(HERE))
    for parameters in map(int, chosen.parameters.split(",")):
        inputs, rounds = parameters // 10 - 1, 30 if parameters < 1e6 else 6
        experiment = linear(inputs, rounds, chosen.silos)
        ours, own = list[Cost](), list[Cost]()
        for _ in range(chosen.passes):
            with tempfile.TemporaryDirectory() as folder:
                here = simulated(experiment, Path(folder))
                ours.append(over_silos(experiment, chosen.silos, Path(folder)).beyond(here))
                if not chosen.ours:
                    there = flares_own(inputs, rounds, chosen.silos, Path(folder))
                    own.append(there.beyond(here))
        print(f"{10 * (inputs + 1):,} parameters, {chosen.silos} silos, seconds of a round")
        print(f"  the computation           {here.clock:8.3f}, processor {here.processor:8.3f}")
        show("fafed, beyond it", ours)
        if own:
            show("FLARE's own, beyond it", own)
            clock, processor = (a / b for a, b in zip(median(ours), median(own), strict=True))
            print(f"  fafed / FLARE's own       {clock:8.2f}, processor {processor:8.2f}")
        on_purpose(10 * (inputs + 1), chosen.silos)
        sys.stdout.flush()


def on_purpose(parameters: int, silos: int) -> None:
    """What fafed does with messages besides sending them."""
    from fafed.core import tree
    from fafed.engines.client import ClientState
    from fafed.silos import memory, messages, payload
    from fafed.silos.state_store import Store

    torch.set_num_threads(1)
    x = torch.randn(parameters, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = [(payload.empty(folder, x).copy_(x),) for _ in range(silos)]
        jobs = {
            f"SHA-256, {1 + 3 * silos} a round": lambda: messages.pack((x,)),
            f"is it finite, {3 * silos} a round": lambda: tree.finite((x,)),
            f"the mean of {silos}, once": lambda: memory.mean(answers, [1.0] * silos, folder),
            "a vector kept on a silo's disk": lambda: Store(folder / "states").save(
                messages.ExchangeId("run", 1), ClientState((x,), ()), None
            ),
        }
        for what, job in jobs.items():
            times = [time.perf_counter()]
            for _ in range(5):
                job()
                times.append(time.perf_counter())
            print(f"  {what:30} {step(times):8.4f}")


class Cost(NamedTuple):
    """Seconds of a round."""

    clock: float
    processor: float

    def beyond(self, other: Cost) -> Cost:
        return Cost(self.clock - other.clock, self.processor - other.processor)


def median(passes: list[Cost]) -> Cost:
    return Cost(*(statistics.median(one) for one in zip(*passes, strict=True)))


def show(what: str, passes: list[Cost]) -> None:
    found = median(passes)
    each = ", ".join(f"{one.clock:.3f} {one.processor:.3f}" for one in passes)
    print(f"  {what:25} {found.clock:8.3f}, processor {found.processor:8.3f}  (passes: {each})")


def cost(arrived: list[float], used: dict[int, list[tuple[float, float]]]) -> Cost:
    """From the times at which models arrived, and the processor time of each process meanwhile."""
    rounds = len(arrived) - 1
    total = 0.0
    for samples in used.values():
        within = [seconds for at, seconds in samples if arrived[0] <= at <= arrived[-1]]
        total += within[-1] - within[0] if within else 0.0
    return Cost(step(arrived), total / rounds)


def step(times: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times))


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[dict[int, list[tuple[float, float]]]]:
    """The processor time, every now and then, of each process that works in the folder."""
    used: dict[int, list[tuple[float, float]]] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if any(str(folder) in part for part in process.cmdline()):
                        times = process.cpu_times()
                        seconds = times.user + times.system
                        used.setdefault(process.pid, []).append((time.time(), seconds))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield used
    finally:
        over.set()
        thread.join()


def linear(inputs: int, rounds: int, silos: int) -> Any:
    from fafed.experiments.config import Experiment

    return Experiment.from_dict(
        {
            "name": "overhead",
            "rounds": rounds,
            "local_steps": 1,
            "batch_size": 1,
            "engine": "loop",
            "eval_every": 10_000,
            "metrics": [],
            "data": {
                "function": "overhead:examples",
                "options": {"silos": silos, "inputs": inputs},
                "train_sample": 0,
            },
            "model": {"name": "softmax", "inputs": inputs, "outputs": 10},
            "algorithm": {"name": "fedavg", "eta": 0.001},
        }
    )


def simulated(experiment: Any, folder: Path) -> Cost:
    from fafed.experiments.execute import execute
    from fafed.experiments.rundir import RunDir

    place, used = RunDir(folder / "simulated"), list[float]()
    execute(experiment, place, lambda _: used.append(time.process_time()))
    return Cost(step([record.seconds for record in place.records()]), step(used))


def over_silos(experiment: Any, silos: int, folder: Path) -> Cost:
    from fafed.silos.transports.nvflare.try_out import attempt

    with watched(folder) as used:
        attempt([experiment], silos, folder / "ours")
    lines = (folder / "ours" / "overhead" / "silos" / "silo-1" / "audit.jsonl").read_text()
    found = [json.loads(line) for line in lines.splitlines()]
    arrived = [x["time"] for x in found if x["direction"] == "received" and x["kind"] == "visit"]
    return cost([datetime.fromisoformat(one).timestamp() for one in arrived], used)


def flares_own(inputs: int, rounds: int, silos: int, folder: Path) -> Cost:
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

    from fafed.silos.transports.nvflare.kit_files import install
    from fafed.silos.transports.nvflare.local_federation import Local, provision

    times, names = folder / "times", [f"silo-{i + 1}" for i in range(silos)]
    times.mkdir()
    recipe = FedAvgRecipe(
        name="own",
        model={
            "class_path": "torch.nn.Linear",
            "args": {"in_features": inputs, "out_features": 10},
        },
        min_clients=silos,
        num_rounds=rounds,
        train_script=str(HERE / "fedavg_script.py"),
        train_args=f"{times} {inputs}",
    )
    recipe.export(str(folder / "job"))
    for path in (folder / "job").rglob("config_fed_server.json"):
        content = json.loads(path.read_text())
        content.setdefault("server", {})["task_request_interval"] = POLL
        path.write_text(json.dumps(content))
    kits = provision(folder / "kits", names)
    install(kits / "localhost", "")  # its jobs stay in this folder
    local = Local(kits, names)
    try:
        local.start()
        with watched(folder) as used, contextlib.redirect_stdout(io.StringIO()):
            submitted(local, folder / "job" / "own", silos)
    finally:
        local.stop()
    return cost([float(line) for line in (times / "silo-1").read_text().splitlines()], used)


def submitted(local: Any, job: Path, silos: int) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from fafed.silos.transports.nvflare.local_federation import ADMIN

    end = time.monotonic() + 600
    while True:
        try:
            session = new_secure_session(ADMIN, str(local.kits / ADMIN), timeout=5.0)
            if len(session.get_connected_client_list()) == silos:
                break
            session.close()
        except Exception:
            if time.monotonic() > end:
                raise
        time.sleep(0.5)
    number = session.submit_job(str(job))
    while not str(session.get_job_meta(number).get("status", "")).startswith("FINISHED"):
        assert time.monotonic() < end, "FLARE's job takes too long"
        time.sleep(0.5)
    session.close()


if __name__ == "__main__":
    main()
