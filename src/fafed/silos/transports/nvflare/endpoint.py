"""The silo's end of the FLARE transport, and how a message is split into letters.

A letter is one packet: facts in JSON, and bytes. A request is sent as several letters in order.
Each has the facts {token, at, size} and a piece of the body, and the last one has the head. The
reply to the last letter is {size} with the head of the silo's answer. The server then fetches the
pieces of the answer's body with {token, wanted}. A small message is one letter. {ping} asks whether
the silo is present. A silo accepts letters only from the server's job.

A link may break, and a reply may be lost. So every letter has a reply within seconds: while the
silo computes, it is {working}, and the server asks again with {token, poll}. A letter without a
reply is sent again, and a silo that knows it already gives the same reply. A silo with a limited
rate waits before it replies, and says in every reply how large a piece may be.

Letters are requests between FLARE's cells, which do not change the bytes. FLARE's auxiliary
messages would pack them. And a silo that gets an auxiliary message formats all its bytes as text
for the log, even if nothing is logged.
"""

from __future__ import annotations

import functools
import json
import mmap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message as CellMessage

from fafed.errors import ConfigError
from fafed.files import Json
from fafed.silos import memory, payload
from fafed.silos.messages import HEAD_LIMIT, Message
from fafed.silos.payload import Body
from fafed.silos.server import log
from fafed.silos.site import Kit, Site
from fafed.silos.transports.nvflare.gate import OnRefusal
from fafed.silos.worker import Worker, unable

CHANNEL = TOPIC = "fafed"
FACTS_LIMIT = 4096  # characters of a letter's facts
LEAST_PIECE = 2**16  # bytes
HOLD_SECONDS = 2.0  # the longest time until the reply to a letter


class Letter(NamedTuple):
    facts: dict[str, Json]
    head: bytes = b""
    piece: bytes | memoryview = b""

    def packed(self) -> CellMessage:
        facts = self.facts | {"head": len(self.head), "piece": len(self.piece)}
        payload = b"".join((self.head, self.piece)) if self.head else self.piece
        payload = payload or b"-"  # FLARE does not support empty payloads
        return CellMessage({"fafed": json.dumps(facts)}, payload)

    def packed_reply(self) -> CellMessage:
        """Pack it in a list. FLARE would keep plain bytes for a minute after they were read."""
        message = self.packed()
        message.payload = [bytes(message.payload)]
        return message


def opened(message: CellMessage) -> Letter | None:
    """The letter in FLARE's message; None if it is not a letter."""
    try:
        told = message.get_header("fafed")
        if len(told) > FACTS_LIMIT:
            return None
        facts = json.loads(told)
        found = message.payload
        data = memoryview(found[0] if isinstance(found, list) else found)
        head, piece = facts["head"], facts["piece"]
    except (TypeError, ValueError, KeyError, IndexError):
        return None
    good = all(type(n) is int and n >= 0 for n in (head, piece)) and head <= HEAD_LIMIT
    if not good or head + piece > len(data):
        return None
    return Letter(facts, bytes(data[:head]), data[head : head + piece])


def letters(message: Message, token: str, most: int | None = None) -> Iterator[Letter]:
    """The letters of a request, in order. `most`: bytes of a piece that its silo takes."""
    at, total = 0, len(message.body)
    facts: dict[str, Json] = {"token": token, "size": total}
    while total > min(payload.LARGE, most or payload.LARGE) and at < total:
        piece = payload.cut(message.body, at, most)
        yield Letter(facts | {"at": at}, b"", piece)
        payload.release()
        at += len(piece)
    yield Letter(facts | {"at": at}, message.head, payload.cut(message.body, at))


WORKING = Letter({"working": True})


