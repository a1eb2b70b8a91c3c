"""A loop that the user holds, with and without a folder."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from calls import Late, clients, net
from safetensors.torch import load_model
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.experiments import model_file, python_run
from fafed.experiments.execute import execute
from fafed.experiments.python_run import checksum
from fafed.experiments.rundir import Busy, RunDir, all_runs
from fafed.files import Damaged


def call(folder=None, **changes):
    """The arguments of a run with buffers and with states of clients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    shards = clients()
    return {
        "model": model,
        "clients": shards,
        "algorithm": fafed.SCAFFOLD(eta=0.05),
        "rounds": 7,
        "local_steps": 2,
        "batch_size": 5,
        "test": shards[0],
        "validation": shards[1],
        "metrics": {"accuracy": fafed.metrics.accuracy},
        "seed": 3,
        "folder": folder,
    } | changes


def numbers(history):
    return [replace(record, seconds=0.0) for record in history]


def equal(one, other):
    assert torch.equal(one.x, other.x)
    assert numbers(one.history) == numbers(other.history)
    state = other.model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in one.model.state_dict().items())
    assert not one.model.training


def stopped(run, after):
    for record in run:
        if record.round == after:
            break
    return run


def failing(run, at, error):
    for record in run:
        if record.round == at and (raised := error()):
            raise raised


def test_the_loop_is_the_users():
    whole = fafed.train(**call())
    run = fafed.start(**call())
    assert run.history == []
    for record in run:
        assert run.history[-1] is record
        x, model, result = run.x, run.model, run.result()
        if record.round == 3:
            break
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), x)
    assert [len(run.history), run.finished, run.engine] == [3, False, whole.engine]
    assert [record.round for record in run] == [4, 5, 6, 7]  # a second loop goes on
    assert list(run) == []
    assert len(result.history) == 3  # a result does not change
    assert not result.finished
    equal(run, whole)
    assert run.finished
    assert whole.finished


def test_start_and_train_agree_in_their_arguments_and_explain_each():
    start, train = (inspect.signature(f) for f in (fafed.start, fafed.train))
    assert start.parameters == train.parameters
    for name in start.parameters:
        assert re.search(rf"\b{name}\b[^\n]*:", fafed.train.__doc__.partition("Arguments")[2]), name
    assert "as FedAvg's paper does" in fafed.train.__doc__


@pytest.mark.parametrize("output", ["last", "random_round", "best_val"])
@pytest.mark.parametrize("every", [1, 4])
def test_a_run_in_a_folder_goes_on_bit_for_bit(tmp_path, output, every):
    change = {"output": output, "eval_every": 2, "checkpoint_every": every}
    whole = fafed.train(**call(**change))
    folder = tmp_path / "run"
    for after in (2, 5):
        run = stopped(fafed.start(**call(folder, **change)), after)
        assert len(run.history) == len(RunDir(folder).records()) == after
    done = fafed.train(**call(folder, **change))
    equal(done, whole)
    equal(fafed.train(**call(folder, **change)), whole)  # there is nothing left to do
    assert RunDir(folder).finished()


def test_rounds_may_be_raised_but_not_taken_back(tmp_path):
    fafed.train(**call(tmp_path, rounds=3))
    equal(fafed.train(**call(tmp_path)), fafed.train(**call()))
    with pytest.raises(fafed.ConfigError, match=r"rounds is 3, but .* has 7 finished rounds"):
        fafed.start(**call(tmp_path, rounds=3))


def test_rounds_decide_if_a_schedule_falls_over_all_of_them(tmp_path):
    falling = fafed.SCAFFOLD(eta=fafed.schedules.Linear(peak=0.1))
    fafed.train(**call(tmp_path, rounds=3, algorithm=falling))
    with pytest.raises(fafed.ConfigError, match=r"algorithm.eta follows the length of the run"):
        fafed.start(**call(tmp_path, algorithm=falling))


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
import fafed
from test_training import call

