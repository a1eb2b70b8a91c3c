"""Real processes with real certificates on NVIDIA FLARE: the law, and what silos do to you."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from silo_tools import final, simulated
from small import experiment, write_data, write_experiment

from fafed.errors import FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import messages, payload
from fafed.silos.messages import EMPTY, ExchangeId, Message
from fafed.silos.site import Link

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message as CellMessage

from fafed.silos.transports.nvflare import endpoint as endpoint_module
from fafed.silos.transports.nvflare.driver import Driver
from fafed.silos.transports.nvflare.endpoint import Endpoint, Letter, letters, opened
from fafed.silos.transports.nvflare.job import FafedRecipe
from fafed.silos.transports.nvflare.kit_files import install
from fafed.silos.transports.nvflare.local_federation import ADMIN, Local, Member, provision
from fafed.silos.transports.nvflare.try_out import local_federation
from fafed.silos.transports.nvflare.wire import Wire

ROUNDS = 24
SERVER = "server.job"
SIX = ("fedavg", "scaffold", "fedadam", "stem", "fafed", "mime")


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def silos_try(file, *options):
    """`fafed silos try` as a process of its own, with its runs beside the experiment."""
    command = [sys.executable, "-m", "fafed", "silos", "try", file, "--runs", file.parent / "runs"]
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=150, check=False
    )


@pytest.mark.waits
def test_one_command_gives_the_numbers_of_the_loop_engine(tmp_path):
    write_data(tmp_path / "data", 3)
    file = write_experiment(tmp_path / "small.toml", tmp_path / "data", rounds=3, engine="loop")
    done = silos_try(file, "--silos", "3", "--algorithms", ",".join(SIX), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == len(SIX)
    for name in SIX:
        found = Experiment.read(file).with_algorithm(name)
        simulated = RunDir(tmp_path / "simulated" / name)
        execute(found, simulated)
        place = RunDir.for_experiment(found, tmp_path / "runs")
        close(final(place), final(simulated))
        here, there = simulated.records()[-1], place.records()[-1]
        assert (here.bytes_up, here.samples, here.clients) == (
            there.bytes_up,
            there.samples,
            there.clients,
        )
        assert here.test["loss"] == pytest.approx(there.test["loss"], rel=1e-5)
    assert not running(tmp_path)


def running(folder):
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_job_that_starts_while_its_member_ends_ends_too(tmp_path, end):
    """The script stands for a site that FLARE gives a new job just before it is told to stop."""
    job = f'python3 -c "import time; time.sleep(60)" {tmp_path}'
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "sub_start.sh").write_text(
        f"trap '{job} & exit' TERM; {job} & echo up; while true; do sleep 0.1; done"
    )
    member = Member(tmp_path)
    member.start()
    while not member.log.read_text():
        time.sleep(0.05)
    getattr(member, end)()
    assert not member.alive
    assert not running(tmp_path)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_child_that_does_not_run_its_program_yet_ends_with_its_member(tmp_path, end):
    """The subshell stands for a child between fork and exec: it has the name of its parent."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "sub_start.sh").write_text(
        "(while true; do sleep 0.1; done) & echo up; while true; do sleep 0.1; done"
    )
    member = Member(tmp_path)
    member.start()
    while not member.log.read_text():
        time.sleep(0.05)
    getattr(member, end)()
    assert not running(tmp_path)


@pytest.mark.slow
def test_who_has_not_set_up_a_kit_is_named(tmp_path):
    """FLARE would say FINISHED:EXECUTION_EXCEPTION or FINISHED:ABNORMAL, after three jobs."""
    kits, names = provision(tmp_path / "kits", ["north", "south"]), ["north", "south"]
    write_data(tmp_path / "data", 2)
    found = Experiment.from_dict(experiment(tmp_path / "data", rounds=2))
    local, recipe = Local(kits, names), FafedRecipe(found, names, min_silos=2, start=30)
    for content, words in (
        ("", "the server's kit is not set up: run `fafed silos server`"),
        (f'runs = "{tmp_path}"\n', "the process of south has ended.*set up by `fafed silos site`"),
    ):
        if content:
            allow = f'allow = ["softmax", "{tmp_path / "data"}"]\n[data]\nshare = true\n'
            install(kits / "localhost", content)
            install(kits / "north", f'folder = "{tmp_path / "north"}"\n{allow}')
        driver = Driver(kits / ADMIN, names, username=ADMIN, min_silos=2)
        local.start()
        try:
            with pytest.raises(FafedError, match=words):
                driver.run(recipe)
        finally:
            driver.close()
            local.stop()


