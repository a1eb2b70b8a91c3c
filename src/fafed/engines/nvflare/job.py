"""What runs inside a FLARE job: our round loop on the server, our worker on each site."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.job_config.api import FedJob
from nvflare.recipe.prod_env import ProdEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fafed.engines.nvflare.local import server_file, silo_file
from fafed.errors import FafedError
from fafed.experiment import Experiment
from fafed.records import Record
from fafed.rundir import RunDir
from fafed.silos.messages import Message
from fafed.silos.server import Terms, log
from fafed.silos.serving import serve
from fafed.silos.site import Site
from fafed.silos.worker import Worker

TOPIC, PING = "fafed", "fafed-ping"
PIECE = 2**24  # bytes that travel at once
PING_SECONDS = 2.0
GONE = 3  # pings in a row that find nobody


class Again(FafedError):
    """The job ends after a finished round, to be submitted again with those who are back."""


class Aborted(FafedError):
    """FLARE ends the job: a site's process has failed, or an administrator wants it."""


class FafedController(Controller):  # type: ignore[misc]
    """Runs the experiments one after another. Every argument is an attribute of its name: FLARE's
    export silently drops those that are not."""

    def __init__(
        self,
        experiments: list[dict[str, Any]],
        silos: list[str],
        min_silos: int,
        deadline: float = 3600.0,
        start: float = 120.0,
    ) -> None:
        super().__init__()
        self.experiments = experiments
        self.silos = silos
        self.min_silos = min_silos
        self.deadline = deadline
        self.start = start

    def start_controller(self, fl_ctx: FLContext) -> None:
        self.pause = threading.Event()
        self.facts: dict[str, Any] = {"state": "starting", "at": [0, 0], "why": ""}
        self.wire: Wire | None = None
        fl_ctx.get_engine().register_app_command(TOPIC, self._command)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace = Path(fl_ctx.get_workspace().get_root_dir())
        run_dir = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
        try:
            own = server_file(workspace)
            self.wire = Wire(fl_ctx, abort_signal)
            terms = Terms(tuple(self.silos), self.min_silos, self.deadline, self.start)
            for index, content in enumerate(self.experiments):
                experiment = Experiment.of(content, "the job's experiment")
                place = RunDir.of(experiment, own.runs)
                if not place.finished():
                    told = partial(self._recorded, index, experiment.rounds)
                    serve(experiment, place, self.wire, terms, measure=own.measure, on_record=told)
            self.facts["state"] = "finished"
        except Again as why:
            self.facts |= {"state": "again", "why": str(why)}
            log.warning("%s", why)
        except Aborted as why:
            self.facts |= {"state": "aborted", "why": str(why)}
        except FafedError as error:
            self.facts |= {"state": "failed", "why": str(error), "kind": type(error).__name__}
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

    def _command(self, topic: str, data: Any, fl_ctx: FLContext, *more: Any) -> dict[str, Any]:
        """What an administrator's session asks: how far the run is, or to end after a round."""
        if isinstance(data, Mapping) and data.get("pause"):
            self.pause.set()
        return dict(self.facts)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, ctx: FLContext
    ) -> None:
        pass


