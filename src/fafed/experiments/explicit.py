"""An experiment with all its values written out, for machines that may have another fafed.

A file need not name what has a default. If a server and a silo have different versions of fafed,
their defaults can differ. So the server sends the values that it means. A silo that does not know
one of them refuses it by name. A default that is None says that there is nothing, and is left out.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from fafed import models
from fafed.algorithms import find
from fafed.core import schedules
from fafed.experiments.config import Experiment


def explicit(experiment: Experiment) -> Experiment:
    """The same experiment. It names the settings of its algorithm with their schedules, and the
    options of fafed's models, of [wire] and of [privacy]."""
    algorithm, model = experiment.algorithm, experiment.model
    settings = _defaults(find(algorithm.name)) | algorithm.options
    own = {name: _with_schedule(value) for name, value in settings.items()}
    changes: dict[str, Any] = {"algorithm": {"name": algorithm.name, **own}}
    if model.name in models.MODELS:
        options = inspect.signature(models.MODELS[model.name]).parameters.values()
        defaults = {p.name: p.default for p in options if p.default is not p.empty}
        changes["model"] = {"name": model.name, **_plain(defaults), **model.options}
    if (wire := experiment.wire_options()) is not None:
        changes["wire"] = _plain(dataclasses.asdict(wire))
    if experiment.privacy:
        changes["privacy"] = _plain(dataclasses.asdict(experiment.privacy_options()))
    return experiment.changed(**changes)


def _defaults(kind: type) -> dict[str, Any]:
    """The defaults of a class of settings."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return _plain({f.name: f.default for f in fields if f.init})


def _with_schedule(value: Any) -> Any:
    """A table that stands for a schedule gets the schedule's defaults."""
    if not isinstance(value, Mapping) or value.get("schedule") not in schedules.NAMED:
        return value
    return _defaults(schedules.NAMED[value["schedule"]]) | dict(value)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a file can hold."""
    as_lists = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    kinds = (bool, int, float, str, list, dict)
    return {k: v for k, v in as_lists.items() if isinstance(v, kinds)}
