"""A silo's own file: its data, its folder, and the code that it lets run.

    folder = "/srv/fafed"                    # what the silo keeps: states, the audit file
    allow = ["fashion-cnn", "my_models:Net"] # models and own code that may run here

    [data]
    folder = "/srv/records"                  # or function = "module:function", or share = true

The file stays on the silo. The server learns no path and no example, only how many examples there
are. `share = true` takes this client's share of the experiment's own data, for try-outs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from fafed import data as datasets
from fafed.data.batches import Examples, Source
from fafed.errors import ConfigError, DataError
from fafed.experiment import Experiment, Part
from fafed.preparation import held_out, shard, sizes


class Refusal(ConfigError):
    """The experiment wants code to run here that the silo's file does not allow."""


class SiteData(Part):
    folder: str | None = None  # one .npz, .safetensors or .parquet file (and perhaps a test file)
    function: str | None = None  # "module:function" returning ([(inputs, targets)], None)
    options: dict[str, Any] = Field(default_factory=dict)  # for the function
    share: bool = False  # the client's share of the experiment's own data

    @model_validator(mode="after")
    def _one_origin(self) -> SiteData:
        given = [k for k in ("folder", "function", "share") if getattr(self, k)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of folder, function, share; got {given or 'none'}")
        return self


class Site(Part):
    folder: Path = Field(strict=False)
    allow: list[str]
    data: SiteData
    limit: int = Field(default=16 * 2**30, ge=1)  # bytes of a message

    @classmethod
    def read(cls, path: Path) -> Site:
        try:
            site = cls.model_validate(tomllib.loads(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
            raise ConfigError(
                f"the silo's file {path} cannot be read: {cause}; docs/silos.md shows one"
            ) from cause
        except ValidationError as cause:
            wrong = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}"
                for e in cause.errors()
            )
            raise ConfigError(f"the silo's file {path}: {wrong}") from None
        return site.model_copy(update={"folder": path.parent / site.folder})

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment that names code beyond the allow-list."""
        for what, name in self._code(experiment):
            if name not in self.allow:
                raise Refusal(
                    f"{what} {name!r} is not on this silo's allow-list; who runs the silo can add "
                    "it to `allow` in the silo's file"
                )

    def _code(self, experiment: Experiment) -> Iterator[tuple[str, str]]:
        yield "model", experiment.model.name
        if ":" in experiment.algorithm.name:
            yield "algorithm", experiment.algorithm.name
        if ":" in experiment.loss:
            yield "loss", experiment.loss
        if self.data.share:
            for what in ("function", "folder"):  # what the experiment would read here
                if (name := getattr(experiment.data, what)) is not None:
                    yield f"data {what}", name

    def source(self, experiment: Experiment, client: int, clients: int) -> tuple[Source, bool]:
        """What this client draws from, and whether it is text."""
        if self.data.share:
            shards = shard(experiment)
            if len(shards.source.examples) != clients:
                raise ConfigError(
                    f"the experiment's data has {len(shards.source.examples)} clients, but there "
                    f"are {clients} silos: use as many"
                )
            return shards.source, shards.text
        own = (
            datasets.from_folder(self.data.folder)
            if self.data.folder
            else datasets.from_function(self.data.function or "", **self.data.options)
        )
        if len(own.clients) != 1:
            raise DataError(f"the silo's data has {len(own.clients)} clients: a silo is one")
        (pool,) = own.clients
        rows, _ = held_out(len(pool[0]), experiment.data.validation, experiment.seed + client)
        # Draws depend on the client's number, so it keeps its place among stand-ins of one row.
        parts = [rows if i == client else np.zeros(1, np.int64) for i in range(clients)]
        return Examples(pool, parts, **sizes(experiment)), False