class Wire:
    """The transport: each request waits for its answer in a thread of its own."""

    def __init__(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self.engine = fl_ctx.get_engine()
        self.abort = abort_signal
        self.met: set[str] = set()  # have answered in this job
        self.gone: set[str] = set()  # had answered, and exist no more
        self.busy: set[str] = set()  # have not answered an earlier request

    def present(self) -> list[str]:
        return sorted(self.met - self.gone - self.busy)

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        answers: queue.Queue[tuple[str, Message | None]] = queue.Queue()
        end = time.monotonic() + seconds
        for silo, request in requests.items():
            self.busy.add(silo)
            self._thread(self._deliver, silo, request, end, limit, answers)
        waiting = set(requests)
        misses = dict.fromkeys(requests, 0)
        look = time.monotonic() + PING_SECONDS
        while waiting and time.monotonic() < end:
            if self.abort.triggered:
                raise Aborted("the job was aborted; the round under way is lost")
            with contextlib.suppress(queue.Empty):
                silo, answer = answers.get(timeout=max(0.0, min(0.2, end - time.monotonic())))
                if silo in waiting:
                    waiting.discard(silo)
                    yield silo, answer
            if time.monotonic() >= look and waiting & self.met:
                for silo in waiting & self.met:
                    self._thread(self._ping, silo, misses)
                look = time.monotonic() + PING_SECONDS
            for silo in [s for s in waiting if misses[s] >= GONE]:
                self.gone.add(silo)
                waiting.discard(silo)
                yield silo, None

    def _deliver(
        self,
        silo: str,
        request: Message,
        end: float,
        limit: int,
        answers: queue.Queue[tuple[str, Message | None]],
    ) -> None:
        while time.monotonic() < end and not self.abort.triggered:
            answer = self._carried(silo, request, end, limit)
            if answer is not None:
                self.met.add(silo)
                self.busy.discard(silo)
                answers.put((silo, answer))
                return
            if silo in self.met:
                break
            time.sleep(0.3)  # its process is still starting
        self.busy.discard(silo)
        if silo in self.met and time.monotonic() < end:
            self.gone.add(silo)
            answers.put((silo, None))

    def _carried(self, silo: str, request: Message, end: float, limit: int) -> Message | None:
        """There and back, piece by piece: FLARE copies what it carries several times, so that a
        large message as a whole would take many times its size."""
        token, total = secrets.token_hex(8), len(request.body)
        view = memoryview(request.body)
        at = 0
        while True:
            piece = {"token": token, "piece": bytes(view[at : at + PIECE]), "at": at}
            at += len(piece["piece"])  # type: ignore[arg-type]
            if at == total:
                piece["head"] = request.head
            reply = self._send(silo, TOPIC, Shareable(piece), end - time.monotonic())
            if reply is None or reply.get_return_code() != ReturnCode.OK:
                return None
            if at == total:
                break
        head, body = _bytes(reply, "head"), bytearray(_bytes(reply, "piece"))
        size = reply.get("size")
        if not isinstance(size, int) or not len(body) <= size <= limit:
            log.warning("silo %r announces %r bytes, more than %d; refused", silo, size, limit)
            return Message(b"", b"")
        while len(body) < size:
            wanted = Shareable({"token": token, "wanted": len(body)})
            reply = self._send(silo, TOPIC, wanted, end - time.monotonic())
            piece_back = b"" if reply is None else _bytes(reply, "piece")
            if not piece_back:
                return None
            body += piece_back
        return Message(head, body)

    def _ping(self, silo: str, misses: dict[str, int]) -> None:
        reply = self._send(silo, PING, Shareable(), 10 * PING_SECONDS)
        code = ReturnCode.COMMUNICATION_ERROR if reply is None else reply.get_return_code()
        if code in (ReturnCode.COMMUNICATION_ERROR, ReturnCode.ERROR):
            misses[silo] += 1  # nobody there; one that is merely slow has until the deadline
        elif code == ReturnCode.OK:
            misses[silo] = 0

    def _send(self, silo: str, topic: str, request: Shareable, seconds: float) -> Shareable | None:
        with self.engine.new_context() as context:
            replies = self.engine.send_aux_request(
                targets=[silo],
                topic=topic,
                request=request,
                timeout=seconds,
                fl_ctx=context,
                optional=True,
            )
        found = (replies or {}).get(silo)
        return found if isinstance(found, Shareable) else None

    @staticmethod
    def _thread(target: Any, *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()


class FafedExecutor(Executor):  # type: ignore[misc]
    """A silo: answers the server's messages from the silo's own file and data."""

    def __init__(self) -> None:
        super().__init__()
        self.worker: Worker | None = None
        self.asked: Any = None  # the request that is coming in, and what is here of it
        self.body = bytearray()
        self.answered: Any = None  # the request whose answer is being fetched
        self.answer: bytes | bytearray = b""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(TOPIC, self._message)
            engine.register_aux_message_handler(PING, lambda **_: make_reply(ReturnCode.OK))

    def _message(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """One piece of a request, the last of which is answered, or a wanted piece of an answer."""
        if self.worker is None:
            name = fl_ctx.get_identity_name()
            root = Path(fl_ctx.get_workspace().get_root_dir())
            self.worker = Worker(name, Site.read(silo_file(root, name)))
        reply, token = make_reply(ReturnCode.OK), request.get("token")
        if "wanted" in request:
            at = request["wanted"]
            if token != self.answered or not isinstance(at, int) or at < 0:
                return make_reply(ReturnCode.BAD_REQUEST_DATA)
            reply["piece"] = bytes(memoryview(self.answer)[at : at + PIECE])
            if at + PIECE >= len(self.answer):
                self.answer = b""
            return reply
        if request.get("at") == 0:
            self.asked, self.body = token, bytearray()
        piece = _bytes(request, "piece")
        if token != self.asked or request.get("at") != len(self.body):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        if len(self.body) + len(piece) > self.worker.site.limit:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        self.body += piece
        if "head" not in request:
            return reply
        message, self.body = Message(_bytes(request, "head"), self.body), bytearray()
        answer = self.worker.handle(message)
        self.answered, self.answer = token, answer.body
        reply["head"], reply["size"] = answer.head, len(answer.body)
        reply["piece"] = bytes(memoryview(answer.body)[:PIECE])
        return reply

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)


def _bytes(found: Shareable, name: str) -> bytes:
    value = found.get(name)
    return value if isinstance(value, bytes) else b""


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
        start: float = 120.0,
    ) -> None:
        several = [experiments] if isinstance(experiments, Experiment) else list(experiments)
        fewest = len(silos) if min_silos is None else min_silos
        job = FedJob(name=several[0].name, min_clients=fewest)
        job.set_app_packages(["fafed"])  # it is installed everywhere: a job carries no code
        contents = [experiment.to_dict() for experiment in several]
        job.to_server(FafedController(contents, list(silos), fewest, deadline, start))
        job.to_clients(FafedExecutor())
        super().__init__(job)

    def process_env(self, env: ExecEnv) -> None:
        """FLARE's simulator and proof-of-concept kits know no list of allowed classes of ours, and
        take only those whose code comes along. Real silos refuse a job with code."""
        if not isinstance(env, ProdEnv):
            self._job.set_app_packages([])
