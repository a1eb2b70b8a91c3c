"""A silo's own file: its data, its folder, the code that may run, and what it refuses.

    folder = "/srv/fafed"                    # what the silo keeps: states, the audit file
    allow = ["fashion-cnn", "my_models:Net"] # models and own code that may run here

    tell_faults = true                       # the server may learn what is wrong with the data

    [data]
    folder = "/srv/records"                  # or function = "module:function", or share = true
    table = { ... }                          # rules for .csv and .parquet: `fafed.data.tables`

    [limits]                                 # see `fafed.silos.limits`
    min_batch_size = 64

    [model]
    keep = true                              # whether the silo takes the final model of a run

    [evaluate]                               # without it, no evaluation leaves the silo
    share = 0.2                              # held out from the rows to train on
    send = ["loss", "accuracy"]              # the numbers that may leave

    [link]
    rate = 1_000_000                         # bytes per second, each way; 0: no limit

    [secure]                                 # secure aggregation: docs/privacy.md
    silos = ["north", "south", "west"]       # who may be in a sum with this silo, itself included

The file stays on the silo. The server learns no path and no example, only the number of examples.
`share = true` takes this client's share of the experiment's own data, for a local federation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from fafed import data as datasets
from fafed.data.client_test import held_out_of
from fafed.data.loading import open_data
from fafed.data.normalise import Normalisation, inputs_of, normalised
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Examples
from fafed.errors import ConfigError, DataError
from fafed.experiments.assemble import Shards, held_out, shard, sizes
from fafed.experiments.config import Experiment, Part, explained
from fafed.silos.column_sums import check_far
from fafed.silos.limits import Limits, Refusal
from fafed.training.evaluation import Part as EvaluationPart
from fafed.training.evaluation import chunked


class SiteData(Part):
    folder: str | None = None  # one .npz, .safetensors, .parquet or .csv file, perhaps a test file
    function: str | None = None  # "module:function" returning ([(inputs, targets)], None)
    options: dict[str, Any] = Field(default_factory=dict)  # for the function
    table: dict[str, Any] = Field(default_factory=dict)  # of the folder, if its file is a table
    share: bool = False  # the client's share of the experiment's own data

    @model_validator(mode="after")
    def _one_origin(self) -> SiteData:
        given = [k for k in ("folder", "function", "share") if getattr(self, k)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of folder, function, share; got {given or 'none'}")
        self.rules()
        return self

    def examples(self) -> Any:
        """The examples of this silo, as `fafed.data.Own` has them for one client."""
        own = (
            datasets.from_folder(self.folder, self.rules())
            if self.folder
            else datasets.from_function(self.function or "", **self.options)
        )
        if len(own.clients) != 1:
            raise DataError(
                f"the silo's data has {len(own.clients)} clients: a silo is one; keep one file",
                fault="files",
            )
        return own.clients[0]

    def rules(self) -> datasets.Table:
        return datasets.Table.from_dict(self.table)


class SiteModel(Part):
    keep: bool = True  # whether the silo takes the final model of a run, see `final_model`


class Link(Part):
    """The silo's line to the server. Where it is slow, messages travel in smaller pieces."""

    rate: int = Field(default=0, ge=0)  # bytes per second, each way; 0: no limit


class Evaluate(Part):
    """What the silo measures of the server's model on rows of its own, and what of it may leave."""

    share: float = Field(default=0.0, ge=0, lt=1, strict=False)  # 0: the experiment's client_test
    send: list[str] = Field(default_factory=list)  # "loss", and metrics of the experiment
    min_rows: int = Field(default=20, ge=1)  # with fewer rows held out, nothing leaves


class Secure(Part):
    """Who a silo is in a secure sum, and whom it trusts there."""

    silos: list[str] = Field(default_factory=list)  # with certificates of the kit's authority
    keys: dict[str, str] = Field(default_factory=dict)  # or silo -> public key, which is pinned
    name: str | None = None  # of this silo, where the transport does not tell it: Flower
    key: Path | None = Field(default=None, strict=False)  # this silo's private key; None: the kit's

    @model_validator(mode="after")
    def _one_list(self) -> Secure:
        if self.silos and self.keys:
            raise ValueError("give one of silos and keys: pinned keys are the list of silos, too")
        return self


class Kit(NamedTuple):
    """Files with which a transport gives a silo its name: PEM."""

    key: Path
    certificate: Path
    authority: Path  # the project's root certificate


class SiloData(NamedTuple):
    """What a silo draws batches from, and what it evaluates on."""

    source: Source
    text: bool
    test: EvaluationPart | None  # the rows that are held out
    test_rows: int


def check_clients(shards: Shards, silos: int) -> None:
    """An error if an experiment's own data does not have one client for each silo."""
    clients = len(shards.source.examples)
    if clients != silos:
        raise ConfigError(
            f"the experiment's data has {clients} clients, but there are {silos} silos: use as many"
        )


