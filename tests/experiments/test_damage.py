"""Damaged run directories: the right numbers or an error that names the file, and nothing lost."""

from __future__ import annotations

import json
import random
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import experiment, write_data
from typer.testing import CliRunner

from fafed import FafedError
from fafed.cli import app
from fafed.experiments import checkpoint
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.files import Damaged, unsealed

FILES = [
    *("records.jsonl", "experiment.toml", "environment.json", "clients.json"),
    *("checkpoints/round-0000005.safetensors", "checkpoints/round-0000004.safetensors"),
]


class Stop(Exception):
    pass


def stop_at(round):
    def look(record):
        if record.round == round:
            raise Stop

    return look


def begun(tmp_path, at=5, **changes):
    """A run of 8 rounds, broken off."""
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data", rounds=8, **changes))
    place = RunDir(tmp_path / "runs" / "one")
    with pytest.raises(Stop):
        execute(e, place, stop_at(at))
    return e, place


def call(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(done.exception, FafedError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def tried(do, *arguments):
    """What it gives, and what our error says."""
    try:
        return do(*arguments), None
    except FafedError as error:
        return None, str(error)


def numbers(place):
    return [{**record.to_dict(), "seconds": 0} for record in place.records()]


def content(place):
    return {
        str(path.relative_to(place.path)): path.read_bytes()
        for path in place.path.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def damaged(data, rng):
    """One accident, at a place that chance decides."""
    data, at = bytearray(data), rng.randrange(len(data))
    kind = rng.choice(["flip", "flip", "truncate", "zero", "double", "remove"])
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del data[at:]
    elif kind == "zero":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    else:  # a line again, or one less
        lines = bytes(data).splitlines(keepends=True)
        at = rng.randrange(len(lines))
        lines[at : at + 1] = [lines[at]] * 2 if kind == "double" else []
        data = b"".join(lines)
    return bytes(data)


def check(tmp_path, seeds):
    """Each damage in its own copy, beside a whole run that must be shown as ever."""
    e, place = begun(tmp_path)
    right, row = place.data(), json.loads(call("runs", "--runs", tmp_path / "runs", "--json"))[0]
    whole = RunDir(tmp_path / "whole")
    shutil.copytree(place.path, whole.path)
    execute(e, whole)
    calm = numbers(whole)
    for seed in seeds:
        rng, name = random.Random(seed), FILES[seed % len(FILES)]
        root = tmp_path / f"{seed}"
        hurt = RunDir(root / "hurt")
        shutil.copytree(place.path, hurt.path)
        shutil.copytree(place.path, root / "other")
        path = hurt.path / name
        path.write_bytes(damaged(path.read_bytes(), rng))
        before = content(hurt)
        shown, other = json.loads(call("runs", "--runs", root, "--json"))
        assert {**other, "run": row["run"]} == row
        if shown["state"] == "damaged":
            assert str(hurt.path) in shown["damage"]
        else:
            rounds = shown["rounds"] if name == "experiment.toml" else row["rounds"]
            assert shown == {**row, "run": str(hurt.path), "rounds": rounds}, seed
        data, _ = tried(hurt.data)
        if data:
            assert (data.records, data.counts) == (right.records, right.counts), seed
        _, error = tried(call, "resume", hurt.path, "--json")
        if error:
            assert str(hurt.path) in error, seed
            assert content(hurt) == before, seed
        else:
            rounds = hurt.experiment().rounds  # more or fewer of them are a wish
            length = max(rounds, 5) if name == "experiment.toml" else e.rounds
            assert numbers(hurt)[: e.rounds] == calm[:length], seed
        shutil.rmtree(root)


def test_no_damage_gives_a_wrong_number(tmp_path):
    check(tmp_path, range(24))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_hundreds_of_damages(tmp_path, part):
    check(tmp_path, range(1200 + part * 75, 1275 + part * 75))


def test_every_flip_in_a_record_shows(tmp_path):
    _, place = begun(tmp_path)
    path = place.path / "records.jsonl"
    data = path.read_bytes()
    right, start = place.records(), data.index(b"\n") + 1
    for at in range(start, data.index(b"\n", start)):
        for bit in (1, 16):
            path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            found, error = tried(place.records)
            assert f"{path}, line 2: " in error if error else found == right


def test_every_flip_in_the_header_of_a_checkpoint_shows(tmp_path):
    e, place = begun(tmp_path)
    path = checkpoint.found(place.checkpoints)[0]
    data = path.read_bytes()
    right = checkpoint.verify(path, e.digest)
    size = 8 + int.from_bytes(data[:8], "little")
    for at in range(0, size, 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found, error = tried(checkpoint.verify, path, e.digest)
        if error:
            assert str(path) in error
        else:
            assert set(found) == set(right)
            for name, leaf in right.items():
                assert leaf.dtype == found[name].dtype
                assert torch.equal(leaf, found[name])


def test_a_report_shows_the_others_and_names_what_is_damaged(tmp_path):
    _, place = begun(tmp_path)
    hurt = tmp_path / "runs" / "hurt" / "records.jsonl"
    shutil.copytree(place.path, hurt.parent)
    lines = hurt.read_text().splitlines(keepends=True)
    hurt.write_text("".join([*lines[:2], *lines[3:]]))
    made = json.loads(call("report", tmp_path / "runs", "-o", tmp_path / "report", "--json"))
    assert len(made["rows"]) == 1
    words = f"{hurt}, line 3: round 4 is where round 3 should be"
    assert words in made["damaged"]["hurt"]
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "hurt is left out, it is damaged" in page
    table = call("runs", "--runs", tmp_path / "runs")
    assert "5/8" in table
    assert "damaged" in table


def test_without_a_usable_checkpoint_nothing_is_written_over(tmp_path):
    e, place = begun(tmp_path)
    for path in checkpoint.found(place.checkpoints):
        path.write_bytes(path.read_bytes()[:200])
    before = content(place)
    with pytest.raises(FafedError, match=r"no checkpoint can be used.*--again"):
        execute(e, place)
    assert content(place) == before
    call("resume", place.path, "--again", "--json")
    assert place.finished()
    again = RunDir(tmp_path / "again")
    execute(e, again)
    assert numbers(place) == numbers(again)
    aside = place.path / "before-1"
    assert (aside / "records.jsonl").read_bytes() == before["records.jsonl"]
    for name, data in before.items():
        if name.startswith("checkpoints"):
            assert (aside / name).read_bytes() == data
    call("resume", place.path, "--again", "--json")  # also one that is finished
    assert (place.path / "before-2" / "records.jsonl").is_file()
    assert [row["state"] for row in json.loads(call("runs", "--runs", tmp_path, "--json"))] == [
        "finished",
        "finished",
    ]


def test_another_experiment_does_not_take_the_place_of_one(tmp_path):
    e, place = begun(tmp_path)
    before = content(place)
    other = e.with_algorithm("fafed", eta=0.06)
    with pytest.raises(FafedError, match="belongs to another experiment"):
        execute(other, place)
    assert content(place) == before
    (place.path / "experiment.toml").write_text(other.to_toml())
    with pytest.raises(FafedError, match=r"set experiment\.toml back"):
        call("resume", place.path)
    with pytest.raises(Damaged, match=r"experiment\.toml is not the one"):
        place.data()


def test_a_kill_before_the_first_checkpoint_begins_anew_and_keeps_the_records(tmp_path):
    e, place = begun(tmp_path, checkpoint_every=6)
    shutil.rmtree(place.checkpoints)
    before = (place.path / "records.jsonl").read_bytes()
    execute(e, place)
    assert place.finished()
    assert (place.path / "before-1" / "records.jsonl").read_bytes() == before


def test_more_rounds_are_a_wish(tmp_path):
    """Bit for bit as if there had been so many from the start."""
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data"))
    place, calm = RunDir(tmp_path / "run"), RunDir(tmp_path / "calm")
    execute(e, place)
    toml = place.path / "experiment.toml"
    toml.write_text(toml.read_text().replace("rounds = 6", "rounds = 9"))
    call("resume", place.path, "--json")
    execute(e.changed(rounds=9), calm)
    assert place.finished()
    assert numbers(place) == numbers(calm)
    ours, theirs = (
        checkpoint.verify(checkpoint.found(p.checkpoints)[0], e.digest) for p in (place, calm)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def made_old(place, rounds):
    """As fafed wrote it before there were checksums and versions of the digest."""
    e = place.experiment().changed(rounds=rounds)
    for name in ("environment.json", "clients.json"):
        path = place.path / name
        old = unsealed(json.loads(path.read_text()))
        old.pop("digest", None)
        path.write_text(json.dumps(old))
    path = place.path / "records.jsonl"
    old = [unsealed(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    for path in checkpoint.found(place.checkpoints):
        with checkpoint.safe_open(path, framework="pt") as file:
            header = unsealed(json.loads(file.metadata()["fafed"]))
        header["checksums"] = {name: what[0] for name, what in header.pop("tensors").items()}
        header |= {"format": 2, "digest": e.fingerprint}
        save_file(load_file(path), path, {"fafed": json.dumps(header)})


def test_runs_of_an_earlier_fafed_go_on(tmp_path):
    e, place = begun(tmp_path)
    calm = RunDir(tmp_path / "calm")
    execute(e, calm)
    made_old(place, e.rounds)
    assert len(place.data().records) == 5
    execute(e, place)
    assert numbers(place) == numbers(calm)
    lines = (place.path / "records.jsonl").read_text().splitlines()
    assert ["crc" in json.loads(line) for line in lines] == [False] * 5 + [True] * 3
    (place.path / "records.jsonl").write_text("\n".join([*lines[:6], lines[1], *lines[7:], ""]))
    with pytest.raises(Damaged, match="line 7: it has no checksum, but the line before has one"):
        place.records()


def test_more_rounds_for_a_run_of_an_earlier_fafed(tmp_path):
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data"))
    longer = e.changed(rounds=9)
    finished, stopped = RunDir(tmp_path / "finished"), RunDir(tmp_path / "stopped")
    execute(e, finished)
    with pytest.raises(Stop):
        execute(e, stopped, stop_at(4))
    for place in (finished, stopped):
        made_old(place, e.rounds)
    execute(longer, finished)
    assert len(numbers(finished)) == 9
    assert finished.experiment().rounds == 9
    with pytest.raises(FafedError, match="resume to that end, and raise them then"):
        execute(longer, stopped)
    execute(e, stopped)
    execute(longer, stopped)
    assert numbers(stopped) == numbers(finished)


@pytest.mark.parametrize(
    "resume", [execute, lambda e, place: call("resume", place.path)], ids=["library", "command"]
)
def test_damage_to_the_last_record_is_mended_from_the_checkpoint_before(resume, tmp_path):
    """The command's own look at the records must not stop it."""
    e, place = begun(tmp_path)
    calm = RunDir(tmp_path / "calm")
    execute(e, calm)
    path = place.path / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Damaged, match="ends with line 4, but there is a checkpoint of round 5"):
        place.data()
    resume(e, place)
    assert numbers(place) == numbers(calm)


def test_what_kills_have_left_is_swept(tmp_path):
    e, place = begun(tmp_path)
    for name in (".tmpAbC123", ".round-0000009.safetensors.part", "round-0000009.part"):
        (place.checkpoints / name).write_bytes(bytes(100))
    (place.path / ".records.jsonl.part").write_bytes(b"{")
    with place.locked(), pytest.raises(FafedError, match="in use"):  # not while another is at work
        execute(e, place)
    assert (place.checkpoints / ".tmpAbC123").exists()
    execute(e, place)
    left = {path.name for path in [*place.path.iterdir(), *place.checkpoints.iterdir()]}
    assert not [name for name in left if name.endswith(".part") or name.startswith(".tmp")]


# Signals, in this process: the moments are exact.


@pytest.fixture
def terminated():
    """SIGTERM is an exception, as in the command line."""

    class Terminated(BaseException):
        pass

    def note(number, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, note)
    yield Terminated
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_what_was_finished(tmp_path, terminated, number, within):
    from fafed.experiments.assemble import prepare

    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data", checkpoint_every=100))
    place, calm = RunDir(tmp_path / "run"), RunDir(tmp_path / "calm")
    execute(e, calm)

    def struck(experiment, engine):
        """The signal comes while the clients of round 5 compute."""
        prepared = prepare(experiment, engine)
        run, deliver = prepared.run, prepared.run.engine.deliver

        def there(*arguments):
            reply = deliver(*arguments)
            if run.state.round == 4:
                signal.raise_signal(number)
            return reply

        run.engine.deliver = there
        return prepared

    def look(record):
        if record.round == 4 and not within:
            signal.raise_signal(number)

    expected = KeyboardInterrupt if number is signal.SIGINT else terminated
    with pytest.raises(expected):
        execute(e, place, look, struck if within else None)
    assert [checkpoint.round_of(p) for p in checkpoint.found(place.checkpoints)] == [4]
    assert place.round() == 4
    again = []
    execute(e, place, lambda record: again.append(record.round))
    assert again == [5, 6]
    assert numbers(place) == numbers(calm)


def test_an_error_while_measuring_undoes_the_round(tmp_path):
    from fafed.experiments.assemble import prepare

    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data", checkpoint_every=100, eval_every=1))
    place, calm = RunDir(tmp_path / "run"), RunDir(tmp_path / "calm")
    execute(e, calm)

    def failing(experiment, engine):
        prepared = prepare(experiment, engine)
        run, measure = prepared.run, prepared.run.measure

        def there(*arguments):
            if run.state.round == 3:
                raise Stop
            return measure(*arguments)

        run.measure = there
        return prepared

    with pytest.raises(Stop):
        execute(e, place, prepare=failing)
    assert [checkpoint.round_of(p) for p in checkpoint.found(place.checkpoints)] == [3]
    execute(e, place)
    assert numbers(place) == numbers(calm)
