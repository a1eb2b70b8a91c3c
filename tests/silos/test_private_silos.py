"""Differential privacy of each example over silos: the numbers of the simulation, noise of each
silo's own, and a count of what was released that nothing makes smaller."""

from __future__ import annotations

import json
import math
import stat
from collections import Counter

import numpy as np
import pytest
import torch
from secure_federation import federation
from silo_tools import final, local_federation, run, site
from small import experiment, write_data

from fafed.errors import ConfigError, FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.objectives.layerwise import Layerwise
from fafed.privacy.accounting import Released, epsilon_of
from fafed.silos import messages
from fafed.silos.limits import Limits, Refusal
from fafed.silos.messages import EMPTY, ExchangeId
from fafed.silos.private import FILE, Ledger, PrivateSilo, PrivateVisit
from fafed.silos.server import TooFew, Unfit
from fafed.silos.worker import Worker

EXAMPLE = {"level": "example", "noise": 1.0, "clip": 0.5, "delta": 1e-3}


def small(tmp_path, name="fafed", privacy=None, **changes):
    write_data(tmp_path / "data", 3, 60)
    settings = {"rounds": 3, "algorithm": {"name": name, "eta": 0.05}, "engine": "loop"} | changes
    settings["privacy"] = EXAMPLE | (privacy or {})
    found = experiment(tmp_path / "data", **settings)
    found["data"] = found["data"] | {"train_sample": 0}
    return Experiment.from_dict(found)


def allowed(tmp_path):
    return {"allow": ["softmax", str(tmp_path / "data")]}


def simulated(found, tmp_path):
    place = RunDir(tmp_path / "simulated")
    execute(found, place)
    return place


@pytest.fixture
def seeded(monkeypatch):
    """Silos whose noise and samples are those of the simulation."""
    monkeypatch.setattr(
        PrivateSilo,
        "fresh",
        lambda self: PrivateVisit(self, self.gradients.for_visit(), self.source),
    )


@pytest.mark.parametrize(
    ("name", "privacy"),
    [
        ("fedavg", {}),
        ("fafed", {}),
        ("fafed", {"combine": True}),
        ("scaffold", {}),
        ("mime", {}),
        ("fedavg", {"max_epsilon": 1.6}),
    ],
)
def test_silos_give_the_numbers_of_the_simulation(name, privacy, tmp_path, seeded):
    found = small(tmp_path, name, privacy)
    here = simulated(found, tmp_path)
    there = run(found, tmp_path, local_federation(tmp_path, **allowed(tmp_path)))
    assert torch.equal(final(here), final(there))
    assert len(here.records()) == (2 if "max_epsilon" in privacy else 3)
    for a, b in zip(here.records(), there.records(), strict=True):
        assert a.to_dict() | {"seconds": 0} == b.to_dict() | {"seconds": 0}
        assert b.train_loss is None
        assert b.diagnostics["epsilon"] > 0


def test_noise_is_the_silos_own_and_never_the_same_twice(tmp_path):
    found = small(tmp_path, "fedavg")
    vectors = [final(simulated(found, tmp_path))]
    for name in ("one", "two"):
        place = tmp_path / name
        vectors.append(final(run(found, place, local_federation(place, **allowed(tmp_path)))))
    for i, a in enumerate(vectors):
        for b in vectors[i + 1 :]:
            assert (a - b).abs().min() > 0


class Server:
    """One that asks a silo whatever it likes."""

    def __init__(self, tmp_path, found, name="silo", **changes):
        self.site = site(tmp_path / name, **(allowed(tmp_path) | changes))
        self.found, self.name = found, name
        self.silo = Worker(name, self.site)
        self.run = "run"

    def hello(self, run="run", **changes):
        self.run = run
        told = {"experiment": self.found.changed(**changes).to_dict(), "client": 0, "clients": 3}
        return self.ask(messages.write("hello", ExchangeId(run), told, EMPTY))

    def visit(self, round=1):
        down = torch.zeros(21), torch.tensor(0)
        table = [["0.x", "float32", [21]], ["0.t", "int64", []]]
        packed = messages.pack(down)._replace(table=table)
        told = {"base": None, "epoch_steps": 1, "opening": round == 1}
        place = ExchangeId(self.run, round, 0, "a")
        head, body = self.ask(messages.write("visit", place, told, packed))
        return head["facts"], np.frombuffer(body, np.float32)

    def ask(self, request):
        answer = self.silo.handle(request)
        head = messages.glance(answer.head)
        if head["kind"] not in ("welcome", "answer"):
            raise Refusal(f"{head['kind']}: {head['facts'].get('why', head['facts'])}")
        return head, bytes(answer.body)

    def spent(self):
        return Ledger(self.site.folder).of_run(self.run)

    def restart(self):
        self.silo = Worker(self.name, self.site)