for record in fafed.start(**call({folder!r})):
    if record.round == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    here = Path(__file__).parent
    path = [str(here), str(here.parent / "helpers")]
    code = KILLED.format(path=path, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    run = fafed.start(**call(tmp_path))
    assert len(run.history) == 4
    list(run)
    equal(run, fafed.train(**call()))


def test_another_run_is_refused_with_what_differs(tmp_path):
    fafed.train(**call(tmp_path))
    moved = clients()
    moved[2][0][3, 1] += 1e-3
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    for change, words in [
        ({"algorithm": fafed.SCAFFOLD(eta=0.1)}, r"algorithm.eta is 0.1, there it is 0.05\. Set"),
        ({"algorithm": fafed.FedAvg(0.05)}, r"algorithm.name is fedavg, .* scaffold\. Set it back"),
        ({"seed": 4}, "seed is 4, there it is 3"),
        ({"local_steps": 3}, "local_steps is 3, there it is 2"),
        ({"batch_size": 6}, "batch_size is 6, there it is 5"),
        ({"weights": [1, 1, 1, 2]}, r"weights is \[1.0, 1.0, 1.0, 2.0\], there it is uniform"),
        ({"clip": 1.0}, "clip is 1.0, there it is not given"),
        ({"weight_decay": 0.1}, "weight_decay is 0.1, there it is 0.0"),
        ({"participation": lambda r: range(4)}, "participation is .*<lambda>"),
        ({"participation": [[0, 1], range(4)]}, r"participation is \[\[0, 1\], \[0, 1, 2, 3\]\]"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "loss is .*CrossEntropyLoss.*0.1"),
        ({"output": "random_round"}, "output is random_round, there it is last"),
        ({"clients": moved}, "the clients' data differ"),
        ({"clients": [*clients(3), clients(5, 31)[4]]}, r"examples is \[30, 30, 30, 31\]"),
        ({"test": moved[2]}, "the test data differ"),
        ({"client_test": moved}, "the clients' test data differ"),
        ({"model": other}, "initial values differ. Call torch.manual_seed before you build it"),
        ({"model": net()}, r"parameters is \d+, there it is \d+"),
    ]:
        with pytest.raises(fafed.ConfigError, match=f"holds another run: .*{words}"):
            fafed.start(**call(tmp_path, **change))
    fafed.start(**call(tmp_path, workers=1, quiet=True, checkpoint_every=3))  # these are free


def test_a_large_tensor_is_read_in_part(monkeypatch):
    monkeypatch.setattr(python_run, "SMALL", 2**10)
    for shape in [(1000, 4), (4000,), (3, 1500)]:
        before = torch.zeros(shape)
        after = before.clone()
        after[-1] = 1  # the last row is always in the sample
        assert checksum([before]) == checksum([before.clone()]) != checksum([after])
        assert checksum([before]) != checksum([before.double()])


def test_schedules_partials_and_own_algorithms_are_described(tmp_path):
    algorithm = fafed.FAFED(eta=fafed.schedules.Power(kappa=0.1), alpha=Late())
    loss = partial(F.cross_entropy, label_smoothing=0.1)
    fafed.train(**call(tmp_path, algorithm=algorithm, loss=loss, rounds=1))
    found = RunDir(tmp_path).experiment()
    assert found.algorithm.options["eta"] == {
        "schedule": "power",
        "kappa": 0.1,
        "w": 1.0,
        "every": 1,
        "exponent": 1 / 3,
    }
    assert found.algorithm.options["alpha"] == {"class": "Late"}
    assert json.loads(found.loss) == {"function": "cross_entropy", "label_smoothing": 0.1}
    algorithm = fafed.FAFED(eta=fafed.schedules.Power(kappa=0.2), alpha=Late())
    with pytest.raises(
        fafed.ConfigError, match=r"eta is power: kappa 0.2, .* there it is power: kappa 0.1"
    ):
        fafed.start(**call(tmp_path, algorithm=algorithm, loss=loss, rounds=1))


def test_a_run_without_a_finished_round_leaves_the_folder_free(tmp_path):
    with pytest.raises(fafed.ConfigError, match="4 positive numbers"):
        fafed.start(**call(tmp_path, weights=[1, 2]))
    fafed.start(**call(tmp_path, seed=9))
    equal(fafed.train(**call(tmp_path)), fafed.train(**call()))


def test_the_folder_is_locked_while_a_loop_runs_and_free_after_it(tmp_path):
    run, other = (fafed.start(**call(tmp_path)) for _ in range(2))
    for record in run:
        with pytest.raises(Busy, match="in use by another process"):
            next(iter(other))
        if record.round == 2:
            break
    assert next(iter(other)).round == 3  # the other one catches up with what was done
    with run:
        loop = iter(run)
        assert next(loop).round == 4
        assert next(iter(run)).round == 5  # a new loop ends the one before it
        assert list(loop) == []
        held = iter(run)
        assert next(held).round == 6
    assert list(held) == []  # the end of the block has closed it
    assert [record.round for record in other] == [7]
    with pytest.raises(KeyError):
        failing(fafed.start(**call(tmp_path, rounds=9)), 8, KeyError)
    assert [r.round for r in fafed.start(**call(tmp_path, rounds=9))] == [9]


def test_a_folder_that_was_deleted_meanwhile(tmp_path):
    run = stopped(fafed.start(**call(tmp_path / "run")), 2)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(fafed.FafedError, match="has lost the checkpoints of this run"):
        next(iter(run))


def test_the_command_line_reads_the_folder_but_cannot_resume_it(tmp_path):
    stopped(fafed.start(**call(tmp_path / "run")), 4)
    place = RunDir(tmp_path / "run")
    with pytest.raises(fafed.ConfigError, match=r"was begun by Python code.* run the script again"):
        execute(place.experiment(), place)
    data = place.data()
    assert [len(data.records), data.finished, data.config["algorithm"]["name"]] == [
        4,
        False,
        "scaffold",
    ]
    assert data.counts is not None
    with pytest.raises(fafed.FafedError, match=r"script again finishes it, which='newest' loads"):
        fafed.load(place.path, model=call()["model"])
    with pytest.raises(fafed.ConfigError, match=r"fafed.load\(.*, model=..., which='newest'\)"):
        model_file.export(place.path)  # `fafed export model`
    again = fafed.load(place.path, model=call()["model"], which="newest").state_dict()
    so_far = fafed.start(**call(tmp_path / "run")).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in so_far.items())
    assert all_runs(tmp_path)[0].path == place.path
    (place.path / "records.jsonl").write_bytes(b"torn")
    with pytest.raises(Damaged, match=r"running its script again goes on .* move the folder away"):
        place.records()


