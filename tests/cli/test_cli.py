"""The command line, as a real process."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import write_data, write_experiment
from typer.testing import CliRunner

from fafed import ALGORITHMS, FafedError
from fafed.cli import app
from fafed.cli.options import print_json
from fafed.experiments import model_file


def fafed(*arguments):
    command = [sys.executable, "-m", "fafed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_help_does_not_import_torch():
    code = "import sys, fafed.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_algorithms_table():
    done = fafed("algorithms")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ALGORITHMS)


def test_algorithms_json_is_measured_from_the_code():
    cards = {card["name"]: card for card in json.loads(fafed("algorithms", "--json").stdout)}
    assert set(cards) == set(ALGORITHMS)
    assert (cards["fafed"]["up"], cards["fafed"]["down"], cards["fafed"]["gradients"]) == (3, 3, 2)
    assert (cards["fedavg"]["up"], cards["fedavg"]["gradients"]) == (1, 1)
    assert "arxiv.org/abs/2205.02719" in cards["fedams"]["paper"]
    assert "arxiv.org/abs/2003.00295" in cards["fedyogi"]["paper"]
    settings = {s["name"]: s["default"] for s in cards["fafed"]["settings"]}
    assert (settings["eta"], settings["rho"]) == (0.003, 0.01)


@pytest.fixture
def toml(tmp_path):
    write_data(tmp_path / "data")
    return write_experiment(tmp_path / "small.toml", tmp_path / "data")


def call(*arguments):
    """In this process; errors of ours come back as exceptions."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(done.exception, FafedError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_run_report_and_list(toml, tmp_path):
    runs = tmp_path / "runs"
    first = json.loads(call("run", toml, "--runs", runs, "--json"))
    assert first["finished"]
    assert first["last"]["round"] == 6
    assert set(first["last"]["train"]) == {"loss", "accuracy"}
    again = json.loads(call("run", toml, "--runs", runs, "--json"))
    assert again == first  # nothing is repeated
    call("run", toml, "--runs", runs, "--set", "algorithm.eta=0.2", "--set", "seed=3")
    listed = json.loads(call("runs", "--runs", runs, "--json"))
    assert [(row["seed"], row["state"]) for row in listed] == [(0, "finished"), (3, "finished")]
    table = call("runs", "--runs", runs)
    assert "finished" in table
    assert all(row["run"] in table for row in listed)  # to be pasted
    made = json.loads(call("report", runs, "-o", tmp_path / "report", "--json"))
    assert len(made["rows"]) == 2
    assert made["rows"][0]["final"]["accuracy"]["n"] == 1
    assert (tmp_path / "report" / "report.html").stat().st_size > 1e6


def test_export_model(toml, tmp_path):
    changes = ["--set", "rounds=2", "--set", "data.validation=0.3", "--set", "eval_every=1"]
    call("run", toml, "--runs", tmp_path / "runs", *changes)
    (run,) = (tmp_path / "runs" / "small").iterdir()
    for option, round in (((), 2), (("--best",), 2), (("--trainable",), 2)):
        told = call("export", "model", run, "-o", tmp_path / "m.safetensors", *option)
        assert told == f"{tmp_path / 'm.safetensors'}: round {round}\n"
        assert set(load_file(tmp_path / "m.safetensors")) == {"1.weight", "1.bias"}
    for options, words in ((["--adapter"], "0 PEFT models"), (["--adapter", "--trainable"], "two")):
        with pytest.raises(FafedError, match=words):
            call("export", "model", run, "-o", tmp_path / "adapter", *options)
    shutil.rmtree(run / "checkpoints")  # of a run from Python only the files of its end are known
    toml = run / "experiment.toml"
    toml.write_text(toml.read_text().replace('name = "softmax"', 'name = "python:Net"'))
    for option, name in (((), "model"), (("--best",), "best")):
        call("export", "model", run, "-o", tmp_path / "m.safetensors", *option)
        own, copy = (
            model_file.read(p) for p in (run / f"{name}.safetensors", tmp_path / "m.safetensors")
        )
        assert own.facts == copy.facts
        assert all(torch.equal(own.tensors[name], copy.tensors[name]) for name in own.tensors)
    with pytest.raises(FafedError, match="does not say how to build the model"):
        call("export", "model", run, "-o", tmp_path / "m.safetensors", "--trainable")
    with pytest.raises(FafedError, match="there is no run"):
        call("export", "model", tmp_path / "nowhere", "-o", tmp_path / "m.safetensors")