class Site(Part):
    folder: Path = Field(strict=False)
    allow: list[str]
    data: SiteData
    limit: int = Field(default=16 * 2**30, ge=1)  # bytes of a message
    tell_faults: bool = False  # whether the server may learn the kind of a fault in the data
    limits: Limits = Limits()
    model: SiteModel = SiteModel()
    evaluate: Evaluate = Evaluate()
    link: Link = Link()
    secure: Secure = Secure()

    @classmethod
    def read(cls, path: Path) -> Site:
        try:
            site = cls.model_validate(tomllib.loads(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
            raise ConfigError(
                f"the silo's file {path} cannot be read: {cause}; docs/silos.md shows one"
            ) from cause
        except ValidationError as cause:
            raise ConfigError(f"the silo's file {path}: {explained(cause, cls)}") from None
        changes: dict[str, object] = {"folder": path.parent / site.folder}
        if site.secure.key is not None:
            changes["secure"] = site.secure.model_copy(
                update={"key": path.parent / site.secure.key}
            )
        return site.model_copy(update=changes)

    def check(self, experiment: Experiment, clients: int) -> None:
        """Refuse code that is not on the allow-list, and what exceeds the machine's limits."""
        refuse_epochs(experiment)
        for what, name in self._code(experiment):
            if name not in self.allow:
                raise Refusal(
                    f"{what} {name!r} is not on this silo's allow-list; who runs the silo can add "
                    "it to `allow` in the silo's file"
                )
        self.limits.check_machine(experiment, clients)

    def _code(self, experiment: Experiment) -> Iterator[tuple[str, str]]:
        yield "model", experiment.model.name
        if ":" in experiment.algorithm.name:
            yield "algorithm", experiment.algorithm.name
        if ":" in experiment.loss:
            yield "loss", experiment.loss
        for name in experiment.metrics:
            if ":" in name and name in self.evaluate.send:
                yield "metric", name
        if self.data.share:
            yield from _data(experiment)

    def sends(self, experiment: Experiment, found: SiloData) -> list[str]:
        """The numbers about the server's model that leave the silo."""
        if found.test is None or found.test_rows < self.evaluate.min_rows:
            return []
        known = ["loss", *experiment.metric_names(text=found.text)]
        return [name for name in known if name in self.evaluate.send]

    def rows(self, experiment: Experiment, client: int) -> tuple[Tensor, tuple[bool, ...]]:
        """All inputs of this client as they are, also those of rows that are held out, and which
        of them are numbers (`fafed.data.normalise`)."""
        if not self.data.share:
            source, *_ = open_data([self.data.examples()])
            return inputs_of(source), self.data.rules().numbers()
        changes = {"normalise": None, "validation": 0.0, "client_test": 0.0}
        plain = experiment.data.model_copy(update=changes)
        found = shard(experiment.model_copy(update={"data": plain})).source
        rules = datasets.Table.from_dict(experiment.data.table)
        inputs = inputs_of(found)
        assert isinstance(found, Examples)
        return inputs[torch.from_numpy(found.parts[client])], rules.numbers()

    def load(
        self,
        experiment: Experiment,
        client: int,
        clients: int,
        normalisation: Normalisation | None = None,
    ) -> SiloData:
        """The data of this client. Without a normalisation, inputs are as they are."""
        if self.data.share:
            if normalisation is None:
                plain = experiment.data.model_copy(update={"normalise": None})
                experiment = experiment.model_copy(update={"data": plain})
            shards = shard(experiment, normalisation)
            check_clients(shards, clients)
            shared = shards.client_test[client] if shards.client_test else None
            count = sum(one.size for one in shared()) if shared else 0
            return SiloData(shards.source, shards.text, shared, count)
        source, *_ = open_data([self.data.examples()], **sizes(experiment))
        if normalisation is not None:
            check_far(inputs_of(source), normalisation)
            source = normalised(source, normalisation)
        (n,) = source.examples
        rows, _ = held_out(n, experiment.data.validation, experiment.seed + client)
        share = self.evaluate.share or experiment.data.client_test
        test: EvaluationPart | None = None
        held = np.zeros(0, np.int64)
        if share:
            rows, held = held_out_of(rows, share, experiment.seed, client)
            test = chunked(source.part(held), experiment.eval_batch_size)
        self.limits.check_rows(experiment, experiment.algorithm_object(1), len(rows))
        # Draws depend on the client's number. So every other client is a stand-in of one row.
        parts = [rows if i == client else np.zeros(1, np.int64) for i in range(clients)]
        return SiloData(source.with_parts(parts), False, test, len(held))


def refuse_epochs(experiment: Experiment) -> None:
    """A silo does not know how many examples the others have."""
    if experiment.local_epochs is not None:
        raise Refusal(
            f"local_epochs = {experiment.local_epochs} needs the sizes of all clients' data, which "
            "silos do not share: give local_steps"
        )


def check_server(experiment: Experiment, allow: Sequence[str], *, shares_data: bool) -> None:
    """Refuse code that may not run on the server, which builds the experiment, too. fafed's own
    code may always run."""
    refuse_epochs(experiment)
    own = [("model", experiment.model.name), ("algorithm", experiment.algorithm.name)]
    own += [("loss", experiment.loss), *(("metric", name) for name in experiment.metrics)]
    found = [(what, name) for what, name in own if ":" in name]
    for what, name in (*found, *(_data(experiment) if shares_data else ())):
        if name not in allow:
            raise Refusal(
                f"{what} {name!r} is not on the server's allow-list; who runs the server can add "
                "it to `allow` in the server's file"
            )


def _data(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """The data that the experiment would read if its own data were used."""
    for what in ("function", "folder", "collate"):
        if (name := getattr(experiment.data, what)) is not None:
            yield f"data {what}", name
