"""An experiment with all its values written out is the same experiment."""

from __future__ import annotations

import dataclasses

import pytest
from small import experiment

from fafed import ALGORITHMS
from fafed.experiments import assemble
from fafed.experiments.config import Experiment
from fafed.experiments.explicit import explicit


def made(tmp_path, **changes):
    return Experiment.from_dict(experiment(tmp_path, **changes))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_named_and_the_algorithm_is_the_same(tmp_path, name):
    short = made(tmp_path, algorithm={"name": name})
    long = explicit(short)
    for f in dataclasses.fields(ALGORITHMS[name]):
        value = getattr(ALGORITHMS[name], f.name, None)
        named = long.algorithm.options.get(f.name)
        assert named == (list(value) if isinstance(value, tuple) else value)
    assert long.algorithm_object(3) == short.algorithm_object(3)
    assert long.over_all_rounds == short.over_all_rounds
    assert explicit(long) == long
    assert Experiment.from_dict(long.to_dict()) == long  # as it arrives


def test_schedules_models_and_tables_are_written_out(tmp_path):
    short = made(
        tmp_path,
        algorithm={"name": "fedavg", "eta": {"schedule": "linear", "peak": 0.5, "warmup": 0.2}},
        model={"name": "resnet-gn", "width": 4},
        wire={"up": "topk"},
        privacy={"level": "example", "noise": 1.0, "clip": 2.0, "delta": 1e-3},
    )
    long = explicit(short)
    eta = {"schedule": "linear", "peak": 0.5, "warmup": 0.2, "end": 0.0}
    assert long.algorithm.options == {"eta": eta, "eta_g": 1.0, "server_momentum": 0.0}
    model = {"blocks": [1, 1, 1], "width": 4, "classes": 10, "groups": 2, "stride": 1}
    assert long.model.options == model
    assert long.wire == {"up": "topk", "share": 0.01, "error_feedback": True}
    assert long.privacy.items() >= {"secure": False, "bits": 64, "combine": False}.items()
    assert long.privacy_options() == short.privacy_options()
    assert long.wire_options() == short.wire_options()
    x0 = [assemble.model(e, text=False).x0 for e in (short, long)]
    assert x0[0].equal(x0[1])


def test_ones_own_model_is_left_as_it_is(tmp_path):
    assert explicit(made(tmp_path, model={"name": "mine:Net"})).model.options == {}
