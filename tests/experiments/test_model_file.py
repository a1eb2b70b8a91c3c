"""Model files: what a run leaves behind, and how it is loaded again."""

from __future__ import annotations

import json
import math

import pytest
import torch
from own_models import Adapted, Tied, tokens
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from small import experiment, write_data
from torch import nn

import fafed
from fafed import models
from fafed.errors import ConfigError, FafedError
from fafed.experiments import assemble, checkpoint, model_file
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.files import Damaged


class Stop(Exception):
    pass


def small(tmp_path, **changes):
    write_data(tmp_path / "data")
    settings = {"rounds": 4, "eval_every": 1, "algorithm": {"name": "fedavg", "eta": 0.05}}
    return Experiment.from_dict(experiment(tmp_path / "data") | settings | changes)


def with_validation(tmp_path, **changes):
    data = {"folder": str(tmp_path / "data"), "validation": 0.3}
    return small(tmp_path, data=data, **changes)


def done(found, tmp_path, name="run", **options):
    place = RunDir(tmp_path / name)
    execute(found, place, **options)
    return place


def states(found, rounds):
    """The module's state_dict after each round, from the round loop alone."""
    prepared = assemble.prepare(found)
    result = []
    for _ in range(rounds):
        prepared.run.round()
        state = prepared.run.state
        result.append(prepared.objective.predict(state.shared.x, state.buffers).state_dict())
    return result


def same(a, b):
    assert list(a) == list(b)
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype
        assert torch.equal(tensor, b[name]), name


def best_round(place):
    losses = [record.validation["loss"] for record in place.records()]
    return 1 + losses.index(min(losses))


@pytest.mark.parametrize("name", ["own_models:Tied", "own_models:Half", "modules:Assigned"])
def test_a_run_ends_with_the_whole_state_dict_of_its_model(name, tmp_path):
    found = small(tmp_path, model={"name": name}, engine="loop")
    place = done(found, tmp_path)
    wanted = states(found, 4)[-1]
    module = fafed.load(place.path)
    assert not module.training
    same(module.state_dict(), wanted)
    same(dict(sorted(model_file.read(place.path / "model.safetensors").tensors.items())),
         dict(sorted(wanted.items())))  # fmt: skip
    assert not (place.path / "best.safetensors").exists()


def test_tied_weights_are_written_once_and_tied_again(tmp_path):
    place = done(small(tmp_path, model={"name": "own_models:Tied"}, engine="loop"), tmp_path)
    written = set(load_file(place.path / "model.safetensors"))
    assert len(written & {"out.weight", "head.weight"}) == 1
    assert len(written & {"first.weight", "again.weight"}) == 1
    assert "fixed.weight" in written
    assert "scratch" not in written
    module = fafed.load(place.path)
    assert module.head.weight is module.out.weight
    other = Tied()
    assert load_model(other, place.path / "model.safetensors") == (set(), [])
    same(other.state_dict(), module.state_dict())


def test_the_header_says_what_the_file_is(tmp_path):
    found = with_validation(tmp_path)
    place = done(found, tmp_path)
    for name, round in (("model", 4), ("best", best_round(place))):
        with safe_open(place.path / f"{name}.safetensors", "pt") as file:
            told = json.loads(file.metadata()["fafed"])
            assert file.metadata()["format"] == "pt"
        assert (told["digest"], told["round"]) == (found.digest, round)
        assert told["fafed"] == fafed.__version__
    assert told["what"] == "the lowest validation loss"
    assert told["validation_loss"] == place.records()[round - 1].validation["loss"]


def rising(tmp_path, **changes):
    """A step so large that the validation loss goes up and down."""
    algorithm = {"name": "fedavg", "eta": 3.0}
    return with_validation(tmp_path, rounds=8, batch_size=2, algorithm=algorithm, **changes)


def test_the_best_model_is_that_of_the_lowest_validation_loss(tmp_path):
    found = rising(tmp_path)
    place = done(found, tmp_path)
    best = best_round(place)
    assert 1 < best < 8
    after = states(found, 8)
    same(fafed.load(place.path, which="best").state_dict(), after[best - 1])
    same(fafed.load(place.path).state_dict(), after[-1])