def history(place, silos):
    """From the server's audit file: who counted in each round, and who had lost its state."""
    attempts, lost = {}, {}
    for line in (place.path / "audit.jsonl").read_text().splitlines():
        found = json.loads(line)
        if not found["round"]:
            continue
        if found["kind"] == "visit":
            attempts.setdefault((found["round"], found["attempt"]), set())
        elif found["kind"] == "answer":
            attempts[found["round"], found["attempt"]].add(silos.index(found["peer"]))
        elif found["kind"] == "lost":
            lost[found["round"]] = silos.index(found["peer"])
    last = {round: tuple(sorted(who)) for (round, _), who in attempts.items()}
    return last, lost


@pytest.mark.slow
def test_what_real_silos_do_to_you(tmp_path, monkeypatch, caplog):
    """One run in which a silo hangs, one sends NaN, one is killed, one loses its disk, and the
    server is killed. It ends where a simulation ends that lost the same clients in the same
    rounds: nothing was counted twice, and every silo went on from the right state."""
    monkeypatch.setenv("SLOW_SILO", "0.05")
    monkeypatch.setenv("BAD_SILO", str(tmp_path / "bad"))
    helpers = str(Path(__file__).parents[2] / "helpers")
    monkeypatch.setenv("PYTHONPATH", helpers, prepend=os.pathsep)
    write_data(tmp_path / "data", 2)
    found = Experiment.from_dict(
        experiment(
            tmp_path / "data",
            rounds=ROUNDS,
            engine="loop",
            eval_every=100,
            model={"name": "slow_silo:Slow", "inputs": 6, "outputs": 3},
            algorithm={"name": "fafed", "eta": 0.02},
        )
    )
    runs, place = tmp_path / "runs", RunDir.for_experiment(found, tmp_path / "runs")
    with local_federation(tmp_path / "work", [found], 2, runs) as local:
        silos = list(local.silos)
        story = events(local, place, tmp_path)

        def tick():
            local.watch()
            next(story, None)

        driver = Driver(local.kits / ADMIN, silos, username=ADMIN, min_silos=1, tick=tick)
        try:
            driver.run(FafedRecipe(found, silos, min_silos=1, deadline=5, start=60))
        finally:
            driver.close()
        assert next(story, "over") == "over"
        refused_without_the_right_certificate(local, tmp_path)
    assert not running(tmp_path)
    records = place.records()
    assert [r.round for r in records] == list(range(1, ROUNDS + 1))
    who, lost = history(place, silos)
    assert [r.clients for r in records] == [len(who[r.round]) for r in records]
    assert sum(r.clients < 2 for r in records) >= 3
    assert list(lost.values()) == [0]
    told = (place.path / "log.txt").read_text()
    for words in (
        "refused a message of 'silo-2': 0.x holds NaN or infinity",
        "silo 'silo-2' did not answer within 5 s",
        "silo 'silo-1' is gone",
        "silo 'silo-1' has lost its state of the run; it joins as a new one",
    ):
        assert words in told, words
    assert "there is no state" in (tmp_path / "work" / "silo-1" / "log.txt").read_text()
    absent = {number: {0, 1} - set(answered) for number, answered in who.items()}
    close(final(place), simulated(found, absent, lost))


def events(local, place, folder):
    def until(condition):
        end = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < end
            yield

    def clients():
        records = place.records()
        return [r.clients for r in records]

    def recovered(before):
        """A round without one, and then one with all again."""
        yield from until(lambda: 1 in clients()[before:])
        yield from until(lambda: clients()[-1] == 2)

    yield from until(lambda: len(clients()) >= 2)
    before = len(clients())
    (folder / "bad").write_text("silo-2")
    yield from until(lambda: 1 in clients()[before:])
    (folder / "bad").unlink()
    yield from until(lambda: clients()[-1] == 2)

    before = len(clients())
    hanging = local.silos["silo-2"].jobs()
    for process in hanging:
        process.suspend()
    yield from until(lambda: 1 in clients()[before:])
    for process in hanging:
        process.resume()
    yield from until(lambda: clients()[-1] == 2)

    before = len(clients())
    for process in local.silos["silo-2"].jobs():  # FLARE ends the job of a site that failed
        process.kill()
    yield from until(lambda: len(clients()) > before + 2)

    before = len(clients())
    local.silos["silo-1"].kill()
    shutil.rmtree(folder / "work" / "silo-1" / "runs")
    yield from recovered(before)

    before = len(clients())
    local.server.kill()
    yield from until(lambda: len(clients()) > before + 2)