def test_a_comparison_names_what_diverged(toml, tmp_path):
    changes = ["--set", "settings.stem.eta=1e38", "--algorithms", "fedavg,stem"]
    made = json.loads(call("compare", toml, "--runs", tmp_path, "--json", *changes))
    assert [row["label"] for row in made["rows"]] == ["fedavg"]
    page = Path(made["report"]).read_text("utf-8")
    assert "no round is finished: stem-seed0" in page
    assert re.search(r"stem-seed0-\w+ diverged: ", page)
    listed = json.loads(call("runs", "--runs", tmp_path, "--json"))
    assert {(row["algorithm"], row["state"]) for row in listed} == {
        ("fedavg", "finished"),
        ("stem", "diverged"),
    }


def test_json_has_no_numbers_that_json_does_not_know(capsys):
    print_json({"a": [math.nan, 1.5], "b": (math.inf,)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": [None]}


def test_records_go_to_a_tracker(toml, tmp_path):
    pytest.importorskip("tensorboard")
    call("run", toml, "--runs", tmp_path / "runs", "--track", f"tensorboard:{tmp_path / 'tb'}")
    assert list((tmp_path / "tb").rglob("events.*"))


def test_presets_and_data():
    assert "wikitext-2" in call("presets")
    assert call("presets", "mnist-low").startswith("# MNIST")
    assert json.loads(call("presets", "--json"))["mnist-low"]["data"]["name"] == "mnist"
    listed = {item["name"]: item for item in json.loads(call("data", "list", "--json"))}
    assert listed["fashion-mnist"]["present"]
    shown = json.loads(call("data", "show", "fashion-mnist-high", "--json"))
    assert shown["examples"] == [3000] * 20
    assert shown["counts"][0] == [600] * 5 + [0] * 5
    assert "Ankle boot" in call("data", "show", "fashion-mnist-high")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "fashion"], "neither a file nor a preset"),
        (["run", "mnist-low", "--set", "round=3"], "did you mean 'rounds'"),
        (["compare", "mnist-low", "--algorithms", "fedavgg"], "did you mean 'fedavg'"),
        (["tune", "mnist-low", "--rule", "test"], "--rule must be train_loss or validation"),
        (["presets", "mnist-lo"], "did you mean 'mnist-low'"),
        (["data", "import", "cifar", "."], "did you mean 'cifar-10'"),
        (["report", "nowhere"], "no runs below nowhere"),
        (["resume", "nowhere"], "not a run directory"),
        (["run", "mnist-low", "--track", "mlfow:x"], "mlflow"),
    ],
)
def test_bad_input_is_named_with_the_cure(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FafedError, match=words):
        call(*arguments)


@pytest.mark.parametrize(
    ("command", "names", "words"),
    [
        ("compare", "fedavg,scaffold", "SCAFFOLD.* needs every client"),
        ("tune", "fedavg,scaffold", "SCAFFOLD.* needs every client"),
        ("tune", "fedavg,fedmuon", "no grid for 'fedmuon'"),
    ],
)
def test_an_algorithm_that_cannot_run_is_refused_before_others_do(
    command, names, words, toml, tmp_path
):
    absent = ["--set", "participation=0.5", "--runs", tmp_path / "runs"]
    with pytest.raises(FafedError, match=words):
        call(command, toml, "--algorithms", names, *absent)
    assert not (tmp_path / "runs").exists()


def test_exit_codes(toml, tmp_path):
    bad = fafed("run", "fashion")
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: there is no experiment 'fashion'")
    wild = ["--set", "algorithm={name='fedavg', eta=1e38}"]
    diverged = fafed("run", str(toml), "--runs", str(tmp_path), *wild)
    assert diverged.returncode == 1
    assert "try a smaller eta" in diverged.stderr


def test_a_finished_run_sends_nothing_to_a_tracker_and_says_so(toml, tmp_path):
    runs = ["run", str(toml), "--runs", str(tmp_path)]
    fafed(*runs)
    there = f"tensorboard:{tmp_path / 'board'}"
    told = fafed(*runs, "--track", there).stderr
    assert f"nothing was sent to {there}" in told
    unknown = fafed(*runs, "--track", "mlfow:x")
    assert unknown.returncode == 2
    assert "did you mean 'mlflow'" in unknown.stderr


def test_a_run_says_once_which_engine_computes_it_and_why(toml, tmp_path):
    told = fafed("run", str(toml), "--runs", str(tmp_path), "--set", "engine='loop'").stderr
    assert told.count("engine loop: engine = 'loop'") == 1


def test_unknown_command_fails():
    assert fafed("algorithm").returncode == 2