ONE_VISIT = Released(5 / 60, 1.0, 1)


def test_what_was_released_counts_whatever_the_server_makes_of_it(tmp_path):
    """The same round again and again, by a silo that is started anew each time."""
    server = Server(tmp_path, small(tmp_path, "fedavg"))
    welcome, _ = server.hello()
    assert welcome["facts"]["epsilon"] == 0.0
    seen = [welcome["facts"]["next_epsilon"]]
    for times in range(1, 4):
        facts, _ = server.visit()
        assert server.spent() == Counter({ONE_VISIT: 3 * times})
        assert facts["epsilon"] == epsilon_of({ONE_VISIT: 3 * times}, EXAMPLE["delta"]) == seen[-1]
        seen.append(facts["next_epsilon"])
        server.restart()
    assert seen == sorted(seen)
    file = server.site.folder / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again, _ = server.hello()
    assert again["facts"]["epsilon"] == seen[2]


def differences(server):
    """Between two answers to the same request."""
    a, b = (server.visit()[1] for _ in range(2))
    return a - b


def test_two_answers_to_one_request_do_not_share_their_noise(tmp_path, monkeypatch):
    found = small(tmp_path, "fedavg", {"noise": 50.0}, local_steps=1)
    server = Server(tmp_path, found)
    server.hello()
    noise = 50.0 * 0.5 / 5 * 0.05  # of one number of a message: sigma C / b, times eta
    gaps = np.concatenate([differences(server) for _ in range(40)])
    assert abs(gaps.std() / (math.sqrt(2) * noise) - 1) < 0.15
    # the mutant: a key that the silo keeps
    monkeypatch.setattr("fafed.privacy.secret.os.urandom", lambda count: bytes(count))
    assert abs(differences(server)).max() == 0


def test_a_silo_does_not_pass_the_limit_of_its_own_file(tmp_path):
    """A server that asks for one round forever, and then begins other runs."""
    most = epsilon_of({ONE_VISIT: 12}, 1e-3)  # four visits
    limits = {"max_epsilon": most, "max_delta": 1e-3}
    server = Server(tmp_path, small(tmp_path, "fedavg"), limits=limits)
    server.hello()
    for _ in range(4):
        server.visit()
    with pytest.raises(Refusal, match=r"refused: all runs together .* max_epsilon = "):
        server.visit()
    assert server.spent() == Counter({ONE_VISIT: 12})
    server.restart()
    with pytest.raises(Refusal, match="refused: all runs together"):
        server.visit(round=2)
    with pytest.raises(Refusal, match="refused: all runs together would spend"):
        server.hello("another", rounds=1)


def test_a_plan_that_is_too_expensive_is_refused_at_the_beginning(tmp_path):
    limits = {"max_epsilon": epsilon_of({ONE_VISIT: 8}, 1e-3), "max_delta": 1e-3}
    server = Server(tmp_path, small(tmp_path, "fedavg"), limits=limits)
    with pytest.raises(Refusal, match="use more noise, fewer rounds or a smaller"):
        server.hello()
    server.hello(rounds=2)
    server.hello("other", privacy=EXAMPLE | {"max_epsilon": limits["max_epsilon"]})


def test_a_silo_holds_the_limit_of_the_experiment(tmp_path):
    most = epsilon_of({ONE_VISIT: 6}, 1e-3)
    server = Server(tmp_path, small(tmp_path, "fedavg", {"max_epsilon": most}))
    server.hello()
    server.visit()
    server.visit()
    with pytest.raises(Refusal, match=r"pass privacy.max_epsilon = .* of the experiment"):
        server.visit()


@pytest.mark.parametrize(
    ("limits", "privacy", "words"),
    [
        ({"require_private": True}, {}, "its file has require_private = true; add"),
        ({"max_epsilon": 3.0}, {}, r"its file has max_epsilon = 3.0; add \[privacy\] level"),
        ({"min_noise": 0.5}, {}, "its file has min_noise = 0.5; add"),
        ({"min_noise": 1.5}, EXAMPLE, "privacy.noise = 1 is too small for this silo: .*min_noise"),
        ({"require_private": True}, EXAMPLE, "privacy.delta = 0.001 is too large .*max_delta"),
    ],
)
def test_floors_in_the_silos_file(limits, privacy, words, tmp_path):
    server = Server(tmp_path, small(tmp_path, "fedavg").changed(privacy=privacy), limits=limits)
    with pytest.raises(Refusal, match=words):
        server.hello()


