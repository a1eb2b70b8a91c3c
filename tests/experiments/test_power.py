"""After a power cut a run goes on: nothing that was synced is lost, and nothing else is trusted."""

from __future__ import annotations

import shutil

import pytest
from disk import Disk
from small import experiment, write_data

from fafed.experiments import checkpoint
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir


def numbers(place):
    return [{**record.to_dict(), "seconds": 0} for record in place.records()]


def cuts(tmp_path, monkeypatch, lag, **changes):
    """Run once; keep what a power cut at each moment would leave, and the round that is sure."""
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data", **changes))
    (tmp_path / "runs").mkdir()
    place, disk, kept = RunDir(tmp_path / "runs" / "run"), Disk(tmp_path / "runs"), []
    sure = 0  # the newest round whose checkpoint has been waited for

    def look(when):
        for kind in (disk.careful, disk.careless):
            target = tmp_path / f"cut-{len(kept):04d}"
            kind(target)
            kept.append((f"{kind.__name__} {when}", target, sure))

    def told(record):
        nonlocal sure
        if lag == 0 and record.round % e.checkpoint_every == 0:
            sure = record.round

    with monkeypatch.context() as patch:
        disk.watch(patch, look)
        execute(e, place, told, lag=lag)
    sure = e.rounds
    look("at the end")
    return e, place, kept


def recovered(e, calm, kept):
    for when, folder, sure in kept:
        place = RunDir(folder / "run")
        began = []
        if place.path.exists() and not place.finished():
            execute(e, place, lambda record, began=began: began.append(record.round))
        if not place.path.exists():
            assert sure == 0, when
            continue
        assert numbers(place) == calm, when
        assert (began[0] if began else e.rounds + 1) > sure, when
        shutil.rmtree(folder)


def test_a_run_survives_a_power_cut(tmp_path, monkeypatch):
    e, place, kept = cuts(tmp_path, monkeypatch, 0, rounds=3)
    calm = numbers(place)
    assert len(kept) > 50
    recovered(e, calm, kept[20::9])


def test_records_reach_the_disk_before_the_checkpoint_that_counts_on_them(tmp_path, monkeypatch):
    _, _, kept = cuts(tmp_path, monkeypatch, 0, rounds=3)
    for when, folder, _ in kept:
        place = RunDir(folder / "run")
        for path in checkpoint.found(place.checkpoints):
            if when.startswith("careful") and path.stat().st_size:
                assert place.round() >= checkpoint.round_of(path), when


def test_an_older_checkpoint_that_was_synced_is_kept_between_two_that_are(tmp_path, monkeypatch):
    """Rounds that are shorter than an fsync do not wait for one each."""
    e, place, kept = cuts(tmp_path, monkeypatch, 3600, rounds=5)
    calm = numbers(place)
    there = []

    def look(record):  # round 5 was waited for, 6 to 8 are not, 9 is
        there.append([checkpoint.round_of(path) for path in checkpoint.found(place.checkpoints)])

    execute(e.changed(rounds=9), place, look, lag=3600)
    assert there == [[6, 5], [7, 6, 5], [8, 7, 5], [9, 8]]
    recovered(e, calm, kept[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 3600])
@pytest.mark.parametrize("every", [1, 2])
def test_every_moment_of_a_power_cut(tmp_path, monkeypatch, lag, every):
    e, place, kept = cuts(tmp_path, monkeypatch, lag, rounds=5, checkpoint_every=every)
    recovered(e, numbers(place), kept)