def refused_without_the_right_certificate(local, folder):
    """The server's port, as it is: who shows no certificate of this project gets nothing."""
    settings = json.loads((local.kits / "silo-1/startup/fed_client.json").read_text())
    host, port = settings["servers"][0]["service"]["target"].split(":")
    foreign = provision(folder / "foreign", ["silo-1"])

    def greeting(kit):
        context = ssl.create_default_context(cafile=str(local.kits / "silo-1/startup/rootCA.pem"))
        context.set_alpn_protocols(["h2"])
        if kit:
            context.load_cert_chain(kit / "startup/client.crt", kit / "startup/client.key")
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            return wrapped.recv(100)

    assert greeting(local.kits / "silo-1")
    for kit in (None, foreign / "silo-1"):
        assert greeting(kit) == b""


class Job:
    """What a wire sees of FLARE in a job of these sites."""

    def __init__(self, *sites):
        self.sites = sites

    def get_engine(self):
        return self

    def get_job_id(self):
        return "job"

    def get_client_from_name(self, name):
        return name if name in self.sites else None


@pytest.mark.parametrize(("sites", "absent"), [((), ()), (("west",), ("west",))])
def test_a_silo_that_cannot_join_the_job_is_not_waited_for(tmp_path, sites, absent):
    """One that FLARE does not know in this job, and a dead one that it still counts."""
    wire = Wire(Job(*sites), Signal(), tmp_path, absent=absent)
    began = time.monotonic()
    assert list(wire.ask({"west": Message(b"head", b"")}, 300, 100)) == [("west", None)]
    assert time.monotonic() - began < 60
    assert wire.present() == []


def test_a_job_knows_who_was_absent_when_it_was_submitted(tmp_path):
    write_data(tmp_path / "data", 3)
    recipe = FafedRecipe(Experiment.from_dict(experiment(tmp_path / "data")), list("abc"))
    for silos in ({"c", "b"}, set()):
        recipe.without(silos).export(str(tmp_path / "job"))
        (config,) = (tmp_path / "job").rglob("config_fed_server.json")
        (flow,) = json.loads(config.read_text())["workflows"]
        assert flow["args"]["absent"] == sorted(silos)


@pytest.mark.slow
def test_a_run_that_diverges_ends_as_one_here_does(tmp_path):
    write_data(tmp_path / "data", 2)
    file = write_experiment(tmp_path / "small.toml", tmp_path / "data", rounds=3, engine="loop")
    done = silos_try(file, "--silos", "2", "--set", "algorithm.eta=1e38")
    assert done.returncode == 1, done.stderr
    assert "client 0 produced a non-finite" in done.stderr


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    """A silo whose answer is what it was asked, in pieces of 20 bytes."""
    monkeypatch.setattr(payload, "LARGE", 16)
    monkeypatch.setattr(payload, "PIECE", 20)
    file = tmp_path / "fafed.toml"
    file.write_text(f'folder = "{tmp_path}"\nallow = []\nlimit = 1000\n[data]\nshare = true\n')
    made = Endpoint(file, "a", SERVER, print)
    monkeypatch.setattr(made.worker, "handle", lambda message: message)
    return made


def told(endpoint, letter):
    """The reply, None if it is refused."""
    packed = letter.packed()
    packed.set_header(MessageHeaderKey.ORIGIN, SERVER)
    reply = endpoint.take(packed)
    good = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
    return opened(reply) if good else None


@pytest.mark.parametrize("size", [0, 7, 16, 17, 20, 45])
def test_a_message_in_letters_and_its_answer(endpoint, size):
    body = bytes(range(size))
    *_, reply = [told(endpoint, letter) for letter in letters(Message(b"head", body), "t")]
    assert (reply.head, reply.facts["size"]) == (b"head", size)
    found = bytes(reply.piece)
    while len(found) < size:
        found += told(endpoint, Letter({"token": "t", "wanted": len(found)})).piece
    assert found == body