@pytest.mark.parametrize(("stop", "every"), [(1, 1), (5, 1), (7, 1), (2, 3), (5, 3), (8, 3)])
def test_after_a_kill_the_best_model_is_still_the_right_one(stop, every, tmp_path, monkeypatch):
    """Killed between the best state of a round and its checkpoint: the round is repeated."""
    found = rising(tmp_path, checkpoint_every=every)
    place = RunDir(tmp_path / "run")
    save = checkpoint.Saver.save

    def killed(saver, run, *rest, **options):
        if run.state.round >= stop:
            raise Stop
        save(saver, run, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Saver, "save", killed)
        with pytest.raises(Stop):
            execute(found, place)
    execute(found, place)
    whole = done(found, tmp_path, "whole")
    for name in ("model", "best"):
        ours, theirs = (model_file.read(p.path / f"{name}.safetensors") for p in (place, whole))
        assert ours.facts == theirs.facts
        same(ours.tensors, theirs.tensors)
    kept = sorted(path.name for path in place.checkpoints.glob("best-*"))
    assert f"best-{best_round(place):07d}.safetensors" in kept


def test_a_best_state_of_rounds_that_were_cut_does_not_win(tmp_path):
    """The newest checkpoints are damaged, so the run goes back, to another trajectory's past."""
    found = rising(tmp_path)
    place = done(found, tmp_path)
    newest, *_ = checkpoint.found(place.checkpoints)
    newest.write_bytes(newest.read_bytes()[:-4])
    (place.path / "best.safetensors").unlink()
    stale = place.checkpoints / "best-0000008.safetensors"
    stale.write_bytes(b"another model")
    execute(found, place)
    assert not stale.exists()
    after = states(found, 8)
    same(fafed.load(place.path, which="best").state_dict(), after[best_round(place) - 1])


def test_rounds_that_are_added_replace_the_models(tmp_path):
    found = with_validation(tmp_path, rounds=2)
    place = done(found, tmp_path)
    more = found.changed(rounds=4)
    seen = []

    def look(record):
        seen.append((place.path / "model.safetensors").exists())
        if record.round == 3:
            with pytest.raises(FafedError, match=r"not finished \(3 of 4 rounds\).*fafed resume"):
                fafed.load(place.path)

    execute(more, place, look)
    assert seen == [False, True]
    same(fafed.load(place.path).state_dict(), states(more, 4)[-1])


def test_an_old_run_without_its_best_state_claims_no_best_model(tmp_path, caplog):
    found = rising(tmp_path).changed(rounds=7)
    place = done(found, tmp_path)
    for path in place.checkpoints.glob("best-*"):
        path.unlink()
    execute(found.changed(rounds=8), place)
    assert best_round(place) == 7
    assert "there is no best model" in caplog.text
    with pytest.raises(FafedError, match="the state of its best round was not kept"):
        fafed.load(place.path, which="best")


def test_starting_again_moves_the_models_aside(tmp_path):
    found = with_validation(tmp_path)
    place = done(found, tmp_path)
    execute(found, place, again=True)
    aside = {path.name for path in (place.path / "before-1").iterdir()}
    assert {"model.safetensors", "best.safetensors"} <= aside


def test_a_run_that_is_not_finished_is_exported_from_its_checkpoint(tmp_path):
    found = rising(tmp_path)
    place = RunDir(tmp_path / "run")

    def stop(record):
        if record.round == 5:
            raise Stop

    with pytest.raises(Stop):
        execute(found, place, stop)
    with pytest.raises(FafedError, match="is not finished"):
        fafed.load(place.path)
    after = states(found, 5)
    same(fafed.load(place.path, which="newest").state_dict(), after[4])
    for which, round in (("last", 5), ("best", best_round(place))):
        module, facts = model_file.export(place.path, which=which)
        assert facts["round"] == round
        same(module.state_dict(), after[round - 1])


def test_a_module_of_ones_own_is_copied_and_filled(tmp_path):
    found = small(tmp_path, model={"name": "own_models:Tied"}, rounds=1, engine="loop")
    place = done(found, tmp_path)
    (place.path / "experiment.toml").unlink()
    with pytest.raises(ConfigError, match=r"started from Python.*model=\.\.\."):
        fafed.load(place.path)
    own = Tied()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    module = fafed.load(place.path, model=own)
    same(own.state_dict(), before)
    assert module.head.weight is module.out.weight
    wanted = model_file.read(place.path / "model.safetensors").tensors
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(6, 3), r"the file has no bias, weight.*Linear has no again\.bias"),
        (lambda: nn.Sequential(Tied()), "Sequential has no again"),
        (lambda: 3, "model must be an nn.Module, got int"),
    ],
)
def test_a_module_that_does_not_fit_is_named_with_the_difference(model, words, tmp_path):
    found = small(tmp_path, model={"name": "own_models:Tied"}, rounds=1, engine="loop")
    place = done(found, tmp_path)
    with pytest.raises(ConfigError, match=words):
        fafed.load(place.path, model=model())
    wide = Tied()
    wide.norm = nn.BatchNorm1d(7)
    with pytest.raises(ConfigError, match=r"norm.weight has the shape \[6\] in the file and \[7\]"):
        fafed.load(place.path, model=wide)


