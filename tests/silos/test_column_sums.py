"""Silos find a shared normalisation before the first round: the bits of the simulation, open and
under secure aggregation, and what a silo refuses."""

from __future__ import annotations

import json

import pytest
import torch
from secure_federation import Recording, federation, secure_worker
from silo_tools import NAMES, final, local_federation, run
from small import normalised

import fafed
from fafed.data.normalise import first, from_limbs
from fafed.errors import ConfigError
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import rehearsal
from fafed.silos.server import TooFew, Unfit
from fafed.silos.site import Site
from fafed.silos.worker import Worker

SMALL = {"min_rows": 20, "min_batch_size": 5, "max_batch_share": 0.9}  # 30 rows each
OPEN = {"limits": {**SMALL, "column_sums": "open"}}
SECURE = {"limits": SMALL}


def simulated(found, tmp_path):
    place = RunDir(tmp_path / "simulated")
    execute(found, place)
    return place


def own_folders(tmp_path):
    """Each silo's own folder with its own file."""
    found = {}
    for i, name in enumerate(NAMES):
        folder = tmp_path / "own" / name
        folder.mkdir(parents=True)
        (tmp_path / "data" / f"client-{i}.npz").rename(folder / "records.npz")
        found[name] = {"data": {"folder": str(folder)}, "allow": ["softmax"]}
    return found


def same(here, there):
    assert torch.equal(final(here), final(there))
    for a, b in zip(here.records(), there.records(), strict=True):
        assert a.train_loss == b.train_loss
    assert here.json("normalisation.json") == there.json("normalisation.json")


def opened(tmp_path, **changes):
    found = normalised(tmp_path, **changes)
    here = simulated(found, tmp_path)
    own = own_folders(tmp_path)
    wire = local_federation(tmp_path, **OPEN)
    for name, more in own.items():
        site = Site.model_validate({"folder": tmp_path / name, **more, **OPEN})
        wire.workers[name] = Worker(name, site)
    return found, here, wire


def secured(tmp_path, **changes):
    privacy = {"secure": True, **changes.pop("privacy", {})}
    found = normalised(tmp_path, privacy=privacy, **changes)
    here = simulated(found, tmp_path)
    own = own_folders(tmp_path)
    workers = {n: secure_worker(tmp_path, n, NAMES, **SECURE, **own[n]) for n in NAMES}
    return found, here, Recording(workers)


@pytest.mark.parametrize("changes", [{}, {"data": {"validation": 0.2}}, {"weights": "examples"}])
def test_open_silos_find_the_bits_of_the_simulation(changes, tmp_path):
    found, here, wire = opened(tmp_path, **changes)
    there = run(found, tmp_path, wire)
    same(here, there)
    sent = [json.loads(x) for x in (tmp_path / "a" / "audit.jsonl").read_text().splitlines()]
    kinds = [x["kind"] for x in sent if x["direction"] == "sent"]
    assert kinds[:4] == ["welcome", "sums", "sums", "welcome"]
    assert "sums" not in kinds[4:]
    silo = fafed.load(next((tmp_path / "b" / "runs").iterdir()))
    raw = torch.randn(3, 6) * 1e4
    assert torch.equal(silo(raw), fafed.load(there.path)(raw))


@pytest.mark.parametrize("bits", [64, 32])
def test_a_secure_sum_finds_the_same_bits_and_shows_no_silo(bits, tmp_path):
    found, here, wire = secured(tmp_path, privacy={"bits": bits, "first_bound": 64.0})
    inputs = wire.workers["b"].site.rows(found, 1)[0]
    clear = torch.from_numpy(first(inputs)).to(torch.int64 if bits == 64 else torch.int32)
    same(here, run(found, tmp_path, wire))
    assert not any(b'"sums"' in answer.head for _, _, answer in wire.received)
    masked = [a for silo, kind, a in wire.received if (silo, kind) == ("b", "masked")]
    assert len(masked[0].body) == clear.numel() * bits // 8
    assert clear.numpy().tobytes() not in {bytes(answer.body) for answer in masked}


def test_silos_with_a_share_of_the_experiments_data(tmp_path):
    found = normalised(tmp_path)
    here = simulated(found, tmp_path)
    wire = local_federation(tmp_path, allow=["softmax", str(tmp_path / "data")])
    there = run(found, tmp_path, wire)
    same(here, there)
    assert here.records()[-1].test == there.records()[-1].test
    wire = federation(tmp_path / "masked", NAMES, allow=["softmax", str(tmp_path / "data")])
    there = run(found.changed(privacy={"secure": True}), tmp_path / "masked", wire)
    assert here.json("normalisation.json") == there.json("normalisation.json")


class Stop(Exception):
    pass


def test_a_stopped_run_goes_on_with_the_numbers_it_has(tmp_path):
    found, here, wire = opened(tmp_path)

    def stop(record):
        if record.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(found, tmp_path, wire, stop)
    for name, worker in wire.workers.items():
        wire.workers[name] = Worker(name, worker.site)
    same(here, run(found, tmp_path, wire))
    told = (tmp_path / "a" / "audit.jsonl").read_text()
    assert told.count('"kind": "sums"') == 4  # two requests, two answers


