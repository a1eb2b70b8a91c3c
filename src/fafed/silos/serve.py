"""A run over silos in an ordinary run directory, with records, checkpoints and reports."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import torch
from torch import Tensor

from fafed import data as datasets
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.records import Record
from fafed.data.normalise import MOST_INPUTS, Normalisation
from fafed.engines.private import refuse_what_mixes_examples
from fafed.errors import FAULTS, ConfigError
from fafed.experiments import assemble, model_options
from fafed.experiments.assemble import Prepared, Shards
from fafed.experiments.config import Experiment
from fafed.experiments.execute import OnRecord, execute
from fafed.experiments.explicit import explicit
from fafed.experiments.rundir import RunDir
from fafed.files import Json
from fafed.objectives.module import Model
from fafed.privacy.options import LEAST_SILOS
from fafed.silos import column_sums, compressed, final_model, memory, messages
from fafed.silos.audit import Audit, logged
from fafed.silos.bounds import Bounds, Guard
from fafed.silos.limits import refuse_client_level
from fafed.silos.messages import EMPTY, Content, ExchangeId, Facts, Refused
from fafed.silos.private import plan
from fafed.silos.remote_engine import NAME as ENGINE_NAME
from fafed.silos.remote_engine import Silos, Spent
from fafed.silos.server import FederationConfig, Mailbox, TooFew, Transport, Unfit, log
from fafed.silos.site import check_server
from fafed.training.budget import Budget
from fafed.training.build import build, weights_of
from fafed.training.evaluation import Parts, chunks, evaluator
from fafed.training.loop import Measure, Run

LASTING = {"DataError", "ConfigError"}  # a silo's errors that only people can correct


def serve(
    experiment: Experiment,
    place: RunDir,
    transport: Transport,
    federation: FederationConfig,
    *,
    measure: str | None = None,
    table: Mapping[str, Any] | None = None,
    allow: Sequence[str] | None = None,
    bounds: Bounds | None = None,
    on_record: OnRecord | None = None,
    authority: Path | None = None,
) -> None:
    """Run the experiment over these silos. Resume it if it has begun before. At the end the silos
    get the final model.

    measure: the data for evaluation: a file of inputs and targets, or "share" for the experiment's
    own data (in a local federation), or None for no evaluation.
    table: the rules for that file, if it is a table: `fafed.data.tables`.
    allow: the code, beside fafed's own, that may run here. None allows any code.
    bounds: what one silo may do to the run.
    authority: the project's root certificate. With it, the server leaves out a silo that takes part
    in a secure sum with a wrong certificate.
    """
    check_privacy(experiment, federation.silos)
    model_options.require_sizes(experiment)
    if allow is not None:
        check_server(experiment, allow, shares_data=measure == "share")
    if experiment.baseline is not None:
        raise ConfigError(
            f"baseline = {experiment.baseline!r} runs in simulation, not over silos: leave it out"
        )
    bounds = bounds or Bounds()
    experiment = experiment.changed(checkpoint_every=1)
    mailbox = Mailbox(transport, federation, Audit(place.path / "audit.jsonl", "server"))
    begun: list[tuple[str, Run]] = []  # the run, and its name for the silos

    def prepare(experiment: Experiment, engine: str | None) -> Prepared:
        if engine not in (None, ENGINE_NAME):
            raise ConfigError(
                f"{place.path} was begun on the engine {engine!r}: resume it there, or give the "
                "run over silos another folder"
            )
        torch.set_num_threads(experiment.threads)
        memory.return_memory()
        if experiment.privacy_options().level == "example":  # before the silos load their data
            refuse_what_mixes_examples(assemble.model(experiment, text=False))
        meant = explicit(experiment)  # a silo's fafed may have other defaults
        known = greeted(meant, place, mailbox, bounds, authority)
        shards = _measured(experiment, measure, table, _normalisation(known))
        goal = assemble.model(experiment, text=shards.text)
        memory.park(goal, place.path)
        metrics = assemble.chosen(experiment, text=shards.text)
        found = evaluator(goal, shards.measured, metrics, threads=experiment.threads)

        def silos(algorithm: AnyAlgorithm) -> Silos:
            if experiment.privacy_options().secure:
                return _secure(meant, algorithm, goal, mailbox, known, bounds, authority)
            return Silos(
                algorithm,
                goal,
                mailbox,
                run=known["run"],
                weights=weights_of(experiment.weights, known["examples"]),
                steps=experiment.local_steps,
                units=known["units"],
                epoch_steps=known["epoch_steps"],
                bounds=bounds,
                sends=known.get("sends", ()),
                wiring=compressed.wiring_of(experiment, algorithm, goal.x0, len(known["silos"])),
            )

        tried = _tried(found, goal, shards.measured, measure)
        run = build(
            experiment.algorithm_object(known["epoch_steps"]),
            goal,
            None,
            rounds=experiment.rounds,
            local_steps=experiment.local_steps,
            seed=experiment.seed,
            engine=silos,
            participation=experiment.participation,
            failure=experiment.failure,
            measure=tried,
            measure_every=experiment.eval_every,
            check_state=True,
            privacy=experiment.privacy_options(),
            wire=experiment.wire_options(),
        )
        there = cast(Silos, run.engine)
        there.spent = known.get("spent", {})
        if experiment.privacy_options().level == "example":
            run.budget = _planned(experiment, goal, known["examples"])
        if known.get("sends"):
            run.measure = _with_silos(tried, there)
        begun.append((known["run"], run))
        return Prepared(run, goal, shards)

    handed_out: list[int] = []

    def hand_out() -> None:
        ((name, run),) = begun
        if run.ended and not handed_out:
            handed_out.append(run.state.round)
            final_model.hand_out(mailbox, name, run.state)

    def recorded(record: Record) -> None:
        hand_out()
        if on_record:
            on_record(record)

    with logged(place.path / "log.txt"):
        finished = place.exists and place.finished() and place.round() >= experiment.rounds
        try:
            execute(experiment, place, recorded, prepare, lag=0)  # silos keep only two rounds
        except TooFew as cause:
            if not finished:
                raise
            log.warning("the run is finished, but its model cannot be handed out: %s", cause)
        else:
            hand_out()  # if an earlier server ended before it could


class Known(TypedDict):
    """What holds for the whole run."""

    run: str
    silos: list[str]
    examples: list[int]  # of each silo
    units: int | None
    epoch_steps: int
    normalisation: NotRequired[dict[str, list[float]]]  # of the inputs, if they have one
    # what the silos say now; not in the file
    sends: NotRequired[list[list[str]]]  # the numbers that each silo sends
    spent: NotRequired[dict[int, Spent]]  # client -> its epsilon, with privacy.level = "example"


def check_privacy(experiment: Experiment, silos: Sequence[str]) -> None:
    """Refuse options that cannot be had over these silos."""
    refuse_client_level(experiment)
    if experiment.privacy_options().secure and len(silos) < LEAST_SILOS:
        raise ConfigError(
            f"a secure sum needs at least {LEAST_SILOS} silos, got {len(silos)}: a sum of two "
            "shows each of them the other's message"
        )


def _planned(experiment: Experiment, goal: Model, examples: Sequence[int]) -> Budget:
    budget = plan(experiment, goal, examples)
    last, accountant = budget.affordable(experiment.rounds), budget.accountant
    log.info(
        "differential privacy of each example: epsilon %.2f at delta %g after round %d, in the "
        "silo that spends most",
        accountant.epsilon(last),
        accountant.delta,
        last,
    )
    return budget


def _secure(
    experiment: Experiment,
    algorithm: AnyAlgorithm,
    goal: Model,
    mailbox: Mailbox,
    known: Known,
    bounds: Bounds,
    authority: Path | None,
) -> Silos:
    from fafed.privacy.secure_sum.identity import ProjectCA  # needs packages of its own
    from fafed.silos.secure.engine import SecureSilos, told

    log.info("%s", told(len(known["silos"])))
    return SecureSilos(
        algorithm,
        goal,
        mailbox,
        experiment=experiment,
        examples=known["examples"],
        run=known["run"],
        units=known["units"],
        epoch_steps=known["epoch_steps"],
        bounds=bounds,
        sends=known.get("sends", ()),
        trust=None if authority is None else ProjectCA(authority.read_bytes()),
    )


class Welcome(NamedTuple):
    """What a silo says of itself."""

    examples: int
    epoch_steps: int | None
    sends: list[str]  # of its evaluation
    spent: Spent | None  # of its privacy budget
    inputs: int | None = None  # of an example, if inputs are to be normalised


def greeted(
    experiment: Experiment,
    place: RunDir,
    mailbox: Mailbox,
    bounds: Bounds,
    authority: Path | None = None,
) -> Known:
    """Tell the silos which experiment runs, and collect what they say about themselves. What they
    say at the first start is used for the whole run. All silos must come to the first start. Later
    `min_silos` are enough."""
    known = place.json("silos.json", "start a new run in another folder")
    federation = mailbox.federation
    if known and known["silos"] != list(federation.silos):
        raise ConfigError(
            f"{place.path} was begun with the silos {known['silos']}, now they are "
            f"{list(federation.silos)}: name the same ones in the same order. If one has left, a "
            "smaller --min-silos goes on without it"
        )
    at = ExchangeId(known.get("run") or f"{experiment.digest[:12]}-{secrets.token_hex(4)}")
    how = _normalisation(known)
    said = _hello(experiment, mailbox, at, how, bounds, first=not known)
    if not known and experiment.data.normalise is not None:
        inputs = {one.inputs for one in said.values()}
        if len(inputs) > 1:
            counts = ", ".join(f"{silo}: {one.inputs}" for silo, one in said.items())
            raise Unfit(f"the silos have different numbers of inputs ({counts}): make them alike")
        how = column_sums.agreed(experiment, mailbox, at.run, inputs.pop() or 0, bounds, authority)
        said = _hello(experiment, mailbox, at, how, bounds, first=True)
    sends = [said[silo].sends if silo in said else [] for silo in federation.silos]
    clients = {silo: client for client, silo in enumerate(federation.silos)}
    spent = {clients[silo]: one.spent for silo, one in said.items() if one.spent is not None}
    if known:
        return cast(Known, known | {"sends": sends, "spent": spent})
    facts = [said[silo] for silo in federation.silos]
    examples = [one.examples for one in facts]
    units = _units(experiment)
    begun: Known = {
        "run": at.run,
        "silos": list(federation.silos),
        "examples": examples,
        "units": units,
        "epoch_steps": facts[0].epoch_steps or _epoch_steps(examples, units),
    }
    if how is not None:
        begun["normalisation"] = how.to_dict()
    place.write_json("silos.json", begun, indent=2, private=True)
    return begun | {"sends": sends, "spent": spent}


def _normalisation(known: Mapping[str, Any]) -> Normalisation | None:
    told = known.get("normalisation")
    return None if told is None else Normalisation.from_dict(told)


def _hello(
    experiment: Experiment,
    mailbox: Mailbox,
    at: ExchangeId,
    how: Normalisation | None,
    bounds: Bounds,
    *,
    first: bool,
) -> dict[str, Welcome]:
    """What the silos say that take part. `first`: all must, because the run begins."""
    federation = mailbox.federation
    told: dict[str, Json] = {"experiment": experiment.to_dict(), "clients": len(federation.silos)}
    if how is not None:
        told["normalisation"] = dict(how.to_dict())
    requests = {
        silo: messages.write("hello", at, told | {"client": client}, EMPTY)
        for client, silo in enumerate(federation.silos)
    }
    kinds: dict[str, messages.Shapes] = {"welcome": {}, "refused": {}, "failed": {}}
    said: dict[str, Welcome] = {}
    declined: dict[str, str] = {}  # silo -> why it will not take part, however often it is asked
    for silo, found in mailbox.ask(requests, at, kinds, EMPTY.digest, federation.start):
        if found is not None and found.kind == "welcome":
            try:
                said[silo] = _welcome(found.facts, experiment)
            except Refused as why:
                log.error("refused the welcome of %r: %s", silo, why)
        elif found is not None:
            reason, lasting = _reason(found)
            log.error("silo %r does not take part: %s", silo, reason)
            if lasting:
                declined[silo] = reason
    if first:
        _drop_unbelievable(said, bounds)
    needed = len(federation.silos) if first else federation.min_silos
    if len(said) < needed:
        missing = [silo for silo in federation.silos if silo not in said]
        if len(federation.silos) - len(declined) < needed:
            reasons = "; ".join(f"{silo}: {declined[silo]}" for silo in missing if silo in declined)
            raise Unfit(f"{reasons}. Correct this there, then give the same command again")
        raise TooFew(
            f"{len(said)} of {len(federation.silos)} silos take part, {missing} do not, and "
            + ("a run begins with all of them" if first else f"min_silos is {needed}")
            + ": start them, look into their logs, or give them more time to load their data "
            f"(start is {federation.start:g} s)"
        )
    return said


def _reason(found: Content) -> tuple[str, bool]:
    """Why a silo does not take part, in the server's own words or those of a refusal, and whether
    it would be the same the next time."""
    if found.kind == "refused":
        return messages.clean(found.facts.get("why", "it refuses")), True
    fault, error = found.facts.get("fault"), found.facts.get("error")
    if isinstance(fault, str) and fault in FAULTS:
        return FAULTS[fault], True
    name = messages.clean(error, 80)
    return f"it failed, and its own log says why ({name})", error in LASTING


def _welcome(facts: Facts, experiment: Experiment) -> Welcome:
    """What a silo says about itself. The silo does not decide the batch size."""
    examples = messages.number(facts, "examples", whole=True, low=1, high=2**40)
    if facts.get("units") != _units(experiment):
        raise Refused(
            f"units is {messages.clean(facts.get('units'), 80)}, expected {_units(experiment)}"
        )
    steps = facts.get("epoch_steps")  # sent if silos share the experiment's own data
    if steps is not None:
        steps = messages.number(facts, "epoch_steps", whole=True, low=1, high=2**40)
    names = ["loss", *experiment.metrics]
    sends = facts.get("sends", [])
    if not isinstance(sends, list) or not all(name in names for name in sends):
        raise Refused(f"sends is {messages.clean(sends, 80)}, it must be some of {names}")
    private = experiment.privacy_options().level == "example"
    spent = Spent.of(facts) if private else None
    inputs = None
    if experiment.data.normalise is not None:
        inputs = messages.number(facts, "inputs", whole=True, low=1, high=MOST_INPUTS)
    return Welcome(examples, steps, [name for name in names if name in sends], spent, inputs)


def _drop_unbelievable(said: dict[str, Welcome], bounds: Bounds) -> None:
    """Leave out silos that claim far more examples than the other silos. The run must not begin
    with them."""
    names = list(said)
    claims = [said[silo].examples for silo in names]
    reasons = Guard(bounds).too_many(claims)
    steps = Counter(said[silo].epoch_steps for silo in names)
    for index, silo in enumerate(names):
        why = reasons.get(index)
        (common, _), *_ = steps.most_common(1)
        if said[silo].epoch_steps != common:
            why = f"epoch_steps is {said[silo].epoch_steps}, the others have {common}"
        if why is not None:
            log.error("refused the welcome of %r: %s", silo, why)
            del said[silo]


def _units(experiment: Experiment) -> int | None:
    """Examples in a step's batch; None if it is the whole shard."""
    return experiment.batch_size if isinstance(experiment.batch_size, int) else None


