"""A shared normalisation of inputs: means and deviations over the rows of all clients."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from small import experiment, normalised
from typer.testing import CliRunner

import fafed
from fafed.cli import app
from fafed.data.normalise import (
    LARGEST,
    Normalisation,
    first,
    from_limbs,
    second,
    shared,
    to_limbs,
)
from fafed.errors import ConfigError, DataError, FafedError
from fafed.experiments import assemble, model_file
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir


def rows(*columns):
    return torch.tensor(np.stack(columns, 1), dtype=torch.float32)


def three_clients(mean=0.0):
    """Inputs of three clients that differ in size and place."""
    r = np.random.default_rng(0)
    sizes = (5, 40, 200)
    inputs = [rows(r.normal(mean + i, 1 + i, n), r.normal(0, 1e-9, n)) for i, n in enumerate(sizes)]
    return torch.cat(inputs), np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.1, -1e9 / 3, 2.0**190, -(2.0**-128), 1e-30])
def test_a_number_as_limbs_is_that_number_to_the_unit(value):
    (whole,) = from_limbs(to_limbs([value]))
    assert abs(Fraction(whole, 2**128) - Fraction(value)) <= Fraction(1, 2**129)


def test_means_and_deviations_are_those_of_all_rows():
    inputs, parts = three_clients()
    found = shared(inputs, parts)
    numbers = inputs.double().numpy()
    np.testing.assert_allclose(found.centre, numbers.mean(0), rtol=1e-13)
    np.testing.assert_allclose(found.width, numbers.std(0), rtol=1e-13)
    done = found.apply(inputs).double()
    assert done.mean(0).abs().max() < 1e-6
    torch.testing.assert_close(done.std(0, correction=0), torch.ones(2).double(), rtol=1e-6, atol=0)


def test_the_order_of_the_clients_does_not_change_a_bit():
    inputs, parts = three_clients(mean=0.1)
    found = shared(inputs, parts)
    assert found == shared(inputs, parts[::-1])
    float64 = sum(inputs[torch.from_numpy(p)].double().sum(0) for p in parts)
    assert float64.tolist() != [sum(from_limbs(first(inputs, ()))[1:])]  # another kind of sum


def test_a_large_mean_does_not_swallow_a_deviation():
    inputs, parts = three_clients(mean=3e6)
    found, numbers = shared(inputs, parts), inputs.double().numpy()
    assert found.width[0] == pytest.approx(numbers[:, 0].std(), rel=1e-12)
    one_pass = (numbers**2).mean(0) - numbers.mean(0) ** 2  # what two exchanges avoid
    assert one_pass[0] ** 0.5 != pytest.approx(found.width[0], rel=1e-7)


def test_an_input_that_is_constant_has_width_one():
    inputs = rows(np.full(30, 0.1), np.zeros(30), np.full(30, -7e5), np.arange(30))
    found = shared(inputs, [np.arange(10), np.arange(10, 30)])
    assert found.width[:3] == (1.0, 1.0, 1.0)
    assert found.width[3] > 1
    assert torch.equal(found.apply(inputs)[:, :3], torch.zeros(30, 3))


def test_columns_of_a_category_stay_as_they_are_and_are_not_sent():
    inputs = rows([1.0, 0.0, 1.0, 1.0], [5.0, 6.0, 7.0, 8.0])
    found = shared(inputs, [np.arange(4)], (False, True))
    assert (found.centre[0], found.width[0]) == (0.0, 1.0)
    assert from_limbs(first(inputs, (False, True)))[1] == 0
    assert from_limbs(second(inputs, (0.5, 6.5), (False, True)))[0] == 0
    assert torch.equal(found.apply(inputs)[:, 0], inputs[:, 0])


def test_inputs_that_cannot_be_normalised():
    with pytest.raises(DataError, match="beyond 3e\\+23"):
        first(rows([2 * LARGEST]))
    with pytest.raises(ConfigError, match="make 3 inputs, got 1"):
        first(rows([1.0]), (True, True, True))
    with pytest.raises(ConfigError, match="3 numbers in each row"):
        Normalisation((0.0,) * 3, (1.0,) * 3).apply(torch.zeros(4, 2))
    for wrong in ({}, {"centre": [0.0], "width": [0.0]}, {"centre": [1e30], "width": [1.0]}):
        with pytest.raises(ConfigError):
            Normalisation.from_dict(wrong)


# Experiments.


def test_a_run_trains_and_tests_on_normalised_inputs_and_its_model_takes_them_as_they_are(tmp_path):
    found = normalised(tmp_path, rounds=20, algorithm={"name": "fedavg", "eta": 0.1})
    place = RunDir(tmp_path / "run")
    execute(found, place)
    accuracy = place.records()[-1].test["accuracy"]
    assert accuracy > 0.85
    model = fafed.load(place.path)
    test = np.load(tmp_path / "data" / "test.npz")
    inputs = torch.tensor(test["inputs"], dtype=torch.float32)
    right = (model(inputs).argmax(1).numpy() == test["targets"]).mean()
    assert right == pytest.approx(accuracy)
    told = json.loads((place.path / "normalisation.json").read_text())
    assert model[0].centre.tolist() == told["centre"]
    file = tmp_path / "model.safetensors"
    done = CliRunner().invoke(app, ["export", "model", str(place.path), "-o", str(file)])
    assert done.exit_code == 0, done.output
    exported = model_file.read(file)
    assert exported.facts["normalisation"] == {key: told[key] for key in ("centre", "width")}
    assert set(exported.tensors) == set(model[1].state_dict())  # the names are the model's own


def test_rows_that_are_held_out_count_so_no_seed_shows_a_row(tmp_path):
    plain = assemble.shard(normalised(tmp_path))
    for seed in (1, 2):
        held = {"validation": 0.2, "client_test": 0.2}
        other = assemble.shard(normalised(tmp_path, seed=seed, data=held))
        assert other.normalisation == plain.normalisation
        (batch, *_) = other.client_test[0]()
        assert batch.data[0].abs().max() < 10  # normalised, too


def test_a_run_whose_data_has_changed_does_not_go_on(tmp_path):
    found, place = normalised(tmp_path), RunDir(tmp_path / "run")
    execute(found, place)
    path = tmp_path / "data" / "client-1.npz"
    content = dict(np.load(path))
    content["inputs"][0] *= 3
    np.savez(path, **content)
    with pytest.raises(FafedError, match="its data has changed"):
        execute(found.changed(rounds=6), place)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"name": "mnist", "normalise": "shared"}}, "normalise is for tables of your own"),
        ({"data": {"folder": "x", "normalise": "own"}}, "normalise"),
        (
            {"privacy": {"level": "example", "noise": 1.0, "clip": 1.0, "delta": 1e-3}},
            "shows exact means of the clients' rows, without noise",
        ),
    ],
)
def test_experiments_that_are_refused(changes, words, tmp_path):
    data = {"folder": "x", "normalise": "shared"}
    with pytest.raises(ConfigError, match=words):
        Experiment.from_dict(experiment(tmp_path) | {"data": data} | changes)


def test_images_are_refused(tmp_path):
    found = normalised(tmp_path)
    for path in (tmp_path / "data").glob("*.npz"):
        content = dict(np.load(path))
        np.savez(path, inputs=content["inputs"].reshape(-1, 2, 3), targets=content["targets"])
    with pytest.raises(ConfigError, match="is for tables"):
        assemble.shard(found)
