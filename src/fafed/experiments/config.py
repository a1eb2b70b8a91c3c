"""An experiment: one frozen, validated value <-> one TOML file.

    rounds = 100                         [data]                      [model]
    local_steps = 5                      name = "fashion-mnist"      name = "fashion-cnn"
    batch_size = 100                     clients = 20
                                         partition = { kind = "high", form = "groups" }
    [algorithm]
    name = "fafed"                       [settings.fedavg]           # for another algorithm in
    eta = 0.01                           eta = 0.1                   # `fafed compare`

The tables of the model, the partition and the algorithm take its options. A step size is a number
or a schedule, `eta = { schedule = "linear", peak = 0.1, warmup = 0.1 }` or
`eta = { schedule = "power", kappa = 20.0, every = "epoch" }` (`fafed.schedules`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fafed.core.plain import plain
from fafed.core.words import cure
from fafed.errors import ConfigError, nearest
from fafed.experiments import earlier
from fafed.experiments.toml_text import apply, located, to_toml
from fafed.files import Json

if TYPE_CHECKING:
    from fafed.core.algorithm import AnyAlgorithm
    from fafed.core.wire import Wire
    from fafed.privacy.options import Privacy

FULL = Literal["full"]
# An example of what a table holds, for a file that has something else in its place.
TABLES = {
    "algorithm": 'name = "fedavg"',
    "data": 'name = "fashion-mnist"',
    "data.partition": 'kind = "dirichlet", alpha = 0.3',
    "model": 'name = "mlp"',
    "privacy": "secure = true",
    "wire": 'up = "int8"',
    "search": "fedavg = { eta = [0.01, 0.1] }",
    "settings": "fedavg = { eta = 0.1 }",
}


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Named(Part):
    """A name, and options for the thing it names."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Data(Part):
    name: str | None = None  # a dataset of `fafed data list`
    function: str | None = None  # your own: "module:function" returning (clients, test)
    folder: str | None = None  # your own: one file per client
    options: dict[str, Any] = {}  # for the function
    table: dict[str, Any] = {}  # of the folder: how columns become inputs, `fafed.data.tables`
    normalise: Literal["shared"] | None = None  # of inputs, over all clients: `data.normalise`
    clients: int = Field(default=20, ge=1)
    partition: dict[str, Any] = {"kind": "moderate"}
    validation: float = Field(default=0.0, ge=0, lt=1)  # share of the training data held out
    client_test: float = Field(default=0.0, ge=0, lt=1)  # share of each client's data to test on
    train_sample: int = Field(default=5000, ge=0)  # examples to evaluate the training loss on
    bptt: int = Field(default=35, ge=1)  # text: tokens per step and column
    words: int | None = Field(default=None, ge=2)  # text: the most frequent ones; others are <unk>
    tokens: int | None = Field(default=None, ge=1)  # text: train on the first so many
    # For a function that returns Datasets, and for tensors `device` (docs/data.md):
    collate: str | None = None  # "module:function" that makes a batch of a list of items
    workers: int = Field(default=1, ge=0)  # threads that read ahead
    processes: bool = False  # processes in place of threads
    cache: int | str | None = None  # "1GB": only for items that are always the same
    device: str | None = None  # where tensors are held

    @model_validator(mode="after")
    def _one_origin(self) -> Data:
        given = [k for k in ("name", "function", "folder") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of name, function, folder; got {given or 'none'}")
        if "kind" not in self.partition:
            raise ValueError("partition needs a kind, for example { kind = 'high' }")
        if self.table and self.folder is None:
            raise ValueError("table is for the files of a folder: give folder, or leave it out")
        if self.normalise and self.name is not None:
            raise ValueError("normalise is for tables of your own: give function or folder")
        return self


class Experiment(Part):
    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    rounds: int
    local_steps: int = 10
    local_epochs: float | None = Field(default=None, gt=0)  # in place of local_steps
    batch_size: int | FULL = 50
    opening_batch_size: int | FULL | None = None  # of the first estimate; local_steps * batch_size
    seed: int = 0
    engine: Literal["auto", "loop", "vmap", "native"] = "auto"
    threads: int = 1  # fixed, because it can change the last digits
    device: str = "cpu"
    eval_every: int = 1
    eval_batch_size: int | None = None  # examples in a forward pass; 1000
    personalise: int = Field(default=0, ge=0)  # evaluate clients after so many steps of their own
    personalise_eta: float | None = Field(default=None, gt=0)  # of these; the algorithm's eta
    checkpoint_every: int = 1
    weights: Literal["uniform", "examples"] | list[float] = "uniform"
    participation: float | list[list[int]] = 1.0
    failure: float = 0.0
    clip: float | None = None
    weight_decay: float = 0.0
    sam: float = 0.0  # the radius of sharpness-aware gradients
    amp: Literal["bf16"] | None = None  # mixed precision
    loss: str = "auto"  # cross_entropy, mse, or "module:function"
    metrics: list[str] = ["accuracy"]  # of `fafed.metrics`, or "module:name"
    privacy: dict[str, Any] = {}  # see `help(fafed.Privacy)`
    wire: dict[str, Any] = {}  # see `help(fafed.Wire)`
    baseline: Literal["local", "pooled"] | None = None  # to compare with: docs/evaluation.md
    data: Data
    model: Named
    algorithm: Named
    settings: dict[str, dict[str, Any]] = {}  # algorithm -> hyper-parameters, for `compare`
    search: dict[str, dict[str, list[Any]]] = {}  # algorithm -> grid, for `tune`
    python: dict[str, Any] = {}  # of a run that Python code began: see `python_run`

    @model_validator(mode="after")
    def _python_is_the_models(self) -> Experiment:
        if self.python and not self.model.name.startswith("python:"):  # silos never allow such one
            raise ValueError("only a run that Python code began has a table [python]")
        return self

    @model_validator(mode="before")
    @classmethod
    def _steps_or_epochs(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("local_epochs") is not None:
            if content.get("local_steps") is not None:
                raise ValueError("give local_steps or local_epochs, not both")
            content = {k: v for k, v in content.items() if k != "local_steps"}
        return content

    @field_validator("*", mode="before")
    @classmethod
    def _argument(cls, value: object, info: ValidationInfo) -> object:
        """The rules are those of `fafed.train`."""
        from fafed.core.arguments import ARGUMENTS

        if info.field_name in ARGUMENTS:
            rule, about = ARGUMENTS[info.field_name]
            if not rule.allows(value):
                raise ValueError(f"it must be {rule}: {about}")
        return value

    # Reading and writing.

    @classmethod
    def from_dict(cls, content: Mapping[str, object], where: str = "experiment") -> Experiment:
        """From nested dictionaries. An error about a wrong key suggests the nearest right one."""
        try:
            found = cls.model_validate(_integers_as_floats(cls, _plain(dict(content))))
        except ValidationError as error:
            raise ConfigError(f"{where}: {explained(error, cls)}") from None
        found.check()
        return found

    @classmethod
    def read(cls, source: str | Path, changes: Sequence[str] = ()) -> Experiment:
        """From a TOML file or a preset's name, with changes such as "algorithm.eta=0.1"."""
        path, text = located(source)
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        content.setdefault("name", Path(path).stem)
        for change in changes:
            apply(content, change)
        return cls.from_dict(content, str(path))

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries without empty entries."""
        content = self.model_dump()
        if self.local_epochs is not None:
            del content["local_steps"]
        return cast(dict[str, Any], _without_none(content))

    def to_toml(self) -> str:
        return to_toml(self.to_dict())

    @property
    def digest(self) -> str:
        """A hash of everything that decides the numbers of a round. A checkpoint carries it. The
        number of rounds is not part of it: more rounds do not change earlier ones. (They do if a
        setting follows the length of the run. Then it is.) "v2" is the version of this rule."""
        return self._digest(self.decisive())

    def _digest(self, decisive: Mapping[str, Json]) -> str:
        rounds = self.rounds if self.over_all_rounds else None
        return f"v2-{_hash({**decisive, 'rounds': rounds})}"

    @property
    def earlier_digests(self) -> list[str]:
        """What a run of this experiment may carry that began when another default held. Its file
        names the earlier value now, and did not then."""
        return [self._digest(self.decisive(table)) for table in earlier.unnamed(self._own)]

    @property
    def digest_before(self) -> str:
        """The digest that this file had before any default was replaced."""
        return self._digest(self.decisive(self._own))

    @property
    def _own(self) -> dict[str, Any]:
        return self.algorithm.model_dump()

    @property
    def over_all_rounds(self) -> list[str]:
        """The settings of the algorithm that follow the length of the run, so that another number
        of rounds would change earlier rounds."""
        from fafed.algorithms import ALGORITHMS

        options, known = self.algorithm.options, ALGORITHMS.get(self.algorithm.name)
        falling = [
            name
            for name, value in options.items()
            if isinstance(value, Mapping)
            and value.get("schedule") in ("linear", "cosine")
            and value.get("over") is None
        ]
        filled = known.filled_from_run if known else ()
        return falling + [name for name in filled if not options.get(name)]

    @property
    def fingerprint(self) -> str:
        """The same with the number of rounds. It is part of the run's name. It must never change
        for an experiment, or its run would not be found again. Old checkpoints carry it instead of
        `digest`."""
        return _hash(self.decisive())

    def decisive(self, algorithm: Mapping[str, Any] | None = None) -> dict[str, Json]:
        """Everything that decides the numbers. A default that has replaced another one counts as if
        the file named it."""
        content = self.to_dict()
        content["algorithm"] = _without_none(dict(algorithm or earlier.filled(self._own)))
        for key in ("name", "settings", "search", "checkpoint_every"):
            content.pop(key, None)
        for key in ("workers", "processes", "cache", "device"):  # no digit depends on these
            content["data"].pop(key, None)
        return _without_later(type(self), content)

    def metric_names(self, *, text: bool) -> list[str]:
        """The metrics that are evaluated. The default, accuracy, is left out where there are no
        classes: for a text, and with the loss mse."""
        no_classes = text or self.loss == "mse"
        return [] if no_classes and self.metrics == ["accuracy"] else self.metrics

    @property
    def label(self) -> str:
        """The name of one run of the experiment, as part of a file's name."""
        algorithm = re.sub(r"[^\w.-]", ".", self.algorithm.name)  # no slash in a file name
        return f"{algorithm}-seed{self.seed}-{self.fingerprint[:8]}"

    # Variations.

    def changed(self, **changes: object) -> Experiment:
        return Experiment.from_dict(self.to_dict() | changes, self.name)

    def with_algorithm(self, name: str, **settings: object) -> Experiment:
        """The same experiment with another algorithm, and the file's settings for that one."""
        own = self.algorithm.options if name == self.algorithm.name else {}
        chosen = own | self.settings.get(name, {}) | settings
        return self.changed(algorithm={"name": name, **chosen})

    # The objects behind the names. Imports are inside functions because they load torch.

    def check(self) -> None:
        """Refuse errors that can be found without loading data."""
        from fafed.algorithms import ALGORITHMS
        from fafed.data import DATASETS, Table, partition
        from fafed.privacy.options import check_wire

        privacy = self.privacy_options()
        check_wire(self.wire_options(), privacy, self.baseline)
        Table.from_dict(self.data.table)
        if self.data.normalise and privacy.level is not None:
            raise ConfigError(
                "data.normalise = 'shared' shows exact means of the clients' rows, without noise, "
                f"and privacy.level = {privacy.level!r} promises noise: give the table a scale "
                "that is agreed on, and leave normalise out"
            )
        if self.python:  # the code has made the objects that the names stand for
            return
        for section, table in (("settings", self.settings), ("search", self.search)):
            for name in table:
                if ":" not in name and name not in ALGORITHMS:
                    raise ConfigError(
                        f"{section}.{name}: no such algorithm; {nearest(name, ALGORITHMS)}"
                    )
        chosen = (self.algorithm.name, self.algorithm.options)
        for name, settings in (chosen, *self.settings.items()):
            if ":" not in name:  # the user's own code: a silo asks its allow-list first
                self._algorithm(name, settings, 1).bind_run(self.rounds, self.local_steps)
        if self.data.name is not None:
            if self.data.name not in DATASETS:
                raise ConfigError(
                    f"data.name: no dataset is called {self.data.name!r}; "
                    f"{nearest(self.data.name, DATASETS)}"
                )
            if DATASETS[self.data.name].tables:
                raise ConfigError(
                    f"data.name: {self.data.name!r} is tables of several sites, each a client: "
                    "write a file for each, and give data.folder and data.table "
                    "(examples/heart-disease does it)"
                )
            partition.build(dataset=self.data.name, **self.data.partition)

    def privacy_options(self) -> Privacy:
        from fafed.privacy.options import Privacy

        return Privacy.from_dict(self.privacy)

    def wire_options(self) -> Wire | None:
        from fafed.core.wire import Wire

        return Wire.from_dict(self.wire)

    def algorithm_object(self, epoch_steps: int) -> AnyAlgorithm:
        return self._algorithm(self.algorithm.name, self.algorithm.options, epoch_steps)

    def check_everyone(self) -> None:
        """Refuse absent clients if the algorithm needs all of them. Before the first of many runs:
        each of them would find it, too."""
        from fafed.training.cohort import check_everyone

        check_everyone(self.algorithm_object(1), self.participation, self.failure)

    def bound_algorithm(self, epoch_steps: int, shapes: Sequence[Sequence[int]]) -> AnyAlgorithm:
        """The algorithm for a model with parameters of these shapes and for this run's length, as
        `training.build` makes it in simulation."""
        algorithm = self.algorithm_object(epoch_steps)
        return algorithm.bind_model(shapes).bind_run(self.rounds, self.local_steps)

    def _algorithm(
        self, name: str, settings: Mapping[str, object], epoch_steps: int
    ) -> AnyAlgorithm:
        from fafed.algorithms import find

        units = {"step": 1, "round": self.local_steps, "epoch": epoch_steps}
        return find(name)(**{k: _setting(k, v, units) for k, v in settings.items()})


def _setting(name: str, value: object, units: Mapping[str, int]) -> object:
    """A hyper-parameter: lists become tuples, { schedule = ... } a schedule."""
    from fafed.core import schedules

    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, Mapping):
        return value
    kinds = schedules.NAMED
    options = dict(value)
    kind = options.pop("schedule", None)
    if kind not in kinds:
        raise ConfigError(
            f"{name} = {dict(value)!r}: a schedule needs schedule = one of {', '.join(kinds)}"
        )
    if options.get("every") in units:
        options["every"] = units[options["every"]]
    known = [f.name for f in dataclasses.fields(kinds[kind])]
    for key in options:
        if key not in known:
            raise ConfigError(f"{name}: schedule {kind!r} has no {key!r}; {nearest(key, known)}")
    try:
        return kinds[kind](**options)
    except TypeError as error:
        raise ConfigError(f"{name}: schedule {kind!r} needs {', '.join(known)}: {error}") from error


# The fields that every fingerprint contains. A newer field counts only if it is not at its default.
# So a run that began before the field existed is still the same run.
_FIRST = {
    *("rounds", "local_steps", "batch_size", "opening_batch_size", "seed", "engine", "threads"),
    *("device", "eval_every", "weights", "participation", "failure", "clip", "weight_decay"),
    *("loss", "metrics", "data", "model", "algorithm"),
}
_FIRST_OF_DATA = {
    *("name", "function", "folder", "options", "clients", "partition", "validation"),
    *("train_sample", "bptt"),
}


def _without_later(model: type[BaseModel], content: Mapping[str, Json]) -> dict[str, Json]:
    first = _FIRST_OF_DATA if issubclass(model, Data) else _FIRST
    kept = {}
    for name, value in content.items():
        field = model.model_fields[name]
        if name in first or value != field.get_default(call_default_factory=True):
            if isinstance(value, dict) and field.annotation is Data:
                value = _without_later(Data, value)
            kept[name] = value
    return kept


def _hash(content: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Details of reading and checking.


def explained(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong in a file that should be this model. A wrong key comes with the nearest one."""
    problems = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = _fields_at(model, item["loc"][:-1])
            problems.append(f"unknown key {where!r}; {cure(str(item['loc'][-1]), known)}")
        elif item["type"] == "missing":
            problems.append(f"{where} is missing")
        elif item["type"] in ("dict_type", "model_type"):
            example = TABLES.get(where, "eta = 0.1") if model is Experiment else "..."
            problems.append(
                f"{where} = {item['input']!r}: it must be a table, such as {{ {example} }}"
            )
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{where or 'experiment'} = {item['input']!r}: {message}")
    return "; ".join(dict.fromkeys(problems))


def _fields_at(model: Any, place: tuple[int | str, ...]) -> list[str]:
    for part in place:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def _integers_as_floats(model: type[BaseModel], content: dict[str, object]) -> dict[str, object]:
    """Make 1 a float where a field is a float. Strict validation would refuse the integer."""
    for name, field in model.model_fields.items():
        value = content.get(name)
        kinds = get_args(field.annotation) or (field.annotation,)
        if isinstance(value, dict) and isinstance(field.annotation, type):
            if issubclass(field.annotation, BaseModel):
                content[name] = _integers_as_floats(field.annotation, dict(value))
        elif type(value) is int and float in kinds and int not in kinds:
            content[name] = float(value)
    return content


def _plain(value: Any) -> Any:
    """The same with Python's numbers and lists in place of NumPy's."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(one) for one in value)
    return value.tolist() if isinstance(value, np.ndarray) else plain(value)


def _without_none(value: Json) -> Json:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None and v != {}}
    return value
