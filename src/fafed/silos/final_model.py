"""The final model of a run goes to the silos that made it.

After the last round the server sends `final` to every silo that is present: the vector and the
buffers of the model. The silo builds the module from the experiment, as it does for training, and
writes `model.safetensors` with `experiment.toml` beside it into its folder of the run. So
`fafed.load` reads this folder, too. A silo accepts one final model. A message that repeats it is
answered and changes nothing. Another model is refused, unless rounds were added to the run.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from fafed import files
from fafed.core import tree
from fafed.data.normalise import Normalisation
from fafed.errors import FafedError
from fafed.experiments import model_file
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import MODEL_FILES, RunDir
from fafed.objectives.module import Model
from fafed.silos import messages
from fafed.silos.messages import ExchangeId, Message, Refused, Shapes
from fafed.silos.server import Mailbox, log
from fafed.training.loop import State

KIND, ANSWER = "final", "kept"
MARK = "final.json"  # which final model the silo has accepted


def hand_out(mailbox: Mailbox, run: str, state: State) -> list[str]:
    """Send the final model to the silos that are present. Return those that have kept it. A silo
    that is absent, or does not want it, does not disturb the run, which is finished and saved."""
    silos, here = mailbox.federation.silos, set(mailbox.transport.present())
    place = ExchangeId(run, state.round, 0, secrets.token_hex(8))
    packed = messages.pack((state.shared.x, state.buffers))
    message = messages.write(KIND, place, {}, packed)
    requests = {silo: message for silo in silos if silo in here}
    kinds: dict[str, Shapes] = {ANSWER: {}, "refused": {}, "failed": {}}
    kept = []
    for silo, found in mailbox.ask(
        requests, place, kinds, packed.digest, mailbox.federation.deadline
    ):
        if found is not None and found.kind == ANSWER:
            kept.append(silo)
        elif found is not None:
            why = messages.clean(found.facts.get("why", found.facts.get("error", "")))
            log.warning("silo %r does not keep the final model: %s", silo, why)
    log.info("these silos have the final model: %s", ", ".join(sorted(kept)))
    if without := [silo for silo in silos if silo not in kept]:
        log.warning(
            "these silos do not have the final model: %s. Whoever wants it can have %s of the run",
            *(", ".join(without), MODEL_FILES["last"]),
        )
    return kept


def owed(place: RunDir, silos: Sequence[str]) -> bool:
    """Whether a run is finished, and one of its silos has not answered to the final model: the
    server ended before it could hand it out, or the silo was absent."""
    if not place.exists or not place.finished():
        return False
    rounds, offered, answered = place.experiment().rounds, set(), set()
    path = place.path / "audit.jsonl"
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a crash may cut a line short
            told = json.loads(line)
            if told["round"] == rounds and told["kind"] == KIND:
                offered.add(told["attempt"])
            elif told["direction"] == "received" and told["attempt"] in offered:
                answered.add(told["peer"])
    return not set(silos) <= answered


class _Mark(TypedDict):
    round: int
    sha256: str


def keep(
    request: Message,
    place: ExchangeId,
    experiment: Experiment,
    goal: Model,
    folder: Path,
    limit: int,
    normalisation: Normalisation | None = None,
) -> None:
    """On a silo: check the final model and write it into the silo's folder of the run."""
    budget = experiment.privacy_options().max_epsilon  # with one, a run may end earlier
    first = experiment.rounds if budget is None else 1
    if not first <= place.round <= experiment.rounds or place.exchange:
        raise Refused(
            f"it is a final model of round {place.round}, exchange {place.exchange}: the run ends "
            f"with round {experiment.rounds}, exchange 0"
        )
    like = (goal.x0, goal.start().buffers)
    found = messages.read(request, place, {KIND: messages.shapes(like)}, limit)
    mark: _Mark = {"round": place.round, "sha256": found.digest}
    before = _accepted(folder / MARK)
    if before == mark:
        return
    if before is not None and before["round"] >= place.round:
        raise Refused(
            f"this silo has the final model of the run already, of round {before['round']}: it "
            "takes one"
        )
    x, buffers = tree.unflatten(like, found.tensors)
    inputs = model_file.normalisation_of(dict(normalisation.to_dict()) if normalisation else None)
    facts = model_file.facts_of(
        "last", experiment.digest, place.round, sha256=found.digest, **inputs
    )
    toml = experiment.to_toml().encode()
    files.write(folder / "experiment.toml", [toml], private=True)
    path = folder / MODEL_FILES["last"]
    model_file.write(path, goal.state_dict(x, buffers), facts, private=True)
    files.write(folder / MARK, [json.dumps(mark).encode()], private=True)
    log.info("the final model of the run is in %s", path)


def _accepted(path: Path) -> _Mark | None:
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text("utf-8"))
        return {"round": int(told["round"]), "sha256": str(told["sha256"])}
    except (OSError, ValueError, TypeError, KeyError) as cause:
        raise FafedError(
            f"{path} is damaged ({cause}): delete it to accept a model again"
        ) from cause
