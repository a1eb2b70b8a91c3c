"""What a careless user does. Each error names the thing, its value and the cure, and comes before
the first round."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import resource
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from small import experiment, write_data, write_experiment
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import fafed
from fafed.cli import app
from fafed.core.arguments import ARGUMENTS
from fafed.core.words import OURS
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir, all_runs

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 2
CLIENTS = [(X[:20], Y[:20]), (X[20:], Y[20:])]


def spoilt(value):
    """The clients, with this value in an example of the second."""
    x = X.clone()
    x[30, 1] = value
    return [(x[:20], Y[:20]), (x[20:], Y[20:])]


def train(model=None, clients=CLIENTS, algorithm=None, **changes):
    sizes = {"rounds": 2, "local_steps": 2, "batch_size": 4, "workers": 1}
    if model is None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
    return fafed.train(model, clients, algorithm or fafed.FedAvg(0.1), **sizes | changes)


NUMBERS = {
    "rounds": (0, -1, 2.0, "2", None, True),
    "local_steps": (0, 2.5, "2"),
    "batch_size": (0, 2.0, "all", None, True),
    "opening_batch_size": (0, 1.5, "all"),
    "seed": (None, 1.5, True, -1, "0", 2**63),
    "eval_every": (0, 1.0, None),
    "eval_batch_size": (0, 1.0),
    "checkpoint_every": (0, 1.0),
    "threads": (0, None, 1.5),
    "workers": (0, 1.0, "all", True),
    "failure": (1.0, -0.1, "0", None, math.nan),
    "sam": ("0", -1.0, math.inf),
    "clip": ("1", 0.0, -1.0, math.nan, math.inf, True),
    "weight_decay": ("0", -1.0, None, math.nan),
}


def test_every_plain_argument_is_tried():
    assert set(NUMBERS) == set(ARGUMENTS)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, bad in NUMBERS.items() for value in bad]
)
def test_a_wrong_number_is_named(name, value):
    """The rules are the same in Python and in a file."""
    if name != "checkpoint_every":  # of a run that is saved
        with pytest.raises(fafed.ConfigError) as told:
            train(test=CLIENTS[0], **{name: value})
        assert str(told.value).startswith(f"{name} must be {ARGUMENTS[name].rule}, got {value!r}: ")
    if name != "workers" and value is not None:  # each machine has its own; None is left out
        with pytest.raises(fafed.ConfigError) as told:
            Experiment.from_dict(experiment("nowhere", **{name: value}))
        words = f"{name} = {value!r}: it must be {ARGUMENTS[name].rule}: "
        assert words in str(told.value)


def test_numpy_numbers_are_numbers():
    """They give the same run, and records that are plain JSON."""
    sizes = {"rounds": 2, "local_steps": 2, "batch_size": 4, "seed": 3, "eval_every": 2}
    sizes |= {"workers": 1, "threads": 1, "opening_batch_size": 6}
    rates = {"participation": 0.5, "failure": 0.25, "clip": 0.5, "weight_decay": 0.125}
    ours = train(algorithm=fafed.FedAdam(eta=0.25), test=CLIENTS[0], **sizes, **rates)
    theirs = train(
        algorithm=fafed.FedAdam(eta=np.float32(0.25)),
        test=CLIENTS[0],
        **{name: np.int64(value) for name, value in sizes.items()},
        **{name: np.float32(value) for name, value in rates.items()},
    )
    assert torch.equal(ours.x, theirs.x)
    for a, b in zip(ours.history, theirs.history, strict=True):
        shown = json.dumps(b.to_dict() | {"seconds": 0})
        assert shown == json.dumps(a.to_dict() | {"seconds": 0})
    weighted = [train(weights=w).x for w in ([1, 3], np.array([1, 3]))]
    assert torch.equal(*weighted)
    some = [train(participation=p).x for p in ([[0], [1]], np.array([[0], [1]]))]
    assert torch.equal(*some)


def test_numpy_numbers_become_plain_in_settings_and_files(tmp_path):
    assert type(fafed.FedAvg(np.float32(0.5)).eta) is float
    assert type(fafed.schedules.Power(kappa=np.float64(2)).kappa) is float
    given = experiment(tmp_path, rounds=np.int64(3), clip=np.float32(0.5))
    given["algorithm"] = {"name": "fafed", "eta": np.float32(0.5)}
    given["data"] = {"folder": str(tmp_path), "validation": np.float64(0.25)}
    made = Experiment.from_dict(given | {"participation": np.array([[0, 1], [2, 3]])})
    (tmp_path / "e.toml").write_text(made.to_toml())
    assert Experiment.read(tmp_path / "e.toml") == made
    assert json.loads(json.dumps(made.to_dict())) == made.to_dict()
    plain = Experiment.from_dict(
        given
        | {"rounds": 3, "clip": 0.5, "participation": [[0, 1], [2, 3]]}
        | {"algorithm": {"name": "fafed", "eta": 0.5}}
    )
    assert (made.digest, made.label) == (plain.digest, plain.label)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found_in_every_part_of_the_data(value):
    words = f"client 1: the inputs of example 10 hold {value}: clean them"
    with pytest.raises(fafed.DataError, match=words):
        train(clients=spoilt(value))
    targets = X[:, :2].clone()
    targets[7] = value
    with pytest.raises(fafed.DataError, match=f"client 0: the targets of example 7 hold {value}"):
        train(clients=[(X, targets)], loss=F.mse_loss)
    for part in ("test", "validation"):
        with pytest.raises(fafed.DataError, match=f"{part}: the inputs of example 10 hold {value}"):
            train(**{part: spoilt(value)[1]})


def test_numbers_that_are_not_finite_are_accepted_where_the_model_expects_them():
    class Filled(nn.Linear):
        def forward(self, x):
            return super().forward(torch.nan_to_num(x))

    result = train(Filled(3, 2), spoilt(math.nan), test=spoilt(math.nan)[1], engine="loop")
    assert math.isfinite(result.history[-1].test["loss"])


class Named(nn.Linear):
    pass


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


def lost(module):
    nn.init.constant_(module.weight, math.nan)
    return module


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": (X, Y)}, r"2 tensors, .* one client: write clients=\[\(inputs, targets\)\]"),
        ({"clients": (X.numpy(), Y.numpy())}, "look like the inputs and targets of one client"),
        ({"clients": TensorDataset(X, Y)}, r"got TensorDataset: write \[dataset\]"),
        ({"clients": {"a": (X, Y)}}, r"got dict: write list\(clients.values\(\)\)"),
        ({"clients": iter(CLIENTS)}, r"got list_iterator: write list\(clients\)"),
        ({"clients": [DataLoader(TensorDataset(X, Y))]}, "client 0 is a DataLoader: give its .dat"),
        ({"test": DataLoader(TensorDataset(X, Y))}, "test is a DataLoader: give its .dataset"),
        ({"test": (X[:, :2], Y)}, r"test: an example is \(2,\), the clients' are \(3,\)"),
        ({"clients": [CLIENTS[0], (X, Y * 0 - 100)]}, "client 1 has no label but -100"),
        ({"algorithm": fafed.FedAvg}, r"got the class FedAvg: write FedAvg\(\.\.\.\)"),
        ({"algorithm": "fedavg"}, "got the name 'fedavg': `fafed algorithms` lists"),
        ({"loss": nn.CrossEntropyLoss}, r"CrossEntropyLoss'>: write CrossEntropyLoss\(\)"),
        ({"model": nn.LazyLinear(2)}, "'weight' has no shape yet, .*: call the model on one batch"),
        ({"model": Named(3, 2, device="meta")}, "Named is on the device 'meta', where tensors"),
        ({"model": lost(Named(3, 2))}, "Named has NaN or infinity among its parameters"),
        ({"device": 3.5}, "device '3.5' cannot be used"),
        ({"weights": [1, math.inf]}, "2 positive numbers, one per client, got"),
        ({"metrics": [len], "test": CLIENTS[0]}, "metrics must map names to metrics, such as"),
        ({"metrics": "accuracy", "test": CLIENTS[0]}, "metrics must map names .* got 'accuracy'"),
        ({"weights": None}, "weights must be 'uniform', 'examples' or 2 positive numbers"),
        ({"participation": [0, 1]}, "participation has 0 for a round: a round needs a list"),
        ({"participation": "all"}, "participation must be a fraction in .*, got 'all'"),
        ({"participation": None}, "participation must be a fraction in .*, got None"),
        ({"privacy": 1}, r"privacy must be an object such as fafed.Privacy\(.*\), got 1"),
        ({"track": 3}, "track must be a text such as 'mlflow:URI', or a list of these, got 3"),
        ({"on_record": ["log"]}, "on_record must be a function of a record, .* got 'log'"),
        ({"data_device": "xpu7"}, "data_device 'xpu7' cannot be used: .*; try 'cpu'"),
        ({"data_processes": "yes"}, "data_processes must be True or False, got 'yes'"),
        ({"loss": "mse"}, "got 'mse': write torch.nn.functional.mse_loss"),
        ({"clients": [(X.byte(), Y)]}, r"torch.uint8: give floats, such as pixels.float\(\) / 255"),
        ({"clients": [(X, Y.int())]}, r"the targets are torch.int32: give targets.long\(\)"),
        ({"clients": [(X, Y.float())]}, r"are torch.float32: give targets.long\(\)"),
        ({"clients": "hospitals"}, r"got str: read it with fafed.data.from_folder\(FOLDER\)"),
        ({"clients": [(X, Y - 1)]}, "labels must be 0 to 1, but the first batch .* from -1 to 0"),
        ({"clients": [(X, np.array(["no", "yes"] * 20))]}, "number the values, such as with numpy"),
        ({"clients": [(X,)]}, "client 0 must be .*, got tuple of one: add the targets"),
        ({"clients": [pandas.DataFrame(X)]}, r"got DataFrame: write \(table\[inputs\].to_numpy"),
        ({"clients": [[("a.png", 0), ("b.png", 1)]]}, r"give fafed.data.Files\(items, load\) for"),
        ({"test": CLIENTS}, "for the data of several clients there are clients= and client_test="),
        (
            {"loss": F.mse_loss, "clients": [(X, X[:, 0])], "model": Named(3, 1)},
            r"outputs \(4, 1\) with targets \(4,\): .* same shape: give targets\[:, None\]",
        ),
        (
            {"model": Pair(3, 2)},
            r"lambda outputs, targets: F.cross_entropy\(outputs\[0\], targets\)",
        ),
        (
            {"loss": F.binary_cross_entropy, "clients": [(X, torch.stack([Y, Y], 1).bool())]},
            r"the targets are torch.bool: give targets.float\(\)",
        ),
    ],
)
def test_a_wrong_thing_is_named_with_the_cure(change, words):
    with pytest.raises(fafed.FafedError, match=words):
        train(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 3}, "fafed.train has no argument 'epochs', got 3: fafed's word is rounds, or "),
        ({"num_rounds": 3}, "'num_rounds', got 3: fafed's word is rounds$"),
        ({"lr": 0.1}, "'lr', got 0.1: fafed's word is eta, a setting of the algorithm"),
        ({"learning_rate": 0.1}, "'learning_rate', got 0.1: fafed's word is eta, "),
        ({"optimizer": torch.optim.SGD}, "'optimizer', got <class .*SGD'>: .* is algorithm, the"),
        ({"batch": 32}, "'batch', got 32: fafed's word is batch_size$"),
        ({"n_clients": 2}, "'n_clients', got 2: fafed's word is clients, a list with the data of"),
        ({"criterion": nn.MSELoss()}, r"'criterion', got MSELoss\(\): fafed's word is loss$"),
        ({"loss_fn": F.mse_loss}, "'loss_fn', got <function mse_loss .*>: fafed's word is loss$"),
        ({"train_data": X}, "'train_data', got a Tensor: fafed's word is clients, a list with"),
        ({"evalevery": 2}, "'evalevery', got 2: did you mean 'eval_every'?"),
        ({"colour": "red"}, "'colour', got 'red': known: algorithm, amp, baseline, batch_size, "),
    ],
)
def test_a_name_from_elsewhere_is_answered_with_our_own(change, words):
    with pytest.raises(fafed.ConfigError, match=words):
        train(**change)


def test_all_calls_answer_in_the_same_way():
    given = [nn.Linear(3, 2), CLIENTS]
    for call, named in (
        (lambda: fafed.start(*given, fafed.FedAvg(), num_rounds=2), "fafed.start has no .*rounds$"),
        (lambda: fafed.start(*given, fafed.FedAvg()), "fafed.start needs rounds"),
        (lambda: fafed.train(*given, rounds=2), "fafed.train needs algorithm"),
        (lambda: fafed.compare(*given, [fafed.FedAvg()], n_rounds=2), "fafed.compare .*rounds$"),
        (lambda: fafed.compare(*given, [fafed.FedAvg()], rounds=1, epochs=2), "local_epochs for"),
        (lambda: fafed.compare(*given, [fafed.FedAvg()], rounds=1, seed=1), "mean 'seeds'"),
        (lambda: fafed.compare(*given, [fafed.FedAvg()], rounds=1, seeds=3), "seeds must be a li"),
        (lambda: fafed.compare(*given, algorithm=fafed.FedAvg(), rounds=1), "mean 'algorithms'"),
        (lambda: fafed.FedAvg(lr=0.1), "FedAvg has .* 'lr', got 0.1: fafed's word is eta, "),
        (lambda: fafed.FedPD(server_lr=0.1), "FedPD has .* 'server_lr', got 0.1: known: "),
    ):
        with pytest.raises(fafed.ConfigError, match=named):
            call()


def test_the_words_for_others_are_ours():
    arguments = set(inspect.signature(fafed.start).parameters)
    settings = {f.name for kind in fafed.ALGORITHMS.values() for f in dataclasses.fields(kind)}
    assert {ours.split()[0].rstrip(",") for ours in OURS.values()} <= arguments | settings
    assert not set(OURS) & arguments


def test_schedules_refuse_what_is_no_number():
    with pytest.raises(fafed.ConfigError, match=r"Power.kappa must be a number > 0, got '1'"):
        fafed.schedules.Power(kappa="1")


# A loss that grows without becoming NaN.


def growing(**changes):
    return train(
        clients=[(X, X[:, :2])], loss=F.mse_loss, algorithm=fafed.FedAvg(2.5), rounds=30, **changes
    )


def test_a_loss_that_grows_beyond_measure_stops_the_run():
    with pytest.raises(fafed.Diverged, match="has diverged: try a smaller eta, or clip") as e:
        growing()
    error = e.value
    first, last = error.history[0].train_loss, error.history[-1].train_loss
    assert math.isfinite(last)
    assert last <= 1e8 * (1 + first)
    assert error.round == len(error.history) + 1
    assert error.x.isfinite().all()
    assert f"The state after round {len(error.history)} is kept" in str(error)
    short = growing_until(len(error.history))
    assert torch.equal(error.x, short)


def growing_until(rounds):
    result = train(
        clients=[(X, X[:, :2])], loss=F.mse_loss, algorithm=fafed.FedAvg(2.5), rounds=rounds
    )
    return result.x


def test_a_loss_that_is_beyond_measure_in_the_first_round_stops_the_run(tmp_path):
    """It does not grow any more afterwards, so there is nothing later to compare it with."""
    words = r"round 1: the clients' mean loss is \S+e\+\d+, and was 0\.\d+ before the first step"
    with pytest.raises(fafed.Diverged, match=words) as e:
        train(algorithm=fafed.FedAvg(1e30), local_steps=3, folder=tmp_path / "run")
    assert not e.value.history
    assert e.value.x.abs().max() < 1
    assert "e+" in RunDir(tmp_path / "run").failure()


def test_a_large_loss_that_does_not_grow_is_no_divergence():
    far = [(X, X[:, :2] * 1e9)]
    result = train(clients=far, loss=F.mse_loss, algorithm=fafed.FedAvg(0.1), rounds=3)
    assert result.history[-1].train_loss > 1e16


class Stop(Exception):
    pass


def test_the_first_loss_is_remembered_when_a_run_resumes(tmp_path):
    """So it stops in the same round as if it had never been broken off."""
    write_data(tmp_path / "data")
    wild = experiment(tmp_path / "data", rounds=40, loss="mse", metrics=[], eval_every=40)
    r = np.random.default_rng(0)
    for path in (tmp_path / "data").glob("*.npz"):
        x = r.normal(size=(30, 6)).astype("f4")
        np.savez(path, inputs=x, targets=x[:, :3])
    e = Experiment.from_dict(wild | {"algorithm": {"name": "fedavg", "eta": 3.0}})
    calm, place = RunDir(tmp_path / "calm"), RunDir(tmp_path / "broken")
    with pytest.raises(fafed.Diverged, match="in the first round"):
        execute(e, calm)
    rounds = len(calm.records())
    assert rounds > 2, calm.failure()

    def stop(record):
        if record.round == rounds - 1:
            raise Stop

    with pytest.raises(Stop):
        execute(e, place, stop)
    with pytest.raises(fafed.Diverged, match=f"round {rounds + 1}: .*in the first round"):
        execute(e, place)
    assert len(place.records()) == rounds
    assert place.failure() == calm.failure()


# Files and folders.


def call(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(done.exception, fafed.FafedError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture
def toml(tmp_path):
    write_data(tmp_path / "data")
    return write_experiment(tmp_path / "e.toml", tmp_path / "data", rounds=2)


def test_a_file_where_a_folder_should_be(toml, tmp_path):
    busy = tmp_path / "busy"
    busy.write_text("mine")
    for command in (["run", toml], ["compare", toml, "--algorithms", "fedavg", "-j", 1]):
        with pytest.raises(fafed.FafedError, match=f"the folder {busy}.* cannot be made: .*Choose"):
            call(*command, "--runs", busy)
    call("run", toml, "--runs", tmp_path / "runs")
    for command in (["report", tmp_path / "runs"], ["compare", toml, "--runs", tmp_path / "new"]):
        with pytest.raises(fafed.FafedError, match=f"the folder {busy} cannot be made: .*a file"):
            call(*command, "-o", busy)
    assert busy.read_text() == "mine"
    assert not all_runs(tmp_path / "new")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder where nobody can make another")
def test_a_folder_that_may_not_be_written(toml, tmp_path):
    with pytest.raises(fafed.FafedError, match=r"the folder /proc/x/\S+ cannot be made: .*Choose"):
        call("run", toml, "--runs", "/proc/x")
    (tmp_path / "run" / ".lock").mkdir(parents=True)
    words = r"run could not be written: .* Choose a place where you may write"
    with pytest.raises(fafed.FafedError, match=words), RunDir(tmp_path / "run").locked():
        pass


def test_what_is_refused_leaves_no_run(toml, tmp_path):
    with pytest.raises(fafed.ConfigError, match="participation must be"):
        call("run", toml, "--runs", tmp_path / "runs", "--set", "participation=2")
    assert not all_runs(tmp_path / "runs")


@pytest.mark.parametrize("command", ["compare", "tune"])
@pytest.mark.parametrize("names", ["fedavg,fafed, fedavg", " , "])
def test_algorithms_are_named_once(command, names, toml, tmp_path):
    with pytest.raises(fafed.ConfigError, match="name each once"):
        call(command, toml, "--algorithms", names, "--runs", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_report_on_a_full_disk_leaves_the_old_one(toml, tmp_path):
    call("run", toml, "--runs", tmp_path / "runs")
    folder = tmp_path / "report"
    folder.mkdir()
    for name in ("report.html", "curves-rounds.svg"):
        (folder / name).write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(fafed.FafedError, match=r"could not be written: .*\. Free some space"):
            call("report", tmp_path / "runs", "-o", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {"report.html": "old", "curves-rounds.svg": "old"}


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_without_a_usable_checkpoint_a_run_waits_for_again(harm, tmp_path):
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data"))
    place = RunDir(tmp_path / "run")
    with pytest.raises(Stop):
        execute(e, place, stop_after(3))
    for path in place.checkpoints.iterdir():
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-20])
    records = (place.path / "records.jsonl").read_bytes()
    words = f"To start again with round 1: `fafed resume {place.path} --again`"
    with pytest.raises(fafed.FafedError, match=words):
        call("resume", place.path)
    assert (place.path / "records.jsonl").read_bytes() == records
    call("resume", place.path, "--again")
    assert place.finished()
    assert (place.path / "before-1" / "records.jsonl").read_bytes() == records


def stop_after(round):
    def look(record):
        if record.round == round:
            raise Stop

    return look