@pytest.mark.parametrize("make", [opened, secured])
def test_all_silos_are_needed_and_a_new_start_asks_them_again(make, tmp_path):
    found, here, wire = make(tmp_path)
    gone = []
    ask = wire.ask

    def lose(requests, *rest):
        kinds = {json.loads(request.head)["kind"] for request in requests.values()}
        if not gone and kinds & {"sums", "masked"}:
            gone.append(kinds)
            requests = {silo: one for silo, one in requests.items() if silo != "c"}
        return ask(requests, *rest)

    wire.ask = lose
    with pytest.raises(TooFew, match="c did not send the sums"):
        run(found, tmp_path, wire)
    assert not (tmp_path / "run" / "silos.json").exists()
    same(here, run(found, tmp_path, wire))


@pytest.mark.parametrize(
    ("limit", "secure", "words"),
    [
        (None, False, "column_sums = 'secure': add \\[privacy\\] secure = true"),
        ("never", False, "column_sums = 'never': leave normalise out"),
        ("never", True, "column_sums = 'never': leave normalise out"),
    ],
)
def test_a_silo_that_does_not_show_sums_takes_no_part(limit, secure, words, tmp_path):
    found, _, wire = (secured if secure else opened)(tmp_path)
    limits = SMALL | ({"column_sums": limit} if limit else {})
    site = wire.workers["b"].site
    changed = site.model_copy(update={"limits": type(site.limits).model_validate(limits)})
    wire.workers["b"] = Worker("b", changed, wire.workers["b"].kit)
    with pytest.raises(Unfit, match=words):
        run(found, tmp_path, wire)


def lying(wire, change):
    """A server that changes the normalisation in what it sends."""
    ask = wire.ask

    def spoilt(requests, *rest):
        for silo, request in requests.items():
            head = json.loads(request.head)
            change(head)
            requests[silo] = request._replace(head=json.dumps(head).encode())
        return ask(requests, *rest)

    wire.ask = spoilt


def test_a_normalisation_that_the_server_has_made_up_is_refused(tmp_path):
    """With a tiny width it could choose which rows decide the update."""
    found, _, wire = opened(tmp_path)

    def narrow(head):
        if told := head["facts"].get("normalisation"):
            told["width"][2] /= 1e3

    lying(wire, narrow)
    with pytest.raises(Unfit, match="far away from the centre"):
        run(found, tmp_path, wire)


def test_a_normalisation_that_changes_within_a_run_is_refused(tmp_path):
    found, _, wire = opened(tmp_path)

    def stop(record):
        raise Stop

    with pytest.raises(Stop):
        run(found, tmp_path, wire, stop)

    def shift(head):
        if told := head["facts"].get("normalisation"):
            told["centre"][0] += 1.0

    lying(wire, shift)
    with pytest.raises(TooFew, match="it changes the normalisation"):
        run(found, tmp_path, wire)


@pytest.mark.parametrize(
    ("exchange", "words"), [(2, "there are no sums in exchange 2"), (1, "expected")]
)
def test_other_sums_are_refused(exchange, words, tmp_path):
    found, _, wire = opened(tmp_path)

    def other(head):
        if head["kind"] == "sums" and head["exchange"] == 0:
            head["exchange"] = exchange

    lying(wire, other)
    with pytest.raises((TooFew, Unfit)):
        run(found, tmp_path, wire)
    assert words in (tmp_path / "a" / "log.txt").read_text()


def test_a_silo_that_claims_too_many_rows_is_named(tmp_path):
    found, _, wire = opened(tmp_path)

    def claim(silo, answer):
        head = json.loads(answer.head)
        if silo == "c" and head["kind"] == "sums" and head["exchange"] == 0:
            body = torch.frombuffer(bytearray(answer.body), dtype=torch.int64).clone()
            body[8] *= 1000  # the limb of 2^0 of the number of rows
            from fafed.silos import messages

            at = messages.ExchangeId.from_head(messages.glance(answer.head))
            return messages.write("sums", at, {}, messages.pack((body.reshape(-1, 20),)))
        return answer

    wire.spoil = claim
    with pytest.raises(Unfit, match=r"^c: "):
        run(found, tmp_path, wire)


def test_what_would_leave_is_shown_before(tmp_path):
    found, _, wire = opened(tmp_path)
    done = rehearsal.rehearse(found, wire.workers["a"].site, "a")
    sums = [one for one in done.leaving if one.kind == "sums"]
    assert [one.tensors for one in sums] == [["0 int64 [7, 20]"], ["0 int64 [6, 20]"]]
    closed = wire.workers["a"].site.limits.model_copy(update={"column_sums": "secure"})
    site = wire.workers["a"].site.model_copy(update={"limits": closed})
    with pytest.raises(ConfigError, match="column_sums"):
        rehearsal.rehearse(found, site, "a")
    masked = found.changed(privacy={"secure": True})
    assert rehearsal.rehearse(masked, site, "a").train == 30


def test_the_sums_of_a_silo_are_those_of_its_rows(tmp_path):
    found, _, wire = opened(tmp_path)
    rows, _ = wire.workers["a"].site.rows(found, 0)
    count, *sums = from_limbs(first(rows))
    assert count / 2**128 == len(rows) == 30
    assert [one / 2**128 for one in sums] == pytest.approx(rows.double().sum(0).tolist())