def test_a_divergence_in_a_folder_says_why_and_keeps_the_rounds(tmp_path):
    change = {"algorithm": fafed.FedAvg(Late()), "rounds": 9, "local_steps": 4}
    with pytest.raises(fafed.Diverged) as error:
        fafed.train(**call(tmp_path, **change))
    assert len(error.value.history) == len(RunDir(tmp_path).records()) == 3
    assert RunDir(tmp_path).failure() == str(error.value)


def test_the_model_is_saved_with_tied_tensors(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))[:, :3]

    run = stopped(fafed.start(**call(model=Tied())), 2)
    run.save(tmp_path / "model.safetensors")
    model = Tied()
    load_model(model, tmp_path / "model.safetensors")
    inputs = clients()[0][0]
    assert torch.equal(model(inputs), run.model(inputs))


def test_they_print_as_a_summary(tmp_path):
    run = stopped(fafed.start(**call(tmp_path / "run")), 2)
    last = run.history[-1].test
    assert repr(run) == (
        f"SCAFFOLD: round 2 of 7 on {run.engine}, test loss {last['loss']:.4f}, "
        f"test accuracy {last['accuracy']:.4f}, in {tmp_path / 'run'}"
    )
    assert repr(run.result()) == repr(run)


def test_without_a_common_test_they_print_the_clients(tmp_path):
    own = {"test": None, "validation": None, "client_test": 0.25}
    result = fafed.train(**call(rounds=2, **own))
    loss, accuracy = (result.history[-1].clients_test[name] for name in ("loss", "accuracy"))
    assert repr(result).endswith(
        f", clients' test loss {loss['mean']:.4f} (worst {loss['worst']:.4f})"
        f", clients' test accuracy {accuracy['mean']:.4f} (worst {accuracy['worst']:.4f})"
    )


def struck(folder, at):
    """Ctrl-C in these calls of a metric."""
    seen = []

    def metric(outputs, targets):
        seen.append(1)
        if len(seen) in at:
            signal.raise_signal(signal.SIGINT)
        return 0.0

    return call(folder, metrics={"own": metric}, validation=None, workers=1, checkpoint_every=50)


def test_ctrl_c_returns_what_is_finished(tmp_path, caplog):
    whole = fafed.train(**struck(None, ()))
    for folder in (None, tmp_path):
        result = fafed.train(**struck(folder, {5}))  # the first call tries the metric
        assert not result.finished
        assert numbers(result.history) == numbers(whole.history)[:3]
        assert "interrupted: SCAFFOLD: round 3 of 7" in caplog.text
    equal(fafed.train(**struck(tmp_path, ())), whole)


def test_ctrl_c_in_the_users_loop_is_an_ordinary_one(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        failing(fafed.start(**call(tmp_path)), 2, partial(signal.raise_signal, signal.SIGINT))
    assert len(RunDir(tmp_path).records()) == 2
    equal(fafed.train(**call(tmp_path)), fafed.train(**call()))


def test_a_second_ctrl_c_raises():
    def impatient(record):
        if record.round == 3:
            signal.raise_signal(signal.SIGINT)  # waits for the end of the round
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fafed.train(**call(on_record=impatient))


def test_every_record_is_told(tmp_path):
    one, other = [], []
    track = f"tensorboard:{tmp_path / 'board'}"
    run = stopped(fafed.start(**call(on_record=[one.append, other.append], track=track)), 3)
    assert one == other == run.history
    events = list((tmp_path / "board").rglob("events*"))
    assert len(events) == 1
    with pytest.raises(fafed.ConfigError, match="does not say where"):
        fafed.start(**call(track="mlflow"))
    fafed.train(**call(tmp_path / "run", on_record=one.append, track=[track]))
    assert (tmp_path / "board" / "run").is_dir()
    assert len(one) == 3 + 7


def test_progress_shows_itself_in_a_terminal_alone(monkeypatch, capfd):
    fafed.train(**call())
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    fafed.train(**call())
    shown = capfd.readouterr().err
    assert "SCAFFOLD" in shown
    assert "7/7" in shown
    assert "accuracy" in shown
    fafed.train(**call(quiet=True))
    assert capfd.readouterr() == ("", "")


def test_progress_tells_how_much_of_the_privacy_is_spent(monkeypatch, capfd):
    pytest.importorskip("dp_accounting")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    noise = fafed.Privacy(level="example", noise=9.0, clip=1.0, delta=1e-5, max_epsilon=8.0)
    options = {"model": nn.Linear(6, 3), "algorithm": fafed.FedAvg(eta=0.1), "rounds": 2}
    result = fafed.train(**call(**options, privacy=noise))
    spent = f"epsilon {result.history[-1].diagnostics['epsilon']:.2f} of 8.00 at delta 1e-05"
    assert spent in capfd.readouterr().err
