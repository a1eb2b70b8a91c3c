"""One rank of test_distributed.py, as a script: CASE FOLDER. Leaves FOLDER/rank-R.json."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from carrying import Carrying
from modules import Assigned, batch
from problem import Problem
from torch.nn import functional as F

from fafed import ALGORITHMS, STEM, DataError, Diverged, FedPD, Mime, Wire
from fafed.core import tree
from fafed.data.sources.examples import examples_of
from fafed.engines import distributed
from fafed.engines.ranks import Lost, RankFailed, joined
from fafed.experiments import checkpoint
from fafed.objectives.module import Model
from fafed.privacy.options import Privacy
from fafed.training.build import build

STEPS, ROUNDS, SAVED = 2, 3, 1


def make(name):
    fields = {f.name for f in dataclasses.fields(ALGORITHMS[name])}
    common = {"eta": 0.05, "rho": 0.1}
    if name in ("fedavg", "stem", "fafed"):  # the larger state
        common["server_momentum"] = 0.7
    return ALGORITHMS[name](**{k: v for k, v in common.items() if k in fields})


def cases(ranks):
    """Name, algorithm, problem, options of the run. On two ranks all five clients in float64; on
    three, two clients in float32, so that a rank has none, in every round another one if it can.
    """
    for name in ALGORITHMS:
        a = make(name)
        if ranks == 2:
            yield name, a, Problem(a.population or 5), {}
            continue
        some = not (a.requires_all_clients or a.population)
        p = Problem(5, weights=[1.0, 0.2, 3.0, 0.7, 5.0]) if some else Problem(a.population or 2)
        p.x0, p.pool = p.x0.float(), tuple(part.float() for part in p.pool)
        yield name, a, p, {"participation": 0.4 if some else 1.0}
    yield "silent rounds", FedPD(0.05, every=2, oracle="II"), Problem(ranks - 1), {}
    yield "buffers and hidden states", STEM(0.05), Recurrent(), {"participation": 0.5}
    yield "assigned buffers and ignored labels", STEM(0.05), Ignoring(), {}
    for wire in (Wire("int8"), Wire("topk", share=0.4)):  # with three ranks, one has no clients
        yield f"compressed {wire.up}", make("fafed"), Problem(2), {"wire": wire}


def secure_cases(ranks):
    """The same with messages as integers, and with noise."""
    for name in ALGORITHMS:  # as integers, so that every digit is the same
        a = make(name)
        if ranks == 2 and not a.population:
            yield f"secure {name}", a, Problem(4), {"privacy": Privacy(secure=True)}
    bits = Privacy(secure=True, bits=32, first_bound=8.0)
    small = {"privacy": bits, "participation": 0.6}  # one rank has no clients in some rounds
    yield "secure in 32 bits", make("mime"), Problem(5, weights=[1.0, 0.2, 3.0, 0.7, 5.0]), small
    tight = {"privacy": Privacy(secure=True, first_bound=2.0**-6)}  # all are too large at first
    yield "secure, too large, and again", make("scaffold"), Problem(4), tight
    yield "secure, too large, and absent", make("fedavg"), Problem(5), tight
    yield "secure buffers", STEM(0.05), Recurrent(), {"privacy": Privacy(secure=True)}
    yield "secure and ignored labels", make("fedavg"), Ignoring(), {"privacy": bits}
    noisy = Privacy(level="example", noise=1.0, clip=0.5, delta=1e-5)
    if ranks == 3:
        yield "private", make("mime"), Problem(ranks, examples=40), {"privacy": noisy}
        clients = {"level": "client", "noise": 1.0, "clip": 0.5, "delta": 1e-3}
        few = {"privacy": Privacy(**clients)}  # one rank has no clients
        yield "private clients", make("mime"), Problem(2), few
        shares = {"privacy": Privacy(**clients, secure=True)}
        yield "secure private clients", make("fafed"), Problem(4), shares


class Recurrent:
    """A problem with a model that has BatchNorm, dropout and a state to carry."""

    def run(self, algorithm, q, rounds, **options):
        torch.manual_seed(0)
        clients = [(torch.randn(12, 6), torch.randint(0, 3, (12,))) for _ in range(4)]
        source = examples_of(clients, batch_size=4, anchor_size=4)
        objective = Model(Carrying(), F.cross_entropy)
        settings = {"rounds": rounds, "local_steps": q, "engine": "loop", **options}
        return build(algorithm, objective, source, **settings)


class Ignoring:
    """A model that assigns its buffers, and clients some of whose batches have no labels."""

    def run(self, algorithm, q, rounds, **options):
        clients = [tuple(batch(12, seed=s).data) for s in range(4)]
        for _, labels in clients:
            labels[2:] = -100
        source = examples_of(clients, batch_size=1, anchor_size=4)
        objective = Model(Assigned(), F.cross_entropy)
        settings = {"rounds": rounds, "local_steps": q, "engine": "loop", **options}
        return build(algorithm, objective, source, **settings)


def plain(record):
    known = {name: value for name, value in record.flat().items() if value is not None}
    return {**known, "seconds": 0.0}


def laws(ranks, folder):
    distributed.PARCEL = 60  # bytes: a client or two
    adds, add = [], ranks.add
    ranks.add = lambda buffer: adds.append(1) or add(buffer)
    found = {}
    for label, algorithm, problem, options in (*cases(ranks.size), *secure_cases(ranks.size)):
        del adds[:]
        run = problem.run(algorithm, STEPS, ROUNDS, ranks=ranks, workers=1, **options)
        xs, records = [], []
        for record in run:
            xs.append(run.state.shared.x.tolist())
            records.append(plain(record))
            if record.round == SAVED and ranks.rank == 0:
                checkpoint.save(run, folder / "by ranks" / label, "d")
            elif record.round == SAVED:
                run.engine.hand_over()
        own = [i for i, state in enumerate(run.engine.simulation.states) if state is not None]
        reduced = len(adds)
        again = problem.run(algorithm, STEPS, ROUNDS, ranks=ranks, workers=1, **options)
        if ranks.rank == 0:
            (path,) = checkpoint.found(folder / "simulated" / label)
            checkpoint.load(again, path, "d")
        checkpoint.share(again)
        rest = [plain(record) for record in again]
        found[label] = {
            "xs": xs,
            "records": records,
            "own": own,
            "reduced": reduced,
            "again": again.state.shared.x.tolist(),
            "rest": rest,
            "totals": again.state.totals[:-1],
        }
    return found


def errors(ranks, folder):
    bad = Problem(4)
    for client in (1, 2):  # on both ranks
        bad.pool[1][bad.parts[client]] = torch.nan
    found = {}
    try:
        bad.run(make("fedavg"), STEPS, 1, ranks=ranks, workers=1).round()
    except Diverged as error:
        found["diverged"] = [error.client, str(error)]
    # in the second exchange of a round, on one rank
    run = Problem(4).run(Mime(0.05), STEPS, 3, ranks=ranks, workers=1)
    run.round()
    before, objective, calls = run.state, run.engine.objective, []
    f = objective.f

    def broken(x, data):
        calls.append(1)
        if ranks.rank == 1 and len(calls) == 3:
            raise ValueError("no such example")
        return f(x, data)

    objective.f = broken
    try:
        run.round()
    except (ValueError, RankFailed) as error:
        found["failed"] = f"{type(error).__name__}: {error}"
    objective.f = f
    here = run.engine.simulation
    kept = tree.nbytes([s for s in here.states if s is not None])
    found["rolled back"] = [run.state is before, here.kept.pending == {}, kept == 0]
    list(run)
    found["x"] = run.state.shared.x.tolist()
    # outside of an exchange
    if ranks.rank == 1:
        keep(found, ranks, folder)
        raise DataError("a file is missing")
    try:
        ranks.tell(source=1)
    except RankFailed as error:
        found["left"] = str(error)
    return found


def silence(ranks, folder):
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began = time.monotonic()
    try:
        ranks.add(torch.zeros(1))
    except Lost as error:
        return [str(error), time.monotonic() - began]


def keep(found, ranks, folder):
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    case, place = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    try:
        with joined(2.0 if case == "silence" else 60.0) as here:
            what = {"laws": laws, "errors": errors, "silence": silence}[case]
            keep(what(here, place), here, place)
    except DataError:
        sys.exit(3)
