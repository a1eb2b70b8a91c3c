"""A run that began with a default that has been replaced does not go on with the new one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from small import experiment, write_data

from fafed import ALGORITHMS, FafedError, FedAvg
from fafed.algorithms import earlier as algorithms_earlier
from fafed.algorithms.earlier import EARLIER
from fafed.core.hyper import above, hyper
from fafed.core.schedules import Rate
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir


@dataclass(frozen=True)
class Earlier(FedAvg):
    eta: Rate = hyper(EARLIER["fedavg"]["eta"], above(0, schedule=True), "the local step size")


def losses(place):
    return [record.train_loss for record in place.records()]


def test_a_run_of_before_goes_on_only_if_its_file_names_the_earlier_default(tmp_path, monkeypatch):
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data", algorithm={"name": "fedavg"}))
    place, calm = RunDir(tmp_path / "run"), RunDir(tmp_path / "calm")

    class Stop(Exception):
        pass

    def stop(record):
        if record.round == 3:
            raise Stop

    with monkeypatch.context() as before:
        before.setattr(algorithms_earlier, "EARLIER", {})
        before.setitem(ALGORITHMS, "fedavg", Earlier)
        with pytest.raises(Stop):
            execute(e, place, stop)
        then = e.digest
    assert place.experiment() == e
    assert then == e.digest_before != e.digest
    assert place.data().records  # a report still reads it
    with pytest.raises(FafedError, match=r"had eta = 0.01; now they have eta = 0.1.*--again"):
        execute(e, place)
    assert place.round() == 3
    named = e.with_algorithm("fedavg", eta=0.01)
    execute(named, place)
    execute(named, calm)
    assert losses(place) == losses(calm)
    assert RunDir(place.path).data().finished


def test_what_is_not_named_counts_as_todays_default():
    base = experiment("data")
    plain, named, old = (
        Experiment.from_dict(base | {"algorithm": {"name": "fedavg", **options}})
        for options in ({}, {"eta": FedAvg().eta}, {"eta": 0.01})
    )
    assert (plain.digest, plain.label) == (named.digest, named.label)
    assert plain.digest != old.digest
    assert plain.digest_before in old.earlier_digests
    assert not plain.earlier_digests
    assert named.digest_before == named.digest
    assert len(Experiment.from_dict(base | {"algorithm": {"name": "fedams"}}).earlier_digests) == 0
    both = {"name": "fedams", **EARLIER["fedams"]}
    assert len(Experiment.from_dict(base | {"algorithm": both}).earlier_digests) == 3


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_defaults_are_other_ones(name):
    today = ALGORITHMS[name]()
    assert all(getattr(today, key) != value for key, value in EARLIER[name].items())