@pytest.mark.parametrize("size", [7, 45])
def test_a_letter_that_comes_again_has_the_same_reply_and_is_answered_once(endpoint, size):
    """A link breaks after the silo has received a letter, and before the server has its reply."""
    body, calls = bytes(range(size)), []
    endpoint.worker.handle = lambda message: calls.append(message) or message
    for letter in letters(Message(b"head", body), "t"):
        first, again = told(endpoint, letter), told(endpoint, letter)
        assert (first.head, first.facts, bytes(first.piece)) == (
            again.head,
            again.facts,
            bytes(again.piece),
        )
    assert again.head == b"head"
    assert len(calls) == 1
    for _ in range(2):
        last = told(endpoint, Letter({"token": "t", "wanted": size - 5}))
        assert bytes(last.piece) == body[-5:]


def test_a_silo_that_computes_says_so_and_is_asked_again(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "HOLD_SECONDS", 0.05)
    go = threading.Event()
    endpoint.worker.handle = lambda message: go.wait(10) and message
    (letter,) = letters(Message(b"head", b"body"), "t")
    for asked in (letter, letter, Letter({"token": "t", "poll": True})):
        assert told(endpoint, asked).facts["working"]
    assert told(endpoint, Letter({"token": "u", "poll": True})) is None
    go.set()
    while (reply := told(endpoint, Letter({"token": "t", "poll": True}))).facts.get("working"):
        pass
    assert (reply.head, bytes(reply.piece)) == (b"head", b"body")


def test_a_silo_keeps_its_rate_and_asks_for_small_pieces(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "LEAST_PIECE", 8)
    limited = endpoint.worker.site.model_copy(update={"link": Link(rate=10)})
    endpoint.worker.site = limited
    begin = time.monotonic()
    body = bytes(range(12))
    replies = [told(endpoint, letter) for letter in letters(Message(b"head", body), "t", 10)]
    assert [reply.facts["most"] for reply in replies] == [10, 10, 10]
    found = b""
    while len(found) < 12:
        found += bytes(told(endpoint, Letter({"token": "t", "wanted": len(found)})).piece)
    assert found == body
    assert time.monotonic() - begin > 0.35  # 12 bytes each way, the first 10 of them at once


def test_a_silo_whose_own_file_is_wrong_says_so_and_no_more(tmp_path):
    file = tmp_path / "fafed.toml"
    file.write_text("folder = 3\n")
    at = ExchangeId("run", 0, 0, "a")
    hello = messages.write("hello", at, {}, EMPTY)
    endpoint = Endpoint(file, "a", SERVER, print)
    (letter,) = letters(hello, "t")
    answer = told(endpoint, letter)
    found = messages.read(Message(answer.head, b""), at, {"failed": {}}, 1000)
    assert found.facts == {"error": "ConfigError"}
    assert str(tmp_path).encode() not in answer.head
    file.write_text(f'folder = "{tmp_path}"\nallow = []\n[data]\nshare = true\n')
    assert messages.glance(told(endpoint, letter).head)["kind"] == "refused"  # it is read again


def test_letters_that_are_refused(endpoint):
    first, second, *_ = letters(Message(b"head", bytes(45)), "t")
    assert told(endpoint, second) is None  # before the first
    assert told(endpoint, first) is not None
    assert told(endpoint, second._replace(facts=second.facts | {"token": "u"})) is None
    assert told(endpoint, second._replace(facts=second.facts | {"at": 30})) is None
    assert told(endpoint, second._replace(piece=bytes(99))) is None
    assert told(endpoint, second._replace(head=b"head")) is None  # it is not whole
    assert told(endpoint, first._replace(facts=first.facts | {"size": 1001})) is None
    assert told(endpoint, first._replace(facts=first.facts | {"size": "45"})) is None
    for wanted in (-1, "0", None):
        assert told(endpoint, Letter({"token": "t", "wanted": wanted})) is None
    long = json.dumps({"head": 0, "piece": 1, "token": "t" * 5000, "at": 0, "size": 1})
    for facts in ("", "[]", "{}", '{"head": -1, "piece": 0}', '{"head": 9, "piece": 9}', long):
        reply = endpoint.take(CellMessage({"fafed": facts, MessageHeaderKey.ORIGIN: SERVER}, b"-"))
        assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.INVALID_REQUEST
