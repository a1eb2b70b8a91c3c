"""The rules of the study: what is run, for how long, and how settings are chosen.

They are read from configs/protocol.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fafed.errors import ConfigError
from fafed.experiments.config import Experiment, Part

Settings = Mapping[str, Any]  # hyper-parameters of an algorithm


class Rung(Part):
    """One pass of a search by successive halving."""

    share: float = Field(gt=0, le=1)  # of the rounds
    keep: int = Field(ge=1)  # trials that go on to the next rung
    tail: int = Field(ge=1)  # evaluations whose mean counts
    more_seeds: list[int] = Field(default_factory=list)  # in addition to choosing_seed


class Reading(Part):
    column: str  # of table2
    about: str
    why: str


class Budget(Part):
    algorithm: str
    rounds: int = Field(ge=1)


class Search(Part):
    trials: int = Field(ge=1)
    rungs: list[Rung] = Field(min_length=1)


class Tuned(Search):
    eta_times: list[float]  # factors of the eta that the search on the paper's grid chose
    grids: dict[str, dict[str, list[Any]]]  # by method: the other hyper-parameters
    also: dict[str, Settings]  # by method: its choice is measured again with these settings


class Momentum(Part):
    """One kind of momentum, and the methods to which it is added."""

    about: str
    methods: list[str]
    grid: dict[str, list[Any]]
    eta_times: list[float]  # factors of the eta that the two searches chose


class Long(Part):
    times: int = Field(ge=2)


class Sensitivity(Part):
    experiment: str
    algorithm: str
    share: float
    seed: int
    values: dict[str, list[Any]]


class Deviation(Part):
    about: str
    experiment: str
    methods: list[str]
    settings: dict[str, Any] = Field(default_factory=dict)
    changes: dict[str, Any] = Field(default_factory=dict)


class Curves(Search):
    rounds: int
    seed: int
    data: dict[str, list[str]]  # dataset -> experiments; the first one chooses the settings


class Decay(Search):
    """Table 2 with a step size that falls in a straight line, on seeds that no choice has seen."""

    seeds: list[int]
    methods: list[str]
    end: float = Field(ge=0, lt=1)  # the last step size as a share of the first
    readings: int = Field(ge=1)  # evaluations of a measured run
    eta_times: list[float]  # factors of the eta in the two latest choices
    grids: dict[str, dict[str, list[Any]]]  # of the methods that have no earlier choice


class Language(Part):
    about: str
    methods: list[str]
    seed: int
    control: bool = False  # whether STEM with FAFED's step over rho is run beside it


class Check(Part):
    """A model of another size, for which the same trials are made."""

    experiment: str
    about: str


class Text(Search):
    """The language model for the paper's whole length, as small as that needs."""

    experiment: str
    about: str
    check: Check
    methods: list[str]
    seeds: list[int]
    grids: dict[str, dict[str, list[Any]]]


class Case(Part):
    about: str
    algorithm: str
    settings: dict[str, Any]
    changes: dict[str, Any] = Field(default_factory=dict)


class FirstRounds(Part):
    """FAFED in the first rounds of a language model, with one thing changed at a time."""

    experiment: str
    rounds: int
    seed: int
    cases: list[Case]


class Again(Search):
    """Figures 2 to 4 on other data: a search at every level, as for Fashion-MNIST."""

    rounds: int
    seeds: list[int]
    data: dict[str, list[str]]  # dataset -> experiments


class Protocol(Part):
    methods: list[str]
    tail: int
    validation: float
    choosing_seed: int
    seeds: list[int]
    fewest_rounds: int
    on_request: list[str]  # stages that are run only if --only names them
    table2: dict[str, dict[str, float]]
    readings: dict[str, Reading]  # by experiment
    budget: Budget
    fair: Search
    tuned: Tuned
    momentum: list[Momentum]
    long: Long
    sensitivity: Sensitivity
    deviations: list[Deviation]
    curves: Curves
    decay: Decay
    text: Text
    first_rounds: FirstRounds
    again: Again
    language: dict[str, Language]
    experiments: dict[str, Experiment]  # the other files of the folder

    @classmethod
    def read(cls, folder: Path) -> Protocol:
        path = folder / "protocol.toml"
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {error}. Start the command where fafed was cloned to, or "
                "say where the folder is"
            ) from error
        content["experiments"] = {
            file.stem: Experiment.read(file)
            for file in sorted(folder.glob("*.toml"))
            if file != path
        }
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(f"{path}: {error}") from None

    def reported(self, name: str) -> dict[str, float]:
        """The paper's accuracies of a level. A reading has those of its level."""
        return self.table2[self.readings[name].column if name in self.readings else name]

    @property
    def other_data(self) -> list[str]:
        return [name for names in self.curves.data.values() for name in names]

    def chosen_at(self, name: str) -> str:
        """The experiment whose trials choose the settings of this one, for `curves`."""
        return next(names[0] for names in self.curves.data.values() if name in names)

    def is_text(self, name: str) -> bool:
        return bool(self.experiment(name).data.partition["kind"] == "contiguous")

    def experiment(self, name: str) -> Experiment:
        if name not in self.experiments:
            raise ConfigError(
                f"protocol.toml names {name!r}, but there is no {name}.toml beside it"
            )
        return self.experiments[name]
