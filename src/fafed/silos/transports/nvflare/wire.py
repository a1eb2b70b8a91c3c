"""The server's end of the FLARE transport."""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message as CellMessage

from fafed.errors import FafedError
from fafed.silos import payload
from fafed.silos.messages import Message
from fafed.silos.server import log
from fafed.silos.transports.nvflare.endpoint import (
    CHANNEL,
    LEAST_PIECE,
    TOPIC,
    Letter,
    letters,
    opened,
)

PING_SECONDS = 2.0
ABSENCE = 6.0  # seconds of pings without an answer, until a silo counts as gone
AGAIN_SECONDS = 1.0  # before a letter that was not delivered is sent again
LOST_SECONDS = 8.0  # without a reply, and the time that a piece takes: the letter is lost
LEAST_RATE = 250_000  # bytes per second of a link without a limit; a slower one needs a limit
NOBODY = (ReturnCode.COMM_ERROR, ReturnCode.TARGET_UNREACHABLE, ReturnCode.INVALID_TARGET)


class Aborted(FafedError):
    """FLARE ends the job: a site's process has failed, or an administrator has aborted it."""


class Wire:
    """The transport. Each request waits for its answer in a thread of its own. Large answers go
    into the folder."""

    def __init__(
        self,
        fl_ctx: FLContext,
        abort_signal: Signal,
        folder: Path,
        absence: float = ABSENCE,
        absent: Collection[str] = (),
    ) -> None:
        """absence: how long a silo may be unreachable, in seconds. Then it counts as gone.
        absent: silos that were not there when the job was submitted."""
        self.engine = fl_ctx.get_engine()
        self.job = fl_ctx.get_job_id()
        self.abort = abort_signal
        self.folder = folder
        self.absence = absence
        self.absent = set(absent)
        self.pieces: dict[str, int] = {}  # silo -> bytes of a piece, if it has said so
        self.waits: dict[str, Signal] = {}  # silo -> ends the wait for the reply to its letter
        self.heard: set[str] = set()  # silos that have replied to a letter in this job
        self.met: set[str] = set()  # silos that have answered in this job
        self.gone: set[str] = set()  # silos that had answered, and are gone
        self.busy: set[str] = set()  # silos that have not answered an earlier request

    def present(self) -> list[str]:
        return sorted(self.met - self.gone - self.busy)

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        answers: queue.Queue[tuple[str, Message | None]] = queue.Queue()
        end = time.monotonic() + seconds
        waiting = {silo for silo in requests if self._takes_part(silo)}
        for silo in sorted(set(requests) - waiting):
            yield silo, None
        for silo in sorted(waiting):
            self.busy.add(silo)
            self._thread(self._deliver, silo, requests[silo], end, limit, answers)
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
            for silo in [s for s in waiting if misses[s] * PING_SECONDS >= self.absence]:
                self.gone.add(silo)
                waiting.discard(silo)
                yield silo, None

    def _takes_part(self, silo: str) -> bool:
        """FLARE gives a job to the sites that are there when it begins. No other one can join it:
        the next job has it. FLARE may count a dead site as there, which `absent` does not."""
        return silo not in self.absent and self.engine.get_client_from_name(silo) is not None

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
        """Send a request and receive the answer, piece by piece, so that no process holds a large
        message as a whole."""
        token, reply = secrets.token_hex(8), None
        for letter in letters(request, token, self.pieces.get(silo)):
            reply = self._exchanged(silo, letter, end)
            if reply is None:
                return None
        while reply is not None and reply.facts.get("working"):
            reply = self._exchanged(silo, Letter({"token": token, "poll": True}), end)
        if reply is None:
            return None
        size, head, at = reply.facts.get("size"), reply.head, 0
        if type(size) is not int or not 0 <= size <= limit:
            log.warning("silo %r announces %.40r bytes, not 0 to %d; refused", silo, size, limit)
            return Message(b"", b"")
        try:
            body = payload.room(self.folder, size)
        except FafedError as cause:
            log.error("the answer of %r cannot be kept: %s", silo, cause)
            return Message(b"", b"")
        while True:
            if len(reply.piece) > size - at:
                return Message(b"", b"")
            body[at : at + len(reply.piece)] = reply.piece
            payload.release()
            at += len(reply.piece)
            if at == size:
                return Message(head, body)
            reply = self._exchanged(silo, Letter({"token": token, "wanted": at}), end)
            if reply is None:
                return None
            if not reply.piece:
                return Message(b"", b"")

    def _exchanged(self, silo: str, letter: Letter, end: float) -> Letter | None:
        """The silo's answer to a letter, or None. A letter that was lost is sent again, if the
        silo has been there: its link may have broken."""
        until = time.monotonic() + self.absence
        wanted = self.pieces.get(silo, payload.PIECE) if "wanted" in letter.facts else 0
        lost = LOST_SECONDS + max(len(letter.piece), wanted) / LEAST_RATE
        while True:
            reply = self._sent(silo, letter, min(lost, end - time.monotonic()))
            code = _code(reply)
            if code == ReturnCode.OK and reply is not None:
                break
            if code == ReturnCode.TIMEOUT:  # it may have been reachable meanwhile: pings tell
                until = time.monotonic() + self.absence
            over = time.monotonic() + AGAIN_SECONDS > min(end, until) or silo in self.gone
            again = code in (*NOBODY, ReturnCode.TIMEOUT) and silo in self.heard
            if over or not again or self.abort.triggered:
                return None
            time.sleep(AGAIN_SECONDS)
        self.heard.add(silo)
        # Something that is not a letter is a bad answer. The silo is not gone.
        found = opened(reply) or Letter({"size": -1})
        most = found.facts.get("most")
        if type(most) is int and LEAST_PIECE <= most <= payload.PIECE:
            self.pieces[silo] = most
        return found

    def _sent(self, silo: str, letter: Letter, seconds: float) -> CellMessage | None:
        """The reply to a letter; None if it does not come from the silo that was asked."""
        client = self.engine.get_client_from_name(silo)
        if client is None:
            return None
        target = FQCN.join([client.get_fqcn(), self.job])
        wait = Signal(self.abort)
        if "ping" not in letter.facts:
            self.waits[silo] = wait
        reply = self.engine.get_cell().send_request(
            channel=CHANNEL,
            topic=TOPIC,
            target=target,
            request=letter.packed(),
            timeout=seconds,
            optional=True,
            abort_signal=wait,
        )
        if _code(reply) != ReturnCode.OK:
            return reply
        origin = reply.get_header(MessageHeaderKey.ORIGIN)
        if origin != target:
            log.warning("refused an answer for %r that came from %r", silo, origin)
            return None
        return reply

    def _ping(self, silo: str, misses: dict[str, int]) -> None:
        try:
            code = _code(self._sent(silo, Letter({"ping": True}), 10 * PING_SECONDS))
        except Exception:  # FLARE raises many kinds; none of them is an answer
            code = ReturnCode.COMM_ERROR
        if code in NOBODY:
            misses[silo] += 1  # a slow silo has time until the deadline
        elif code == ReturnCode.OK:
            if misses[silo] and silo in self.waits:  # the link is back, and what was on it is lost
                self.waits[silo].trigger(True)
            misses[silo] = 0

    @staticmethod
    def _thread(target: Callable[..., object], *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()


def _code(reply: CellMessage | None) -> str:
    missing = ReturnCode.TARGET_UNREACHABLE
    return missing if reply is None else str(reply.get_header(MessageHeaderKey.RETURN_CODE))
