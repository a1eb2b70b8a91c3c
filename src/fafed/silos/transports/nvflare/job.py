"""The code inside a FLARE job: our round loop on the server, our worker on each site."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.job_config.api import FedJob
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants
from nvflare.private.privacy_manager import PrivacyService
from nvflare.recipe.prod_env import ProdEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fafed.core.records import Record
from fafed.errors import ConfigError, FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.model_options import require_sizes
from fafed.experiments.rundir import RunDir
from fafed.files import Json
from fafed.silos.final_model import owed
from fafed.silos.serve import check_privacy, serve
from fafed.silos.server import FederationConfig, log
from fafed.silos.transports.nvflare.endpoint import CHANNEL, TOPIC, Endpoint
from fafed.silos.transports.nvflare.gate import SERVER, Refusals, guard
from fafed.silos.transports.nvflare.kit_files import (
    authority,
    kit_of,
    outdated,
    server_file,
    silo_file,
)
from fafed.silos.transports.nvflare.wire import ABSENCE, Aborted, Wire
from fafed.training.loop import Diverged


class Again(FafedError):
    """The job ends after a finished round. It will be submitted again with silos that are back."""


class JobFacts(TypedDict, total=False):
    """What a job tells of itself: to an administrator's session, and in a file at its end."""

    state: str  # starting, running, finished, again, aborted or failed
    at: list[int]  # which experiment, and its newest round
    why: str
    record: dict[str, Any]  # of that round
    met: list[str]  # silos that have been there
    kind: str  # of the error, if it failed
    client: int | None  # of a run that diverged
    round: int
    status: str  # FLARE's own word for it


class FafedController(Controller):  # type: ignore[misc]
    """Runs the experiments one after another. Every argument is also an attribute of the same name:
    FLARE's export silently drops arguments that are not."""

    def __init__(
        self,
        experiments: Sequence[Mapping[str, Json]],
        silos: list[str],
        min_silos: int,
        deadline: float = 3600.0,
        start: float = 300.0,
        absence: float = ABSENCE,
        absent: Sequence[str] = (),
    ) -> None:
        """absent: silos that are not there when the job is submitted."""
        super().__init__()
        self.experiments = experiments
        self.silos = silos
        self.min_silos = min_silos
        self.deadline = deadline
        self.start = start
        self.absence = absence
        self.absent = absent

    def start_controller(self, fl_ctx: FLContext) -> None:
        self.pause = threading.Event()
        self.facts: JobFacts = {"state": "starting", "at": [0, 0], "why": ""}
        self.wire: Wire | None = None
        engine = fl_ctx.get_engine()
        guard(engine.get_cell(), Refusals(SERVER, None))
        engine.register_app_command(TOPIC, self._command)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace = Path(fl_ctx.get_workspace().get_root_dir())
        run_dir = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
        try:
            if why := outdated(workspace):
                raise ConfigError(why)
            own = server_file(workspace)
            self.wire = Wire(fl_ctx, abort_signal, own.runs, self.absence, self.absent)
            federation = FederationConfig(
                tuple(self.silos), self.min_silos, self.deadline, self.start
            )
            for index, content in enumerate(self.experiments):
                experiment = Experiment.from_dict(content, "the job's experiment")
                place = RunDir.for_experiment(experiment, own.runs)
                if not place.finished() or owed(place, self.silos):
                    told = partial(self._recorded, index, experiment.rounds)
                    serve(
                        experiment,
                        place,
                        self.wire,
                        federation,
                        measure=own.measure,
                        table=own.table,
                        allow=own.allow,
                        bounds=own.bounds,
                        on_record=told,
                        authority=ca if (ca := authority(workspace)).is_file() else None,
                    )
            self.facts["state"] = "finished"
        except Again as why:
            self.facts |= {"state": "again", "why": str(why)}
            log.warning("%s", why)
        except Aborted as why:
            self.facts |= {"state": "aborted", "why": str(why)}
        except FafedError as error:
            self.facts |= {"state": "failed", "why": str(error), "kind": type(error).__name__}
            if isinstance(error, Diverged):
                self.facts |= {"client": error.client, "round": error.round}
            self.system_panic(str(error), fl_ctx)
        except Exception as error:
            self.facts |= {"state": "failed", "why": repr(error), "kind": type(error).__name__}
            raise
        finally:
            (run_dir / "fafed.json").write_text(json.dumps(self.facts), "utf-8")

    def _recorded(self, index: int, rounds: int, record: Record) -> None:
        assert self.wire is not None
        self.facts |= {"state": "running", "at": [index, record.round], "record": record.to_dict()}
        self.facts["met"] = sorted(self.wire.met)
        if record.round == rounds and index + 1 == len(self.experiments):
            return
        if self.wire.gone:
            names = ", ".join(sorted(self.wire.gone))
            raise Again(f"round {record.round} is finished; {names} can come back in a new job")
        if self.pause.is_set():
            raise Again(f"round {record.round} is finished; the job was asked to end")

    def _command(self, topic: str, data: object, fl_ctx: FLContext, *more: object) -> JobFacts:
        """Answer an administrator's session: report progress, or end after the round."""
        if isinstance(data, Mapping) and data.get("pause"):
            self.pause.set()
        return self.facts.copy()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, ctx: FLContext
    ) -> None:
        pass


