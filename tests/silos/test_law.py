"""Same experiment, same seed: the numbers of the loop engine, for every algorithm."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from silo_tools import NAMES, final, local_federation, run
from small import experiment, write_data

from fafed import ALGORITHMS
from fafed.experiments import checkpoint
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos.server import TooFew
from fafed.silos.site import Site
from fafed.silos.worker import Worker
from fafed.training.cohort import Cohort


def small(tmp_path, name="fafed", clients=3, examples=30, **changes):
    write_data(tmp_path / "data", clients, examples)
    settings = {"rounds": 3, "algorithm": {"name": name}, "engine": "loop"} | changes
    return Experiment.from_dict(experiment(tmp_path / "data", **settings))


def simulated(found, tmp_path):
    place = RunDir(tmp_path / "simulated")
    execute(found, place)
    return place


def allowed(tmp_path):
    return {"allow": ["softmax", "lstm", str(tmp_path / "data")]}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_numbers_of_the_loop_engine(name, tmp_path):
    clients = ALGORITHMS[name]().population or 3
    found = small(tmp_path, name, clients)
    here = simulated(found, tmp_path)
    wire = local_federation(tmp_path, NAMES[:clients], **allowed(tmp_path))
    there = run(found, tmp_path, wire)
    assert torch.equal(final(here), final(there))
    for a, b in zip(here.records(), there.records(), strict=True):
        assert a.to_dict() | {"seconds": 0} == b.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    "eta",
    [
        {"schedule": "power", "kappa": 0.1, "every": "epoch"},
        {"schedule": "cosine", "peak": 0.1, "end": 0.1, "warmup": 0.3},
    ],
)
def test_weights_by_examples_and_schedules_by_epoch_or_over_the_run(tmp_path, eta):
    found = small(tmp_path, weights="examples", algorithm={"name": "fafed", "eta": eta})
    here = simulated(found, tmp_path)
    there = run(found, tmp_path, local_federation(tmp_path, **allowed(tmp_path)))
    assert torch.equal(final(here), final(there))


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_silos_with_folders_of_their_own(tmp_path, validation):
    """Within the limits that a silo has by default."""
    found = small(tmp_path, examples=200, batch_size=32, opening_batch_size=64)
    data = found.data.model_dump() | {"validation": validation, "train_sample": 0}
    found = found.changed(data={k: v for k, v in data.items() if v is not None})
    here = simulated(found, tmp_path)
    wire = local_federation(tmp_path)
    for i, name in enumerate(NAMES):
        folder = tmp_path / "own" / name
        folder.mkdir(parents=True)
        (tmp_path / "data" / f"client-{i}.npz").rename(folder / "records.npz")
        file = tmp_path / name / "fafed.toml"
        file.write_text(f'folder = "kept"\nallow = ["softmax"]\n[data]\nfolder = "{folder}"\n')
        wire.workers[name] = Worker(name, Site.read(file))
    there = run(found, tmp_path, wire)
    assert torch.equal(final(here), final(there))
    for line in (there.path / "audit.jsonl").read_text().splitlines():
        assert "own" not in line
    sent = [
        json.loads(x)
        for x in (tmp_path / "a" / "kept" / "audit.jsonl").read_text().split("\n")
        if x and '"sent"' in x
    ]
    assert [(x["kind"], x["round"], x["exchange"]) for x in sent] == [
        ("welcome", 0, 0),
        ("answer", 1, 0),
        ("answer", 1, 1),
        ("answer", 2, 0),
        ("answer", 3, 0),
        ("kept", 3, 0),
    ]


def test_a_new_process_for_every_message(tmp_path):
    """What Flower does: only the disk remembers."""
    found = small(tmp_path)
    here = simulated(found, tmp_path)
    wire = local_federation(tmp_path, **allowed(tmp_path))

    def forget(record):
        for name, worker in list(wire.workers.items()):
            wire.workers[name] = Worker(name, worker.site)

    there = run(found, tmp_path, wire, forget)
    assert torch.equal(final(here), final(there))


class Elsewhere(Worker):
    """A silo whose fafed has other defaults."""

    def handle(self, request):
        init = ALGORITHMS["fedcm"].__init__
        own = init.__defaults__
        init.__defaults__ = tuple(x / 2 if isinstance(x, float) else x for x in own)
        try:
            return super().handle(request)
        finally:
            init.__defaults__ = own


def test_the_silos_own_defaults_do_not_count(tmp_path):
    """The server's do: it sends every value."""
    found = small(tmp_path, "fedcm")
    here = simulated(found, tmp_path)
    wire = local_federation(tmp_path, **allowed(tmp_path))
    wire.workers |= {name: Elsewhere(name, w.site) for name, w in wire.workers.items()}
    there = run(found, tmp_path, wire)
    assert torch.equal(final(here), final(there))