def test_what_cannot_be_loaded_is_named_with_the_cure(tmp_path):
    with pytest.raises(ConfigError, match="there is no run"):
        fafed.load(tmp_path / "nowhere")
    with pytest.raises(FafedError, match="not a run directory"):
        fafed.load(tmp_path)
    found = small(tmp_path)
    place = done(found, tmp_path)
    with pytest.raises(ConfigError, match=r"which = 'bset'.*did you mean 'best'"):
        fafed.load(place.path, which="bset")
    with pytest.raises(FafedError, match="no round was evaluated on validation data"):
        fafed.load(place.path, which="best")
    place.write("experiment.toml", found.changed(seed=1).to_toml())
    with pytest.raises(ConfigError, match="belongs to another experiment"):
        fafed.load(place.path)
    place.write("experiment.toml", found.to_toml())
    path = place.path / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-3], whole[:-3] + b"abc", b"", b"x" * 99):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"model\.safetensors is damaged"):
            fafed.load(place.path)
    path.unlink()
    with pytest.raises(FafedError, match="fafed export model"):
        fafed.load(place.path)


def test_the_trainable_part_alone(tmp_path):
    module = Tied()
    model_file.save(module, tmp_path / "part.safetensors", trainable_only=True)
    found = model_file.read(tmp_path / "part.safetensors")
    assert "fixed.weight" not in found.tensors
    assert {"first.weight", "norm.running_mean"} <= set(found.tensors)
    other = Tied()
    fixed = other.fixed.weight.clone()
    model_file.fill(other, found, "part")
    assert torch.equal(other.fixed.weight, fixed)
    assert torch.equal(other.out.weight, module.out.weight)
    with pytest.raises(ConfigError, match=r"the file has no fixed\.bias, fixed\.weight"):
        model_file.fill(Tied(frozen=False), found, "part")


def test_entries_that_are_no_tensors_are_left_out(tmp_path, caplog):
    class Noted(nn.Linear):
        def get_extra_state(self):
            return {"note": "a text"}

        def set_extra_state(self, state):
            pass

    module = Noted(2, 2)
    model_file.save(module, tmp_path / "m.safetensors")
    assert "_extra_state is not a tensor" in caplog.text
    model_file.fill(other := Noted(2, 2), model_file.read(tmp_path / "m.safetensors"), "m")
    assert torch.equal(other.weight, module.weight)


def test_nothing_half_written_remains(tmp_path, monkeypatch):
    model_file.save(nn.Linear(2, 2), tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()
    monkeypatch.setattr(model_file.files, "sync_path", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model_file.save(nn.Linear(2, 2), tmp_path / "m.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert (tmp_path / "m.safetensors").read_bytes() == before


def test_the_best_of_several_records():
    def record(round, loss):
        from fafed.core.records import Record

        found = {} if loss is None else {"loss": loss}
        return Record(round, 1, 1, 1, 1, 1, 1, 1, None, validation=found)

    losses = [None, math.nan, 2.0, 1.0, 1.0, math.inf]
    best = model_file.best_of([record(i, loss) for i, loss in enumerate(losses)])
    assert best.round == 3
    assert model_file.best_of([record(1, None), record(2, math.nan)]) is None


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls what transformers deprecates
def test_an_adapter_gives_the_same_outputs_on_its_base(tmp_path):
    peft = pytest.importorskip("peft")
    found = small(tmp_path, rounds=2, model={"name": "own_models:Adapted"}, engine="loop")
    place = done(found, tmp_path)
    module = fafed.load(place.path)
    model_file.save_adapter(module, tmp_path / "adapter")
    written = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= written
    bare = models.build("own_models:base", seed=found.seed)  # what the adapter was trained on
    again = peft.PeftModel.from_pretrained(bare, tmp_path / "adapter").eval()
    x = torch.randn(5, 6)
    with torch.no_grad():
        outputs = again(inputs_embeds=tokens(x)).logits
        assert torch.equal(outputs, module(x))
        start = Adapted()
        assert not torch.allclose(outputs, start.eval()(x))
    with pytest.raises(ConfigError, match="is there already"):
        model_file.save_adapter(module, tmp_path / "adapter")
    with pytest.raises(ConfigError, match="Linear has 0 PEFT models"):
        model_file.save_adapter(nn.Linear(2, 2), tmp_path / "other")
