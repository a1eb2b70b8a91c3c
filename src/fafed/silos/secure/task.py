"""What the silos of a secure sum are asked to compute. All of them must be asked for the same.

A server could send the others a model on which their answers are zero, or weights of zero. The sum
would then be the answer of the one that is left. So each silo compares a digest of all that it is
asked for with the one in the plan that the silos have signed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fafed.core.algorithm import AnyAlgorithm
from fafed.engines.encoded import Encoded, Encoder
from fafed.experiments.config import Experiment
from fafed.files import Json
from fafed.privacy.encoding import LEAST, Bounds
from fafed.privacy.secure_sum.messages import digest
from fafed.silos import messages
from fafed.silos.messages import ExchangeId, Facts, Refused
from fafed.training.build import weights_of

COMMON = ("epoch_steps", "opening", "bounds", "examples")  # facts that are the same for all silos
MOST = 1000  # the largest exponent of a bound: its number is still a float


def task(experiment: Experiment, clients: int, body: str, facts: Facts) -> bytes:
    """A digest of what a silo is asked for. `body` is that of the numbers in the message."""
    common = {name: facts.get(name) for name in COMMON}
    told = json.dumps([experiment.digest, clients, body, common], sort_keys=True)
    return digest("task", told.encode())


def public_examples(experiment: Experiment, examples: Sequence[int]) -> list[int] | None:
    """The numbers of examples that all silos must know: None unless they are the weights."""
    return list(examples) if experiment.weights == "examples" else None


def encoded(
    experiment: Experiment, algorithm: AnyAlgorithm, clients: int, examples: Sequence[int] | None
) -> Encoded:
    """The encoding of a run, as in the simulation."""
    weights = weights_of(experiment.weights, examples or [1] * clients)
    return Encoded(experiment.privacy_options().encoding(), algorithm, weights, experiment.seed)


def told_bounds(encoder: Encoder) -> dict[str, Json]:
    """The exponents that a silo needs: those of this kind of exchange."""
    start = f"{encoder.kind}."
    return {name: e for name, e in encoder.bounds.known.items() if name.startswith(start)}


def silo_encoder(
    experiment: Experiment,
    algorithm: AnyAlgorithm,
    place: ExchangeId,
    facts: Facts,
    *,
    client: int,
    clients: int,
    own: int,
) -> Encoder:
    """How the silo encodes its answer. `own` is its number of examples."""
    examples = facts.get("examples")
    if public_examples(experiment, ()) is None:
        if examples is not None:
            raise Refused("examples are no weights here, but it holds them")
    elif not (isinstance(examples, list) and len(examples) == clients):
        raise Refused(f"examples is {messages.clean(examples, 80)}, not a number for each silo")
    elif examples[client] != own or not all(type(n) is int and n > 0 for n in examples):
        raise Refused("examples is wrong: the sum would not have this silo's own weight")
    bounds = facts.get("bounds")
    if not isinstance(bounds, dict):
        raise Refused(f"bounds is {messages.clean(bounds, 80)}, it must be a table")
    known = {
        str(name): messages.number(bounds, name, whole=True, low=LEAST, high=MOST)
        for name in bounds
    }
    found = encoded(experiment, algorithm, clients, examples)
    found.pending, found.place = Bounds(found.encoding, known), place.exchange
    step = (place.round - 1) * experiment.local_steps
    return found.encoder(step, bool(facts.get("opening")))
