"""LEAF's files, written by the tests."""

import json

import pytest
import torch

from fafed.data import from_function
from fafed.data.leaf import CHARACTERS, femnist, shakespeare
from fafed.errors import ConfigError, DataError
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment


def write(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users}
    path.write_text(json.dumps(content))


def images(n, label=0):
    return {"x": [[i / 10] * 784 for i in range(n)], "y": [label] * n}


def text(n):
    return {"x": ["To be, or not to be".ljust(80)[i:] + "a" * i for i in range(n)], "y": ["b"] * n}


@pytest.fixture
def folder(tmp_path):
    """Two files with three writers, one of whom has no test example."""
    write(tmp_path / "train/all_data_1.json", {"f1": images(3, 61)})
    write(tmp_path / "train/all_data_0.json", {"f0": images(2), "f9": images(1)})
    write(tmp_path / "test/all_data_0.json", {"f0": images(1), "other": images(4), "f1": images(2)})
    return tmp_path


def test_each_writer_is_a_client(folder):
    clients, (inputs, targets) = femnist(str(folder))
    assert [len(y) for _, y in clients] == [2, 1, 3]  # files by name, users in their order
    x, y = clients[2]
    assert x.shape == (3, 1, 28, 28)
    assert x.dtype == torch.float32
    assert torch.equal(x[2], torch.full((1, 28, 28), 0.2))
    assert y.tolist() == [61] * 3
    assert inputs.shape == (3, 1, 28, 28)
    assert targets.dtype == torch.int64


def test_only_some_clients(folder):
    clients, (_, targets) = femnist(str(folder), clients=1)
    assert len(clients) == 1
    assert len(targets) == 1
    with pytest.raises(ConfigError, match="clients must be a positive integer, got 0"):
        femnist(str(folder), clients=0)


def test_characters_become_numbers(tmp_path):
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    write(tmp_path / "train/a.json", {"ROMEO": text(2)})
    write(tmp_path / "test/a.json", {"ROMEO": text(1)})
    ((x, y),), _ = shakespeare(str(tmp_path))
    assert "".join(CHARACTERS[i] for i in x[0]) == "To be, or not to be".ljust(80)
    assert [CHARACTERS[i] for i in y] == ["b", "b"]


def test_the_folder_of_datasets_is_the_default(folder, monkeypatch):
    monkeypatch.setenv("FAFED_DATA", str(folder.parent))
    folder.rename(folder.parent / "femnist")
    assert len(femnist()[0]) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train", "{", "x.json is not JSON.*fresh copy"),
        ("train", "[]", "x.json is not in LEAF's format"),
        ("train", '{"users": ["a"], "user_data": {}}', "x.json: user_data lacks user 'a'"),
        ("train", {"a": {"x": [[0.0] * 784]}}, "x.json: user 'a': 'y' is missing"),
        ("train", {"a": {"x": [[0.0] * 784], "y": []}}, "1 inputs and 0 targets"),
        ("train", {"a": {"x": [], "y": []}}, "no examples"),
        ("train", {"a": {"x": [[0.0] * 9], "y": [0]}}, "must be 784 numbers"),
        ("train", {"a": {"x": [[0.0] * 784], "y": [62]}}, "from 0 to 61"),
        ("train", {"f0": images(1)}, "user 'f0' is in .*train twice"),
    ],
)
def test_errors_name_the_file(folder, name, content, message):
    if isinstance(content, dict) and "y" not in next(iter(content.values())):
        content = json.dumps({"users": list(content), "user_data": content})
    if isinstance(content, dict):
        write(folder / name / "x.json", content)
    else:
        (folder / name / "x.json").write_text(content)
    with pytest.raises(DataError, match=message):
        femnist(str(folder))


def test_missing_files(folder, tmp_path):
    with pytest.raises(DataError, match=r"no .json file of femnist in .*set folder"):
        femnist(str(tmp_path / "nothing"))
    write(folder / "test/all_data_0.json", {"other": images(1)})
    with pytest.raises(DataError, match=r"preprocess\.sh -t sample"):
        femnist(str(folder))


def test_characters_that_leaf_does_not_have(tmp_path):
    for bad, message in (("\u00e9" + "a" * 79, "is not among the 80"), ("short", "of 80 char")):
        write(tmp_path / "train/a.json", {"A": {"x": [bad], "y": ["a"]}})
        with pytest.raises(DataError, match=message):
            shakespeare(str(tmp_path))


@pytest.mark.parametrize(("preset", "data"), [("femnist", images), ("shakespeare", text)])
def test_one_round_of_the_preset(preset, data, tmp_path):
    for part in ("train", "test"):
        write(tmp_path / part / "a.json", {f"u{i}": data(3) for i in range(2)})
    changes = ["participation=1.0", "local_steps=1", "batch_size=2", "rounds=1"]
    wanted = Experiment.read(preset, [*changes, f'data.options={{folder="{tmp_path}"}}'])
    record = prepare(wanted).run.round()
    assert record.clients == 2
    assert record.samples == 4


def test_the_function_of_an_experiment(folder):
    own = from_function("fafed.data.leaf:femnist", folder=str(folder))
    assert len(own.clients) == 3