def test_a_damaged_count_stops_the_silo(tmp_path):
    server = Server(tmp_path, small(tmp_path, "fedavg"))
    server.hello()
    server.visit()
    file = server.site.folder / FILE
    content = json.loads(file.read_text())
    content["runs"]["run"][0][-1] = 1
    file.write_text(json.dumps(content))
    with pytest.raises(Refusal, match="failed: "):
        server.visit()
    assert "is damaged: restore it" in (server.site.folder / "log.txt").read_text()


def test_two_processes_share_the_count(tmp_path):
    one, two = Ledger(tmp_path), Ledger(tmp_path)
    for ledger in (one, two, one):
        ledger.add("run", Counter({ONE_VISIT: 2}), 1e-3, math.inf, Limits())
    assert two.of_run("run") == Counter({ONE_VISIT: 6})
    assert two.of_others("other") == Counter({ONE_VISIT: 6})


def test_a_round_that_is_made_again_counts_twice_in_the_records(tmp_path):
    """The server dies with the answers of round 2 in hand."""
    found = small(tmp_path, "fedavg")
    wire = local_federation(tmp_path, **allowed(tmp_path))
    ask, asked = wire.ask, Counter()

    def dying(requests, seconds, limit):
        kinds = [json.loads(request.head)["kind"] for request in requests.values()]
        answers = list(ask(requests, seconds, limit))
        asked.update(kinds[:1])
        if kinds[0] == "visit" and asked["visit"] == 2:
            raise RuntimeError("power cut")
        yield from answers

    wire.ask = dying
    with pytest.raises(RuntimeError, match="power cut"):
        run(found, tmp_path, wire)
    place = run(found, tmp_path, wire)
    spent = [record.diagnostics["epsilon"] for record in place.records()]
    assert spent == [epsilon_of({ONE_VISIT: 3 * k}, 1e-3) for k in (1, 3, 4)]


def test_a_run_whose_budget_is_spent_by_repetition_ends_in_time(tmp_path, caplog):
    most = epsilon_of({ONE_VISIT: 7}, 1e-3)
    found = small(tmp_path, "fedavg", {"max_epsilon": most})
    wire = local_federation(tmp_path, **allowed(tmp_path))
    ask, cut = wire.ask, [True]

    def dying(requests, seconds, limit):
        answers = list(ask(requests, seconds, limit))
        if cut and json.loads(next(iter(requests.values())).head)["kind"] == "visit":
            raise RuntimeError(cut.pop() and "power cut")
        yield from answers

    wire.ask = dying
    with pytest.raises(RuntimeError):
        run(found, tmp_path, wire)
    place = run(found, tmp_path, wire)
    assert len(place.records()) == 1
    assert place.records()[0].test  # the last round is evaluated
    assert "stopped after round 1 of 3: one more would pass max_epsilon" in caplog.text
    assert (tmp_path / "a" / "runs").is_dir()
    assert list((tmp_path / "a" / "runs").glob("*/model.safetensors"))
    again = run(found, tmp_path, wire)
    assert len(again.records()) == 1


def test_one_silo_cannot_end_the_run_by_what_it_says(tmp_path):
    found = small(tmp_path, "fedavg", {"max_epsilon": 5.0})
    wire = local_federation(tmp_path, **allowed(tmp_path))

    def lie(silo, answer):
        if silo != "a":
            return answer
        head = json.loads(answer.head)
        if "epsilon" in head["facts"]:
            head["facts"] |= {"epsilon": 1e9, "next_epsilon": 1e9}
        return answer._replace(head=json.dumps(head).encode())

    wire.spoil = lie
    assert len(run(found, tmp_path, wire, min_silos=2).records()) == 3


def test_with_secure_aggregation(tmp_path, seeded):
    found = small(tmp_path, "fafed", {"secure": True})
    here = simulated(found, tmp_path)
    wire = federation(tmp_path, ("a", "b", "c"))
    there = run(found, tmp_path, wire)
    assert torch.equal(final(here), final(there))
    for a, b in zip(here.records(), there.records(), strict=True):
        assert a.diagnostics == b.diagnostics


