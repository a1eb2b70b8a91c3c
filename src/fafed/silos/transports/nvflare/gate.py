"""Which process may send messages to which in a FLARE federation that runs fafed.

FLARE 2.9.0 carries any message from any cell to any other. (A cell is FLARE's messaging endpoint in
one process.) Most of its handlers do not check the sender. Another silo could ask a silo to train,
to send its files, or to abort its job. The sender is only a header. FLARE compares it with the
sender's token, but only for tokens of silos. The server's own token is on every message of the
server. Whoever copies it counts as the server.

So every process of a federation has a gate, a filter on all messages that reach its cell:

* A silo accepts messages only from the server and from the silo's own processes.
* The server accepts a message only if its sender is the one whose certificate opened the
  connection. So nobody can use the name of another. Only the server itself may send commands to its
  jobs. Administrators' commands reach the jobs through the server.

The gate of a parent process is a component in `local/resources.json`. `kit_files.install` puts it
there. A job process installs its gate when the job starts. This module does not import torch,
because the parent processes do not need it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.defs import CellChannel

log = logging.getLogger("fafed")

SERVER = FQCN.ROOT_SERVER
COMMANDS = (CellChannel.SERVER_COMMAND, CellChannel.SERVER_PARENT_LISTENER)
FOR_SILOS = (ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE)  # commands of silos
PER_MINUTE = 60  # refusals that are logged, so that an attacker cannot fill the disk
OnRefusal = Callable[[str, str, str], None]  # the sender, what it sent, the reason


def silo_refuses(me: str, origin: str) -> str:
    """Why a cell of a silo refuses this sender; "" if it accepts the sender."""
    if FQCN.get_root(origin) in (SERVER, FQCN.get_root(me)):
        return ""
    return "only the server may send to a silo"


def server_refuses(neighbour: str, origin: str, channel: str, topic: str) -> str:
    """Why a cell of the server refuses this sender; "" if it accepts the sender.

    neighbour: the cell at the other end of the connection. FLARE accepts a connection only if this
    name is the one in the certificate.
    """
    whose, by = FQCN.get_root(origin), FQCN.get_root(neighbour)
    if by not in (whose, SERVER):
        return f"{by!r} sent it in the name of {whose!r}"
    if whose != SERVER and channel in COMMANDS and topic not in FOR_SILOS:
        return f"only the server may send {channel}:{topic}"
    return ""


def guard(cell: Any, on_refusal: OnRefusal) -> None:
    """Install the gate in a cell."""
    me = cell.get_fqcn()

    def check(message: CellMessage) -> CellMessage | None:
        origin = str(message.get_header(MessageHeaderKey.ORIGIN) or "")
        channel, topic = _subject(message)
        if FQCN.get_root(me) == SERVER:
            endpoint = message.get_prop(MessagePropKey.ENDPOINT)
            why = server_refuses(endpoint.name, origin, channel, topic)
        else:
            why = silo_refuses(me, origin)
        if not why:
            return None
        on_refusal(origin, f"{channel}:{topic}", why)
        return make_reply(ReturnCode.UNAUTHENTICATED, error=why)  # FLARE drops the message

    cell.core_cell.add_incoming_filter(channel="*", topic="*", cb=check)


def _subject(message: CellMessage) -> tuple[str, str]:
    """The channel and the topic of a message, also if it comes as a stream."""
    found: list[str] = []
    streamed = message.get_header(MessageHeaderKey.CHANNEL) == STREAM_CHANNEL
    for plain, inside in (
        (MessageHeaderKey.CHANNEL, StreamHeaderKey.CHANNEL),
        (MessageHeaderKey.TOPIC, StreamHeaderKey.TOPIC),
    ):
        name = message.get_header(inside) if streamed else None
        found.append(str(name or message.get_header(plain) or ""))
    return found[0], found[1]


class Refusals:
    """Writes refusals to the log, and on a silo to its audit file, `PER_MINUTE` at most."""

    def __init__(self, who: str, silo_file: Path | None) -> None:
        self.who = who
        self.file = silo_file
        self.since = time.monotonic()
        self.noted = 0
        self.lock = threading.Lock()

    def __call__(self, origin: str, what: str, why: str) -> None:
        with self.lock:
            if time.monotonic() - self.since > 60.0:
                self.since, self.noted = time.monotonic(), 0
            self.noted += 1
            noted = self.noted
        if noted < PER_MINUTE:
            # the first refusal imports much, and this thread carries all messages
            details = (origin[:200], what[:200], why[:500])
            threading.Thread(target=self._note, args=details, daemon=True).start()
        elif noted == PER_MINUTE:
            log.warning("%s: too many refusals: for a minute they are not noted", self.who)

    def _note(self, origin: str, what: str, why: str) -> None:
        log.warning("%s: refused a message of %r (%s): %s", self.who, origin, what, why)
        if self.file is not None and self.file.is_file():
            from fafed.silos.audit import Audit
            from fafed.silos.messages import ExchangeId
            from fafed.silos.site import Site

            audit = Audit(Site.read(self.file).folder / "audit.jsonl", self.who)
            audit.note("refused", origin, what, ExchangeId(""), 0, "", why=why)


class Gate(FLComponent):  # type: ignore[misc]
    """The gate of a parent process. Only its user can read what it and its jobs write."""

    def __init__(self) -> None:
        super().__init__()
        os.umask(0o077)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.SYSTEM_BOOTSTRAP:
            return
        try:
            cell, name = fl_ctx.get_engine().get_cell(), fl_ctx.get_identity_name()
            root = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            on_server = FQCN.get_root(cell.get_fqcn()) == SERVER
            guard(cell, Refusals(name, None if on_server else root / "local" / "fafed.toml"))
        except Exception as cause:  # this kind ends the process: it must not run without a gate
            raise UnsafeComponentError(f"fafed's gate cannot be set up: {cause!r}") from cause
