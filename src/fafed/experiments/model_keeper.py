"""While a run goes on, keep the best model. At its end, write the model files.

The state of the round with the lowest validation loss so far is in `checkpoints/best-*`: the vector
and the buffers. It is written before the checkpoint of its round. A run may go back to any of its
checkpoints, so the best state up to the oldest one is kept, and every later one. A state of a round
that is repeated is deleted when the run resumes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

from fafed import files
from fafed.core.records import Record
from fafed.errors import FafedError
from fafed.experiments import checkpoint, model_file
from fafed.experiments.checkpoint import Saver
from fafed.experiments.rundir import MODEL_FILES, NORMALISATION, RunDir
from fafed.files import Json
from fafed.objectives.module import Model
from fafed.training.loop import State

log = logging.getLogger("fafed")


class ModelKeeper:
    """Keeps the best state of a run, and writes its models at the end."""

    def __init__(
        self, place: RunDir, digest: str, goal: Model, records: Sequence[Record], saver: Saver
    ) -> None:
        """records: those of the rounds that the run goes on from."""
        self.place, self.digest, self.goal, self.saver = place, digest, goal, saver
        self.best = model_file.best_of(list(records))
        for path in self._states():
            if _round(path) > len(records):
                path.unlink()
            else:
                files.sync_path(path)

    def after_round(self, state: State, record: Record, *, last: bool) -> None:
        """Call this after a round's record is written and before its checkpoint."""
        for name in MODEL_FILES.values():  # of an earlier end, if rounds were added
            (self.place.path / name).unlink(missing_ok=True)
        lowest = self.best.validation["loss"] if self.best else math.inf
        if record.validation.get("loss", math.inf) < lowest:
            self.best = record
            self._keep(state)
        if last:
            self._finish(state)

    def _keep(self, state: State) -> None:
        tensors = {"0.x": state.shared.x}
        tensors |= {f"1.{i}": buffer for i, buffer in enumerate(state.buffers)}
        path = model_file.best_path(self.place.checkpoints, state.round)
        facts = model_file.facts_of("best", self.digest, state.round)
        model_file.write(path, tensors, facts, sync=False)
        self.saver.unsynced.append(path)
        oldest = min(map(checkpoint.round_of, checkpoint.found(self.place.checkpoints)), default=0)
        for old in [p for p in self._states() if _round(p) <= oldest][1:]:
            old.unlink()

    def _finish(self, state: State) -> None:
        names = self.goal.state_dict(state.shared.x, state.buffers)
        facts = model_file.facts_of("last", self.digest, state.round, **self._inputs())
        model_file.write(self.place.path / MODEL_FILES["last"], names, facts)
        if self.best is None:
            return
        try:
            path = model_file.best_path(self.place.checkpoints, self.best.round)
            x, buffers = model_file.state_in(model_file.read(path).tensors, "")
        except FafedError as cause:
            log.warning("%s: there is no best model: %s", self.place.path, cause)
            return
        facts = model_file.facts_of(
            "best",
            self.digest,
            self.best.round,
            validation_loss=self.best.validation["loss"],
            **self._inputs(),
        )
        names = self.goal.state_dict(x, buffers)
        model_file.write(self.place.path / MODEL_FILES["best"], names, facts)

    def _inputs(self) -> dict[str, Json]:
        return model_file.normalisation_of(self.place.json(NORMALISATION))

    def _states(self) -> list[Path]:
        """The best states, newest first."""
        return sorted(self.place.checkpoints.glob("best-*.safetensors"), reverse=True)


def _round(path: Path) -> int:
    digits = path.stem.removeprefix("best-")
    return int(digits) if digits.isdecimal() else 0
