"""From an experiment to a run, on real data where it is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small import experiment, write_data

from fafed import ConfigError, DataError
from fafed import data as datasets
from fafed.data.sources.base import ClientBatches
from fafed.experiments.assemble import prepare, shard
from fafed.experiments.config import Experiment


def needs(name):
    here = {item.name: item.present for item in datasets.status()}
    if not here[name]:
        pytest.skip(f"{name} is not here: fafed data get {name}, or fafed data import {name} DIR")


def test_fashion_mnist_learns_in_two_rounds():
    changes = ["rounds=2", "data.clients=4", "eval_every=1", "algorithm={name='fedavg', eta=0.1}"]
    e = Experiment.read("fashion-mnist-high", changes)
    prepared = prepare(e)
    first, second = prepared.run
    assert second.train_loss < first.train_loss < 2.5
    assert 0.2 < second.test["accuracy"] < 0.9


def test_held_out_data_is_nobodys():
    e = Experiment.read("fashion-mnist-moderate", ["data.validation=0.1", "data.clients=5"])
    shards = shard(e)
    used = np.concatenate(shards.source.parts)
    assert len(used) == len(set(used.tolist())) == 54_000
    held = torch.cat([batch.data[1] for batch in shards.measured["validation"]()])
    assert len(held) == 6_000
    assert sum(map(sum, shards.counts)) == 54_000
    other = shard(e.changed(seed=1))
    assert not np.array_equal(shards.source.parts[0], other.source.parts[0])


def test_own_folder_with_validation(tmp_path):
    write_data(tmp_path)
    wanted = experiment(tmp_path) | {"data": {"folder": str(tmp_path), "validation": 0.2}}
    prepared = prepare(Experiment.from_dict(wanted))
    assert prepared.shards.source.examples == (24,) * 4
    *_, last = prepared.run
    assert set(last.validation) == set(last.test) == {"loss", "accuracy"}


def test_labels_of_own_test_data_are_looked_at_before_the_first_round(tmp_path):
    write_data(tmp_path)
    found = dict(np.load(tmp_path / "test.npz"))
    np.savez(tmp_path / "test.npz", **found | {"targets": found["targets"] + 1})
    with pytest.raises(DataError, match="test has the label 3, but the model has 3 outputs"):
        prepare(Experiment.from_dict(experiment(tmp_path)))


def test_own_function_and_model(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def clients(n):\n"
        "    x = torch.arange(12.0).reshape(6, 2); y = x.sum(1)\n"
        "    return [(x / 10, y / 10)] * n, None\n"
        "class Line(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.w = torch.nn.Linear(2, 1)\n"
        "    def forward(self, x):\n"
        "        return self.w(x)[:, 0]\n"
        "def half(o, y):\n"
        "    return ((o - y) ** 2).mean() / 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    e = Experiment.from_dict(
        {
            "rounds": 3,
            "batch_size": "full",
            "loss": "mine:half",
            "metrics": [],
            "data": {"function": "mine:clients", "options": {"n": 3}},
            "model": {"name": "mine:Line"},
            "algorithm": {"name": "fedavg", "eta": 0.1},
        }
    )
    prepared = prepare(e)
    records = list(prepared.run)
    assert records[-1].train_loss < records[0].train_loss
    assert prepared.shards.counts is None


def test_what_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FAFED_DATA", str(tmp_path))
    with pytest.raises(DataError, match="fafed data get mnist"):
        shard(Experiment.read("mnist-low"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("loss=cross-entropy", "did you mean 'cross_entropy'"),
        ("metrics=['acuracy']", "did you mean 'accuracy'"),
        ("model.name=fashoin-cnn", "did you mean 'fashion-cnn'"),
        ("model.width=3", "no option 'width'"),
    ],
)
def test_names_that_are_nearly_right(change, words):
    with pytest.raises(ConfigError, match=words):
        prepare(Experiment.read("fashion-mnist-high", [change]))


@pytest.mark.parametrize("name", ["mnist-high", "cifar-10-moderate"])
def test_other_images(name):
    e = Experiment.read(name, ["rounds=1", "local_steps=1", "batch_size=4", "data.clients=4"])
    needs(e.data.name)
    (record,) = prepare(e).run
    assert math.isfinite(record.test["loss"])


def test_language_model_carries_its_state():
    needs("wikitext-2")
    changes = ["rounds=2", "data.clients=2", "batch_size=2", "local_steps=2", "data.bptt=5"]
    changes += ["model.embedding=8", "model.hidden=8", "eval_every=100", "opening_batch_size=2"]
    e = Experiment.read("wikitext-2", changes)
    prepared = prepare(e)
    run = prepared.run
    run.measure = None  # the held-out text is long
    first, second = run
    assert first.train_loss == pytest.approx(math.log(33_278), abs=0.2)
    hidden = run.engine.states[0].hidden
    assert all(float(part.abs().sum()) > 0 for part in hidden)
    (batch,) = ClientBatches(
        prepared.shards.source.gather, prepared.shards.source.draw(("round",), 0, 4, 1)
    )
    assert not bool(batch.fresh)
    assert second.round == 2


def test_a_shorter_text_with_fewer_words():
    needs("wikitext-2")
    changes = ["data.words=50", "data.tokens=1000", "data.clients=2", "batch_size=2", "data.bptt=5"]
    changes += ["model.vocabulary=50", "model.embedding=8", "model.hidden=8", "rounds=1"]
    shards = shard(Experiment.read("wikitext-2", changes))
    assert shards.source.examples == (500, 500)
    assert int(shards.source.tokens.max()) < 50
    (first, *_) = shards.measured["test"]()
    assert int(first.data[0].max()) < 50
    few = Experiment.read("wikitext-2", [*changes, "model.vocabulary=49"])
    with pytest.raises(ConfigError, match=r"50 words, the model 'lstm' 49: set vocabulary = 50"):
        shard(few)
    images = Experiment.read("fashion-mnist-high", ["data.words=50"])
    with pytest.raises(ConfigError, match="fashion-mnist has images"):
        shard(images)


def test_test_data_of_each_client(tmp_path):
    write_data(tmp_path, clients=3, examples=30)
    e = Experiment.from_dict(
        experiment(tmp_path, rounds=2, metrics=["accuracy", "f1"])
        | {"data": {"folder": str(tmp_path), "client_test": 0.2}, "eval_batch_size": 7}
    )
    prepared = prepare(e)
    assert prepared.shards.source.examples == (24, 24, 24)
    _, last = prepared.run
    assert set(last.clients_test) == {"loss", "accuracy", "f1"}
    assert last.clients_test["f1"]["clients"] == 3
    assert len(last.client_values["clients_test"]["f1"]) == 3
    assert set(last.test) == {"loss", "accuracy", "f1"}


def test_the_default_metric_is_left_out_where_there_are_no_classes(tmp_path, monkeypatch):
    (tmp_path / "line.py").write_text(
        "import torch\n"
        "def clients():\n"
        "    x = torch.arange(12.0).reshape(6, 2) / 10\n"
        "    return [(x, x[:, :1])] * 2, (x, x[:, :1])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    content = {
        "rounds": 1,
        "batch_size": "full",
        "loss": "mse",
        "data": {"function": "line:clients"},
        "model": {"name": "softmax", "inputs": 2, "outputs": 1},
        "algorithm": {"name": "fedavg"},
    }
    (record,) = prepare(Experiment.from_dict(content)).run
    assert set(record.test) == {"loss"}
    (record,) = prepare(Experiment.from_dict(content | {"metrics": ["mae", "mse"]})).run
    assert record.test["mse"] == pytest.approx(record.test["loss"])
    with pytest.raises(ConfigError, match="accuracy needs class numbers"):
        prepare(Experiment.from_dict(content | {"metrics": ["accuracy", "mse"]}))


@pytest.mark.parametrize("kind", ["float", "int"])
def test_a_regression_from_files(kind, tmp_path):
    """Targets are (examples,), outputs (examples, 1): each is compared with its own."""
    x = np.random.default_rng(0).normal(size=(40, 2)).round(1)
    y = (10 * x @ [2, -1]).round().astype(kind)
    for name in ("a", "b", "test"):
        table = np.column_stack([x, y])
        np.savetxt(tmp_path / f"{name}.csv", table, "%g", ",", header="p,q,y", comments="")
    content = {
        "rounds": 30,
        "batch_size": "full",
        "loss": "mse",
        "metrics": ["mse"],
        "data": {"folder": str(tmp_path)},
        "model": {"name": "softmax"},  # outputs: one, found from the data
        "algorithm": {"name": "fedavg", "eta": 0.2},
    }
    *_, last = prepare(Experiment.from_dict(content)).run
    assert last.test["mse"] == pytest.approx(last.test["loss"])
    assert last.test["loss"] < 0.1 * y.var()


def lazy(tmp_path, kind="Augmented", **data):
    (tmp_path / "users_lazy.py").write_text(
        "from lazy_data import Augmented, Fixed\n"
        "def load(kind='Augmented'):\n"
        "    kinds = {'Augmented': Augmented, 'Fixed': Fixed}\n"
        "    return [kinds[kind](client, 20) for client in range(3)], Fixed(9, 30)\n"
    )
    return {
        "rounds": 2,
        "local_steps": 3,
        "batch_size": 5,
        "data": {"function": "users_lazy:load", "options": {"kind": kind}, **data},
        "model": {"name": "softmax", "inputs": 3, "outputs": 2},
        "algorithm": {"name": "fafed", "eta": 0.05},
    }


def test_datasets_of_a_function_are_read_batch_by_batch(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    content = lazy(tmp_path, validation=0.2, client_test=0.25)
    prepared = prepare(Experiment.from_dict(content))
    assert prepared.run.engine.name == "loop"
    assert prepared.shards.source.examples == (12,) * 3
    *_, last = prepared.run
    assert set(last.validation) == set(last.test) == set(last.train) == {"loss", "accuracy"}
    content["data"] |= {"workers": 3}
    again = prepare(Experiment.from_dict(content))
    *_, repeated = again.run
    assert torch.equal(again.run.state.shared.x, prepared.run.state.shared.x)
    assert (repeated.test, repeated.validation) == (last.test, last.validation)


def test_how_data_is_read_does_not_change_which_run_it_is(tmp_path):
    plain = Experiment.from_dict(lazy(tmp_path))
    other = {"workers": 0, "cache": "1GB", "device": "cpu"}
    assert Experiment.from_dict(lazy(tmp_path, **other)).digest == plain.digest
    assert Experiment.from_dict(lazy(tmp_path, collate="lazy_data:padded")).digest != plain.digest


def test_local_epochs_in_a_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    content = lazy(tmp_path, "Fixed")
    with pytest.raises(ConfigError, match="give local_steps or local_epochs, not both"):
        Experiment.from_dict(content | {"local_epochs": 1})
    steps = prepare(Experiment.from_dict(content | {"local_steps": 4})).run
    del content["local_steps"]
    by_epochs = Experiment.from_dict(content | {"local_epochs": 1})
    assert Experiment.from_dict(by_epochs.to_dict()) == by_epochs
    epochs = prepare(by_epochs).run
    assert epochs.local_steps == 4
    list(steps), list(epochs)
    assert torch.equal(epochs.state.shared.x, steps.state.shared.x)