class Pace:
    """Keeps one direction of a link below a rate, in bytes per second; 0: no limit."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.last = 0.0  # when the last piece was through

    def wait(self, size: int) -> None:
        if self.rate:
            due = self.last + size / self.rate
            time.sleep(max(0.0, due - time.monotonic()))
            self.last = max(time.monotonic(), due)


class Endpoint:
    """Assembles requests from letters, lets the worker answer them, and sends the answers."""

    def __init__(
        self,
        file: Path,
        name: str,
        server: str,
        on_refusal: OnRefusal,
        closed: str = "",
        kit: Kit | None = None,
    ) -> None:
        self.file = file  # the silo's own
        self.name = name
        self.server = server  # the cell of the server's job: only this one gets answers
        self.on_refusal = on_refusal
        self.kit = kit  # what the silo signs with
        self.closed = closed  # why this silo does not take part in the job, if it does not
        self.asked: Json = None  # the request that is coming in, and what is here of it
        self.body: bytearray | mmap.mmap = bytearray()
        self.at = 0
        self.answered: Json = None  # the request whose answer is being fetched
        self.answer: Body = b""
        self.under_way: Json = None  # the request that the worker answers, or has answered
        self.done: Future[Letter] | None = None  # the reply to its last letter
        self.inside = threading.Lock()
        self.thread = ThreadPoolExecutor(1, "fafed-silo")  # one request at a time

    @functools.cached_property
    def worker(self) -> Worker:
        return Worker(self.name, Site.read(self.file), self.kit)

    @functools.cached_property
    def paces(self) -> tuple[Pace, Pace]:
        """Of what comes in, and of what goes out."""
        rate = self.worker.site.link.rate
        return Pace(rate), Pace(rate)

    @property
    def most(self) -> int | None:
        """Bytes of a piece: about a second of a slow line."""
        rate = self.worker.site.link.rate
        return max(LEAST_PIECE, min(rate, payload.PIECE)) if rate else None

    def take(self, message: CellMessage) -> CellMessage:
        """Handle one letter and return the reply."""
        reply = None
        origin = str(message.get_header(MessageHeaderKey.ORIGIN) or "")
        try:
            if origin != self.server:
                why = f"letters come from {self.server} alone"
                self.on_refusal(origin, f"{CHANNEL}:{TOPIC}", why)
            elif (letter := opened(message)) is not None:
                reply = self._reply(letter)
        except Exception:  # otherwise the server would wait until the deadline
            log.exception("%s: a piece of a message cannot be taken", self.name)
        found = (reply or Letter({})).packed_reply()
        code = ReturnCode.INVALID_REQUEST if reply is None else ReturnCode.OK
        found.set_header(MessageHeaderKey.RETURN_CODE, code)
        return found

    def _reply(self, letter: Letter) -> Letter | None:
        if "ping" in letter.facts:
            return Letter({})
        if "wanted" in letter.facts:
            return self._hand_out(letter)
        with self.inside:
            waits = "poll" in letter.facts or self._came_before(letter)
            found = None if waits else self._put(letter)
        if waits or found is WORKING:
            found = self._settled(letter.facts.get("token"))
        if found is not None and "worker" in self.__dict__:
            self.paces[0].wait(len(letter.piece))
            self.paces[1].wait(len(found.piece))
            if self.most:
                found = found._replace(facts=found.facts | {"most": self.most})
        return found

    def _put(self, letter: Letter) -> Letter | None:
        """Add a piece of a request. The last piece gets an answer."""
        token, at, size = (letter.facts.get(name) for name in ("token", "at", "size"))
        try:
            limit = self.worker.site.limit
        except ConfigError as cause:
            log.error("%s: %s", self.name, cause)
            return Letter({"size": 0}, unable(letter.head, cause).head if letter.head else b"")
        if token is not None and token == self.under_way:
            return Letter({})  # this piece has come before
        known = token is not None and token == self.asked and size == len(self.body)
        if known and letter.piece and type(at) is int and 0 <= at < self.at:
            return Letter({})  # this, too
        if at == 0:
            if type(size) is not int or not 0 <= size <= limit:
                log.warning(
                    "%s: refused a message of %r bytes: this silo takes %d (`limit` in %s)",
                    *(self.name, size, limit, self.file),
                )
                return None
            self.asked, self.at, self.answered, self.answer = token, 0, None, b""
            self.under_way = self.done = None
            self.body = payload.room(self.worker.site.folder, size)
        end = self.at + len(letter.piece)
        if token != self.asked or at != self.at or end > len(self.body):
            return None
        self.body[self.at : end] = letter.piece
        self.at = end
        payload.release()
        return self._answer(letter) if letter.head else Letter({})

    def _answer(self, last: Letter) -> Letter | None:
        if self.at != len(self.body):
            return None
        request = Message(last.head, self.body)
        self.asked, self.body = None, bytearray()
        self.under_way = token = last.facts["token"]
        self.done = self.thread.submit(self._computed, token, request)
        return WORKING

    def _computed(self, token: Json, request: Message) -> Letter:
        """The reply to the last letter of a request: the answer's head, and its body if it is
        small."""
        if self.closed:
            return Letter({"size": 0}, self.worker.refuse(request, self.closed).head)
        if len(request.body) > payload.LARGE:
            memory.trim()
        answer = self.worker.handle(request)
        with self.inside:
            if token == self.under_way:  # and no newer request has come
                self.answered, self.answer = token, answer.body
        small = len(answer.body) <= min(payload.LARGE, self.most or payload.LARGE)
        piece = payload.cut(answer.body, 0) if small else b""
        return Letter({"size": len(answer.body)}, answer.head, piece)

    def _came_before(self, letter: Letter) -> bool:
        token = letter.facts.get("token")
        return bool(letter.head) and token is not None and token == self.under_way

    def _settled(self, token: Json) -> Letter | None:
        """The reply to the last letter, or that the silo still computes it."""
        with self.inside:
            done = self.done if token is not None and token == self.under_way else None
        if done is None:
            return None
        try:
            return done.result(HOLD_SECONDS)
        except TimeoutError:
            return WORKING

    def _hand_out(self, letter: Letter) -> Letter | None:
        at = letter.facts["wanted"]
        if letter.facts.get("token") != self.answered or type(at) is not int or at < 0:
            return None
        piece = payload.cut(self.answer, at, self.most)
        payload.release()
        self.paces[1].wait(len(piece))
        return Letter({}, b"", piece)
