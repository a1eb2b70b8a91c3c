"""Model files: the trained model of a run as named tensors.

A model file is one safetensors file with the state_dict of the module: parameters in the module's
own types, frozen ones and buffers included. A weight that has two names is written once, and the
header says which name stands for which. The header also has fafed's version, the digest of the
experiment, the round, a checksum of each tensor, and how inputs are normalised, if they are. Any
reader of safetensors can open the file.

    module = fafed.load("runs/...")         # build the experiment's model and fill it
    tensors, facts = read(path)             # the named tensors, and what the header says
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fafed import __version__, files, models
from fafed.core.records import Record
from fafed.data.normalise import Normalisation
from fafed.errors import ConfigError, FafedError, nearest
from fafed.experiments import checkpoint, model_options
from fafed.experiments.rundir import MODEL_FILES, NORMALISATION, RunDir
from fafed.files import Damaged, Json
from fafed.objectives.copies import copied
from fafed.objectives.module import Model

log = logging.getLogger("fafed")

FORMAT = 1
INPUTS = "normalisation"  # the name of this fact
NEWEST = "newest"  # a run that has not finished has no file of this model


class ModelFile(NamedTuple):
    """The content of a model file, after all checks."""

    tensors: dict[str, Tensor]  # a weight with two names is one tensor under both
    facts: dict[str, Any]  # what, digest, round, ...


# Writing.


def save(
    module: nn.Module,
    path: Path | str,
    *,
    trainable_only: bool = False,
    metadata: Mapping[str, Json] | None = None,
) -> None:
    """Write the module's state_dict, completely or not at all. `trainable_only` leaves out the
    frozen parameters: what training changes remains, which are the others and the buffers."""
    state = module.state_dict(keep_vars=True)
    if trainable_only:
        frozen = {id(p) for p in module.parameters() if not p.requires_grad}
        state = {name: tensor for name, tensor in state.items() if id(tensor) not in frozen}
    write(Path(path), state, dict(metadata or {}) | {"trainable_only": trainable_only})


def write(
    path: Path,
    state: Mapping[str, object],
    facts: Mapping[str, Json],
    *,
    sync: bool = True,
    private: bool = False,
) -> None:
    """Write named tensors, completely or not at all. Only its owner can read a private file."""
    tensors = {name: leaf.detach() for name, leaf in state.items() if isinstance(leaf, Tensor)}
    if left := sorted(set(state) - set(tensors)):
        log.warning("%s: %s is not a tensor and is left out", path, ", ".join(left))
    same = checkpoint.repeated(tensors)
    tensors = {n: leaf.contiguous().cpu() for n, leaf in tensors.items() if n not in same}
    header = {
        "format": FORMAT,
        "fafed": __version__,
        **facts,
        "tensors": {name: checkpoint.described(leaf) for name, leaf in tensors.items()},
        "same": same,
    }
    # "format": other libraries ask which one wrote the tensors
    told = {"format": "pt", "fafed": json.dumps(files.sealed(header))}
    try:
        with files.replacing(path, sync=sync) as part:
            save_file(checkpoint.unshared(tensors), part, told)
            if private:
                part.chmod(0o600)
    except (OSError, SafetensorError) as cause:
        raise FafedError(
            f"{path} could not be written: {cause}. Free some space; `fafed export model` writes "
            "the model of a run at any time"
        ) from cause


# Reading.


def read(path: Path | str) -> ModelFile:
    """The tensors of a model file and what its header says. All checksums are compared."""
    path = Path(path)
    header = _header(path)
    with _explained(path), safe_open(path, framework="pt") as file:
        told, same = header.pop("tensors"), header.pop("same")
        if set(file.keys()) != set(told):
            raise ValueError("tensors are missing")
        tensors = {name: file.get_tensor(name) for name in told}
        for name, leaf in tensors.items():
            if told[name] != checkpoint.described(leaf):
                raise ValueError(f"{name} fails its checksum")
        tensors |= {name: tensors[first] for name, first in same.items()}
    return ModelFile(tensors, header)


def _header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FafedError(f"there is no model file {path}")
    with _explained(path), safe_open(path, framework="pt") as file:
        header = files.unsealed(written := json.loads((file.metadata() or {})["fafed"]))
        if len(header) == len(written):
            raise ValueError("its header has no checksum")
        if header["format"] == FORMAT:
            return header
    raise FafedError(
        f"{path} has format {header['format']}, this fafed reads {FORMAT}: use the version that "
        "wrote it"
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as cause:
        raise Damaged(
            f"{path} is damaged or not fafed's ({type(cause).__name__}: {cause}). Restore it from "
            "a backup, or delete it and write it again with `fafed export model`"
        ) from cause


def fill(module: nn.Module, found: ModelFile, path: Path | str) -> None:
    """Put the tensors of a model file into a module. Names and shapes must be the module's own. A
    file of the trainable part leaves the frozen parameters as they are."""
    own = {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    optional = set()
    if found.facts.get("trainable_only"):
        frozen = {id(p) for p in module.parameters() if not p.requires_grad}
        optional = {name for name, tensor in own.items() if id(tensor) in frozen}
    kind = type(module).__name__
    problems = []
    if missing := sorted(set(own) - set(found.tensors) - optional):
        problems.append(f"the file has no {_listed(missing)}")
    if unknown := sorted(set(found.tensors) - set(own)):
        problems.append(f"{kind} has no {_listed(unknown)}")
    problems += [
        f"{name} has the shape {list(tensor.shape)} in the file and {list(own[name].shape)} in "
        f"{kind}"
        for name, tensor in found.tensors.items()
        if name in own and tensor.shape != own[name].shape
    ]
    if problems:
        raise ConfigError(
            f"{path} does not fit {kind}: {'; '.join(problems[:5])}: build the module with the "
            "same options as for the run"
        )
    module.load_state_dict(found.tensors, strict=False)  # entries that are no tensors are missing


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# The model of a run.


def load(run: Path | str, *, which: str = "last", model: nn.Module | None = None) -> nn.Module:
    """The trained model of a run, in eval mode.

    run: the run's directory, or a silo's folder of the run.
    which: "last", the model after the last round, "best", the one with the lowest validation loss,
        or "newest", that of the newest checkpoint, for a run that has not finished.
    model: a module to fill, which is copied first. None builds the experiment's own. A run that was
        started from Python has no description of its model, so it needs this.

    If the run has normalised its inputs (`data.normalise`), the result takes inputs as they are in
    the data: it is a Sequential of a layer that normalises them, and the model.
    """
    if which == NEWEST:
        module, facts = export(run, model=model)
        told: Any = facts.get(INPUTS)
    else:
        place, file = _place(run, which)
        if not file.is_file() or _stale(place, file):
            raise FafedError(_why_missing(place, which))
        module, told = _filled(place, file, model), _header(file).get(INPUTS)
    if told is None:
        return module
    how = Normalisation.from_dict(told)
    return nn.Sequential(models.Standardise(*how), module).eval()


def export(
    run: Path | str, *, which: str = "last", model: nn.Module | None = None
) -> tuple[nn.Module, dict[str, Json]]:
    """The same for any run, finished or not, and the facts for a model file. A run that is not
    finished has the model of its newest checkpoint. How inputs are normalised is among the facts,
    not in the module."""
    place, file = _place(run, which)
    if file.is_file() and not _stale(place, file):
        told = _header(file)
        more = normalisation_of(told.get(INPUTS))
        facts = facts_of(which, str(told["digest"]), int(told["round"]), **more)
        return _filled(place, file, model), facts
    path = _newest_checkpoint(place) if which == "last" else _best_state(place)
    if path is None:
        raise FafedError(_why_missing(place, which))
    x, buffers, round, digest = _state(path, which)
    goal = Model(_module(place, model, digest, path), F.cross_entropy)  # the loss is not used
    like = goal.start().buffers
    if x.shape != goal.x0.shape or [b.shape for b in buffers] != [b.shape for b in like]:
        raise ConfigError(
            f"{path} does not fit {type(goal.module).__name__}: it has {x.numel()} trainable "
            f"parameters and {len(buffers)} buffers, the module has {goal.x0.numel()} and "
            f"{len(like)}: build the module with the same options as for the run"
        )
    more = normalisation_of(place.json(NORMALISATION))
    return goal.predict(x, buffers), facts_of(which, digest, round, **more)


def copy(run: Path | str, output: Path, *, which: str = "last") -> int | None:
    """Write the model file of a finished run once more, and return its round. The module is not
    needed, so this works for runs from Python, too. None: there is no such file, see `export`."""
    place, file = _place(run, which)
    if not file.is_file() or _stale(place, file):
        return None
    found = read(file)
    write(output, found.tensors, found.facts)
    return int(found.facts["round"])


def facts_of(which: str, digest: str, round: int, **more: Json) -> dict[str, Json]:
    """What the header of a model file says about the model."""
    kinds = {"last": "the model after the last round", "best": "the lowest validation loss"}
    return {"what": kinds[which], "digest": digest, "round": round, **more}


def normalisation_of(told: Mapping[str, Json] | None) -> dict[str, Json]:
    """The facts for a header, from those that a run has of its inputs; none if it has none."""
    return {INPUTS: dict(told)} if told else {}


def save_adapter(module: nn.Module, folder: Path | str) -> None:
    """Write the adapter of a PEFT model, or of the only one inside the module. The folder is for
    `peft.PeftModel.from_pretrained(base, folder)`."""
    if find_spec("peft") is None:
        raise ConfigError("an adapter needs peft, which is not installed: pip install peft")
    import peft

    folder = Path(folder)
    found = [part for part in module.modules() if isinstance(part, peft.PeftModel)]
    if len(found) != 1:
        raise ConfigError(
            f"{type(module).__name__} has {len(found)} PEFT models, an adapter is that of one: "
            "leave out --adapter, or use --trainable for the trainable part"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: give a new folder, or remove it")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        found[0].save_pretrained(str(part))
        files.sync_folder(part)
        part.replace(folder)
        files.sync_path(folder.parent)
    except OSError as cause:
        raise FafedError(f"{folder} could not be written: {cause}") from cause
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _place(run: Path | str, which: str) -> tuple[RunDir, Path]:
    if which not in MODEL_FILES:
        raise ConfigError(f"which = {which!r}: {nearest(which, [*MODEL_FILES, NEWEST])}")
    place = RunDir(Path(run))
    if not place.path.is_dir():
        raise ConfigError(f"there is no run {place.path}: `fafed runs` lists those there are")
    return place, place.path / MODEL_FILES[which]


def _stale(place: RunDir, file: Path) -> bool:
    """Whether the run has gone on since the file was written. (A silo's folder has no records.)"""
    last = place.last()
    if last is None:
        return False
    if file.name == MODEL_FILES["last"]:
        return bool(_header(file).get("round") != last.round)
    found = place.path / MODEL_FILES["last"]
    return not found.is_file() or _stale(place, found)


def _why_missing(place: RunDir, which: str) -> str:
    path = place.path
    begun = place.checkpoints.is_dir() or place.exists
    if not begun:
        return f"{path} is not a run directory: `fafed runs` lists those there are"
    name = "" if which == "last" else " --best"
    if not place.checkpoints.is_dir():
        return f"{path} has no model yet: it comes at the end of the run"
    if which == "best" and best_of(place.records()) is None:
        return f"{path} has no best model: no round was evaluated on validation data"
    if place.exists and not place.finished():
        rounds = place.experiment().rounds
        so_far = f"`fafed export model {path}{name} -o FILE` writes the model so far"
        if place.by_python:
            so_far = f"which={NEWEST!r} loads the model of its newest checkpoint"
        return (
            f"{path} is not finished ({place.round()} of {rounds} rounds): {place.resuming} "
            f"finishes it, {so_far}"
        )
    if which == "best" and _best_state(place) is None:
        return f"{path} has no best model: the state of its best round was not kept"
    return f"{path} has no {MODEL_FILES[which]}: `fafed export model {path}{name} -o FILE` makes it"


def _filled(place: RunDir, file: Path, model: nn.Module | None) -> nn.Module:
    found = read(file)
    module = _module(place, model, str(found.facts.get("digest")), file)
    fill(module, found, file)
    return module.eval()


def _module(place: RunDir, model: nn.Module | None, digest: str, file: Path) -> nn.Module:
    """A copy of the given module, or the experiment's own."""
    if model is not None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be an nn.Module, got {type(model).__name__}")
        return copied(model)
    experiment = place.experiment() if place.exists else None
    if experiment is None or experiment.model.name.startswith("python:"):
        more = f", which={NEWEST!r}" if experiment and not place.finished() else ""
        raise ConfigError(
            f"{place.path} does not say how to build the model, because the run was started from "
            f"Python: give the module, fafed.load({str(place.path)!r}, model=...{more})"
        )
    if digest not in (*checkpoint.digests_of(experiment, file), experiment.digest_before):
        raise ConfigError(
            f"{file} belongs to another experiment than {place.path / 'experiment.toml'} (its "
            f"digest is {digest[:12]}, this one's is {experiment.digest[:12]}): set that file "
            "back, or give the module with model="
        )
    options = dict(experiment.model.options)
    if model_options.missing(experiment):
        options |= place.json("environment.json").get("model", {})
    return models.build(experiment.model.name, seed=experiment.seed, **options)


# Saved states: a flat vector and buffers, without names.


def best_of(records: list[Record]) -> Record | None:
    """The record with the lowest validation loss; the first of several."""
    measured = [record for record in records if "loss" in record.validation]
    finite = [record for record in measured if record.validation["loss"] < float("inf")]
    return min(finite, key=lambda record: record.validation["loss"], default=None)


def best_path(folder: Path, round: int) -> Path:
    """The file with the state of a round that was the best one when it ended."""
    return folder / f"best-{round:07d}.safetensors"


def _best_state(place: RunDir) -> Path | None:
    best = best_of(place.records())
    path = None if best is None else best_path(place.checkpoints, best.round)
    return path if path is not None and path.is_file() else None


def _newest_checkpoint(place: RunDir) -> Path | None:
    """The newest undamaged one."""
    for path in checkpoint.found(place.checkpoints):
        try:
            checkpoint.verify(path)
        except checkpoint.CheckpointError as cause:
            log.warning("%s; trying the one before it", cause)
        else:
            return path
    return None


def _state(path: Path, which: str) -> tuple[Tensor, tuple[Tensor, ...], int, str]:
    """The vector and the buffers in a checkpoint or in a best state; its round and digest."""
    if which == "best":
        found = read(path)
        x, buffers = state_in(found.tensors, "")
        return x, buffers, int(found.facts["round"]), str(found.facts["digest"])
    x, buffers = state_in(checkpoint.verify(path), "server.")
    return x, buffers, checkpoint.round_of(path), checkpoint.digest_of(path)


def state_in(tensors: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The vector `0.x` and the buffers `1.0`, `1.1`, ... of a flat tree (shared, buffers)."""
    count = sum(name.startswith(f"{prefix}1.") for name in tensors)
    return tensors[f"{prefix}0.x"], tuple(tensors[f"{prefix}1.{i}"] for i in range(count))
