"""Models take the sizes of the data where the experiment leaves them out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small import experiment, write_data

import fafed
from fafed.errors import ConfigError, DataError
from fafed.experiments import model_options
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos.transports.flower.export import export

README = Path(__file__).parents[2] / "README.md"


def small(tmp_path, model, **changes):
    write_data(tmp_path / "data", 2)
    return Experiment.from_dict(
        experiment(tmp_path / "data", rounds=2, engine="loop", model=model, **changes)
    )


@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_sizes_that_are_left_out_are_those_of_the_data(tmp_path, name):
    found = small(tmp_path, {"name": name})
    given = small(tmp_path, {"name": name, "inputs": 6, "outputs": 3})
    here, there = RunDir(tmp_path / "here"), RunDir(tmp_path / "there")
    execute(found, here)
    execute(given, there)
    one, other = (fafed.load(place.path).state_dict() for place in (here, there))
    assert all(torch.equal(one[key], other[key]) for key in other)
    assert here.experiment() == found  # as it was written: it is the same run
    execute(found.changed(rounds=3), here)  # and goes on
    assert fafed.load(here.path)(torch.zeros(1, 6)).shape == (1, 3)


def test_the_models_defaults_are_not_written_down(tmp_path):
    content = {"name": "softmax"}
    source = prepare(small(tmp_path, content | {"inputs": 6, "outputs": 3})).shards.source
    wide = source.pool[0].new_zeros(len(source.pool[0]), 1, 28, 28)
    source.pool = (wide, source.pool[1])
    assert model_options.found(small(tmp_path, content), source, {}, 10) == {}
    assert model_options.found(small(tmp_path, content), source) == {"outputs": 3}
    assert model_options.found(small(tmp_path, {"name": "fashion-cnn"}), source) == {}


def test_a_class_that_only_the_test_set_has_counts(tmp_path):
    found = small(tmp_path, {"name": "softmax"})
    x, y = np.zeros((4, 6), np.float32), np.array([0, 1, 2, 4])
    np.savez(tmp_path / "data" / "test.npz", inputs=x, targets=y)
    assert prepare(found).options == {"inputs": 6, "outputs": 5}


def test_other_sizes_are_refused_with_the_cure(tmp_path):
    with pytest.raises(DataError, match=r"has 6 numbers, .*takes 13: set inputs = 6 in \[model\]"):
        prepare(small(tmp_path, {"name": "softmax", "inputs": 13}))


def test_the_first_page_of_the_readme_runs_with_softmax(tmp_path, monkeypatch):
    (text,) = (b for b in README.read_text("utf-8").split("```toml\n") if 'name = "my_mod' in b)
    text = text.split("```")[0].replace('"my_models:Net"', '"softmax"')
    (tmp_path / "first.toml").write_text(text, "utf-8")
    write_data(tmp_path / "hospitals", 2)
    monkeypatch.chdir(tmp_path)
    found = Experiment.read("first.toml", ["rounds=1"])
    (record,) = prepare(found).run
    assert record.test["accuracy"] > 0


def test_silos_need_the_sizes(tmp_path):
    """The server sees no data. A named dataset is the experiment's own, and can be counted."""
    found = small(tmp_path, {"name": "mlp", "inputs": 6})
    with pytest.raises(ConfigError, match=r"needs outputs in \[model\].*`fafed silos check`"):
        export([found], tmp_path, ["a", "b"])
    model_options.require_sizes(found.changed(data={"name": "fashion-mnist"}))
    model_options.require_sizes(found.changed(model={"name": "lstm"}))


def test_a_try_out_over_silos_finds_them(tmp_path):
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")
    from fafed.silos.transports.nvflare.try_out import for_silos

    made = for_silos(small(tmp_path, {"name": "softmax"}), 2)
    assert made.model.options == {"inputs": 6, "outputs": 3}