def policy_in_the_way(fl_ctx: FLContext) -> str:
    """Why the silo's own privacy policy forbids this job; "" if it does not.

    FLARE applies a policy's filters to tasks and their results. fafed's messages are neither. So a
    silo with such a policy must not take part."""
    manager = PrivacyService.get_manager()
    if manager is None or not manager.is_policy_defined():
        return ""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    scope = manager.get_scope(meta.get(JobMetaKey.SCOPE, ""))
    chains = [] if scope is None else [scope.task_data_filters, scope.task_result_filters]
    if not any(chain for both in chains for chain in both.values()) and not manager.components:
        return ""
    return (
        "local/privacy.json of this silo has filters or components for this job, and fafed's "
        "messages do not pass them: remove them from that file if this silo is to take part"
    )


class FafedExecutor(Executor):  # type: ignore[misc]
    """A silo: answers the server's messages from the silo's own file and data."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            engine, name = fl_ctx.get_engine(), fl_ctx.get_identity_name()
            root = Path(fl_ctx.get_workspace().get_root_dir())
            file = silo_file(root, name)
            refusals = Refusals(name, file)
            job = fl_ctx.get_job_id()
            simulated = job == SimulatorConstants.JOB_NAME  # there the server is one process
            server = SERVER if simulated else FQCN.join([SERVER, job])
            closed = outdated(root) or policy_in_the_way(fl_ctx)
            endpoint = Endpoint(file, name, server, refusals, closed, kit_of(root))
            guard(engine.get_cell(), refusals)
            engine.get_cell().register_request_cb(channel=CHANNEL, topic=TOPIC, cb=endpoint.take)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)


class FafedRecipe(Recipe):  # type: ignore[misc]
    """Experiments as a FLARE recipe: runs on SimEnv, PocEnv and ProdEnv, or is exported.

    Each site needs its own file first, see docs/silos.md; it is never part of the job.
    """

    def __init__(
        self,
        experiments: Experiment | Sequence[Experiment],
        silos: Sequence[str],
        *,
        min_silos: int | None = None,
        deadline: float = 3600.0,
        start: float = 300.0,
        absence: float = ABSENCE,
    ) -> None:
        several = [experiments] if isinstance(experiments, Experiment) else list(experiments)
        for one in several:
            require_sizes(one)
        fewest = FederationConfig.with_defaults(silos, min_silos).min_silos
        for experiment in several:
            check_privacy(experiment, silos)
        job = FedJob(name=several[0].name, min_clients=fewest)
        job.set_app_packages(["fafed"])  # fafed is installed everywhere: a job carries no code
        contents = [experiment.to_dict() for experiment in several]
        self.controller = FafedController(contents, list(silos), fewest, deadline, start, absence)
        job.to_server(self.controller)
        job.to_clients(FafedExecutor())
        super().__init__(job)

    def without(self, silos: Collection[str]) -> Self:
        """The job that does not wait for these silos, which are not there."""
        self.controller.absent = sorted(silos)
        return self

    def process_env(self, env: ExecEnv) -> None:
        """Send fafed's code with the job to FLARE's simulator and proof-of-concept kits. They do
        not have our list of allowed classes, and accept only classes whose code is in the job. Real
        silos refuse a job with code."""
        if not isinstance(env, ProdEnv):
            self._job.set_app_packages([])