def lost_seed(rounds):
    """A seed with which nobody answers in round 1, and somebody does later."""
    for seed in range(1000):
        cohort = Cohort(3, failure=0.7, seed=seed)
        there = [cohort.answering(r, cohort.invited(r)) for r in range(1, rounds + 1)]
        if not there[0] and there[1] and there[2]:
            return seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("name", ["fafed", "mimeadam"])
def test_a_run_opens_in_the_first_round_in_which_a_silo_answers(name, tmp_path):
    found = small(tmp_path, name, failure=0.7, seed=lost_seed(3))
    here = simulated(found, tmp_path)
    there = run(found, tmp_path, local_federation(tmp_path, **allowed(tmp_path)))
    assert here.records()[0].clients == 0
    assert torch.equal(final(here), final(there))
    for a, b in zip(here.records(), there.records(), strict=True):
        assert (a.clients, a.samples, a.bytes_up) == (b.clients, b.samples, b.bytes_up)
        assert a.train_loss == b.train_loss


@pytest.mark.parametrize("opening", [None, 1, "yes"])
def test_a_silo_refuses_a_round_that_does_not_say_whether_it_opens_the_run(opening, tmp_path):
    found = small(tmp_path)
    wire = local_federation(tmp_path, **allowed(tmp_path))
    ask = wire.ask

    def spoilt(requests, *rest):
        for silo, request in requests.items():
            head = json.loads(request.head)
            if head["kind"] == "visit":
                head["facts"]["opening"] = opening
            requests[silo] = request._replace(head=json.dumps(head).encode())
        return ask(requests, *rest)

    wire.ask = spoilt
    with pytest.raises(TooFew):
        run(found, tmp_path, wire)
    assert "opening is" in (tmp_path / "a" / "log.txt").read_text()


def test_a_silo_whose_batch_has_only_ignored_labels_has_no_loss(tmp_path):
    found = small(tmp_path, "fedavg", batch_size=1, local_steps=1, rounds=6)
    for i in range(3):
        path = tmp_path / "data" / f"client-{i}.npz"
        content = dict(np.load(path))
        content["targets"][:20] = -100
        np.savez(path, **content)
    here = simulated(found, tmp_path)
    there = run(found, tmp_path, local_federation(tmp_path, **allowed(tmp_path)))
    losses = [record.train_loss for record in here.records()]
    assert None in losses
    assert any(loss is not None for loss in losses)
    assert losses == [record.train_loss for record in there.records()]
    assert torch.equal(final(here), final(there))


def test_buffers_that_a_model_assigns_travel(tmp_path):
    found = small(tmp_path, "stem", model={"name": "modules:Assigned"})
    here = simulated(found, tmp_path)
    allow = {"allow": ["modules:Assigned", str(tmp_path / "data")]}
    there = run(found, tmp_path, local_federation(tmp_path, **allow))
    ours, theirs = (checkpoint.found(place.checkpoints)[0] for place in (here, there))
    with safe_open(ours, "pt") as a, safe_open(theirs, "pt") as b:
        names = [name for name in a.keys() if name.startswith("server.1.")]  # noqa: SIM118
        assert len(names) == 2
        for name in ("server.0.x", *names):
            assert torch.equal(a.get_tensor(name), b.get_tensor(name))
        assert 1 + 3 * 3 in [int(a.get_tensor(name).sum()) for name in names]