def test_a_new_process_for_every_message(tmp_path, seeded):
    found = small(tmp_path, "scaffold")
    here = simulated(found, tmp_path)
    wire = local_federation(tmp_path, **allowed(tmp_path))
    ask = wire.ask

    def fresh(requests, seconds, limit):
        wire.workers = {name: Worker(name, old.site) for name, old in wire.workers.items()}
        return ask(requests, seconds, limit)

    wire.ask = fresh
    assert torch.equal(final(here), final(run(found, tmp_path, wire)))


@pytest.mark.parametrize("way", ["as chosen", "layers", "vmap"])
def test_an_example_whose_gradient_is_not_finite_counts_as_zero_on_a_silo(way, tmp_path):
    """An error would tell the server that it is there."""
    server = Server(tmp_path, small(tmp_path, "fedavg"))
    server.hello()
    own = server.silo.parts["run"].private
    visit = own.visit(0)
    draws = visit.source.draw(("round",), 0, 0, 1)
    (batch,) = visit.source.batches(draws)
    _, _, expected = batch.data
    inputs = torch.randn(3, 6)
    wild = inputs.clone()
    wild[1] = 3e38
    rows = torch.tensor([0, 1, 2])
    if way != "as chosen":
        visit.gradients.network = None
        visit.gradients.layers = Layerwise(own.gradients.inner) if way == "layers" else None

    def total(inputs, rows):
        kind = type(batch.data)
        part = kind((inputs, torch.tensor([0, 1, 2])[rows]), rows, expected)
        memory = visit.gradients.start()
        x = torch.linspace(-1, 1, 21)
        return visit.gradients.clipped_sum(x, batch._replace(data=part), memory)

    due = total(inputs[[0, 2]], torch.tensor([0, 2]))
    assert torch.allclose(total(wild, rows), due)
    visit.gradients.strict = True
    with pytest.raises(FafedError, match="look for NaN"):
        total(wild, rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"name": "modules:Normed"}}, "0 is a BatchNorm1d, which mixes the examples"),
        ({"privacy": EXAMPLE | {"delta": 0.1}}, "a: privacy.delta = 0.1 promises nothing to a"),
        ({"privacy": EXAMPLE | {"max_epsilon": 0.1}}, "max_epsilon = 0.1 is less than one round"),
        ({"privacy": EXAMPLE | {"combine": True}}, "combine = true does nothing for FedAvg"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_the_first_round(changes, words, tmp_path):
    found = small(tmp_path, "fedavg").changed(**changes)
    wire = local_federation(tmp_path, allow=["softmax", "modules:Normed", str(tmp_path / "data")])
    with pytest.raises((ConfigError, Unfit), match=words):
        run(found, tmp_path, wire)


def test_a_silo_refuses_an_experiment_without_delta(tmp_path):
    server = Server(tmp_path, small(tmp_path, "fedavg"))
    broken = server.found.to_dict()
    broken["privacy"] = {name: v for name, v in EXAMPLE.items() if name != "delta"}
    told = {"experiment": broken, "client": 0, "clients": 3}
    with pytest.raises(Refusal, match=r"failed: .*ConfigError"):
        server.ask(messages.write("hello", ExchangeId("run"), told, EMPTY))
    log = (server.site.folder / "log.txt").read_text()
    assert "privacy.level = 'example' needs privacy.delta: a probability well below" in log


@pytest.mark.parametrize("secure", [False, True])
def test_an_epsilon_that_is_no_number_leaves_the_silo_out(secure, tmp_path, caplog):
    found = small(tmp_path, "fedavg", {"secure": secure}, rounds=1)
    made = federation if secure else local_federation
    wire = made(tmp_path, ("a", "b", "c"), **({} if secure else allowed(tmp_path)))

    def lie(silo, answer):
        head = json.loads(answer.head)
        if silo == "a" and head["kind"] in ("answer", "masked"):
            head["facts"]["epsilon"] = "none"
        return answer._replace(head=json.dumps(head).encode())

    ask = wire.ask
    wire.ask = lambda *told: ((silo, answer and lie(silo, answer)) for silo, answer in ask(*told))
    if secure:  # a sum of two is refused
        with pytest.raises(TooFew):
            run(found, tmp_path, wire)
    else:
        assert run(found, tmp_path, wire, min_silos=2).records()[0].clients == 2
    assert "refused a message of 'a': epsilon is 'none', it must be a number" in caplog.text