def _epoch_steps(examples: list[int], units: int | None) -> int:
    return 1 if units is None else max(1, round(sum(examples) / len(examples) / units))


def _measured(
    experiment: Experiment,
    measure: str | None,
    table: Mapping[str, Any] | None,
    how: Normalisation | None,
) -> Shards:
    """The data that the server evaluates on. The server has no training data."""
    nothing: Any = None
    if measure == "share":
        return assemble.shard(experiment, how)._replace(source=nothing)
    none = Shards(nothing, {}, None, None, text=False, normalisation=how)
    if measure is None:
        return none
    inputs, targets = datasets.from_file(measure, datasets.Table.from_dict(table or {}))
    test = (inputs if how is None else how.apply(inputs), targets)
    return none._replace(measured={"test": lambda: chunks(test)})


def _with_silos(measured: Measure | None, silos: Silos) -> Measure:
    """The server's own evaluation, and those that silos send."""

    def measure(
        x: Tensor, buffers: tuple[Tensor, ...], step: int, /
    ) -> Mapping[str, Mapping[str, Any]]:
        own = measured(x, buffers, step) if measured is not None else {}
        return {**own, **silos.evaluated(x, buffers, step // silos.steps)}

    return measure


def _tried(measured: Measure | None, goal: Model, parts: Parts, file: str | None) -> Measure | None:
    """Evaluate once in advance. So an error about a file that does not fit the model comes before
    the first round. The model is also probed on this data. So evaluation uses the same fast paths,
    and gives the same digits, as in simulation."""
    if measured is not None:
        try:
            goal.probe(goal.here(next(iter(next(iter(parts.values()))()))))
            if file != "share":
                measured(goal.x0, goal.start().buffers, 0)
        except Exception as cause:
            raise ConfigError(
                f"{type(goal.module).__name__} cannot be measured on {file}: {cause}"
            ) from cause
    return measured
