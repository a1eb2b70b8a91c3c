"""The code inside a Flower app: our round loop on the server, our worker on each SuperNode.

The app's configuration, [tool.flwr.app.config] or `flwr run --run-config`:

    silos      "north,south,west": the names the SuperNodes are registered with, in the clients'
               order
    min-silos  the least number of silos in a round; 0: all of them
    deadline   seconds that a silo has for an exchange
    start      seconds for the silos to connect and load their data
    runs       the server's folder of run directories
    measure    a file on the server with data for evaluation; "": none
    norm, examples, failures   what one silo may do to a run (fafed.silos.bounds)
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MessageType, RecordDict
from flwr.app import Message as Letter
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from fafed.core.records import Record
from fafed.errors import ConfigError
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir
from fafed.silos import messages
from fafed.silos.bounds import Bounds
from fafed.silos.final_model import owed
from fafed.silos.messages import ExchangeId, Message, Refused
from fafed.silos.payload import Body
from fafed.silos.serve import serve
from fafed.silos.server import FederationConfig, log
from fafed.silos.site import Site
from fafed.silos.worker import Worker, unable

POLL_SECONDS = 0.3  # Flower's own is 3
SUM = "fafed.secure_sum"  # in a SuperNode's context
GRACE_SECONDS = 10.0  # Flower keeps a message longer than our deadline, so ours ends the wait


def server(folder: Path) -> ServerApp:
    """Runs the experiments that are in the folder, one after another."""

    def main(grid: Grid, context: Context) -> None:
        logging.basicConfig(format="%(levelname)s %(message)s")
        config = context.run_config
        runs, measure = _word(config, "runs"), _word(config, "measure")
        federation = terms_of(config)
        for path in sorted(folder.glob("*.toml")):
            experiment = Experiment.read(path)
            place = RunDir.for_experiment(experiment, Path(runs).absolute())
            if not place.finished() or owed(place, federation.silos):
                print(f"{experiment.name}, {experiment.algorithm.name}: {place.path}", flush=True)
                serve(
                    experiment,
                    place,
                    Wire(grid),
                    federation,
                    measure=measure or None,
                    bounds=bounds_of(config),
                    on_record=partial(_told, experiment.rounds),
                )
        print("finished", flush=True)

    app = ServerApp()
    app.main()(main)
    return app


def _told(rounds: int, record: Record) -> None:
    loss = "" if record.train_loss is None else f", train loss {record.train_loss:.4g}"
    print(f"round {record.round} of {rounds}: {record.clients} silos{loss}", flush=True)


def terms_of(config: Mapping[str, object]) -> FederationConfig:
    silos = [name.strip() for name in _word(config, "silos").split(",")]
    fewest = _number(config, "min-silos", 0)
    if not isinstance(fewest, int):
        raise ConfigError(f"min-silos must be a whole number, got {fewest}")
    times = {name: float(_number(config, name, 1)) for name in ("deadline", "start")}
    return FederationConfig.with_defaults(silos, fewest or None, **times)


def bounds_of(config: Mapping[str, object]) -> Bounds:
    """The bounds in the app's configuration. Apps of an earlier fafed do not have them."""
    given = {name: config[name] for name in Bounds.model_fields if name in config}
    try:
        return Bounds.model_validate(given)
    except ValidationError as cause:
        raise ConfigError(f"the app's configuration has {given}: {cause}") from None


def _word(config: Mapping[str, object], name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"the app's configuration has {name} = {value!r}: it must be a text")
    return value


def _number(config: Mapping[str, object], name: str, least: float) -> int | float:
    value = config.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= least:
        raise ConfigError(
            f"the app's configuration has {name} = {value!r}: it must be a number, {least} or more"
        )
    return value


class Wire:
    """The transport over Flower's grid (`Letter` is Flower's Message). A silo is the SuperNode that
    is registered with its name. The name belongs to its key, so no silo can take the name of
    another."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.hellos: dict[str, bytes] = {}  # silo -> the head of its hello

    def present(self) -> list[str]:
        return sorted(self._nodes())

    def _nodes(self) -> dict[str, int]:
        """The SuperNodes that are online."""
        found: dict[str, int] = {}
        for node in self.grid.get_nodes():
            if node.name in found:
                raise ConfigError(
                    f"two SuperNodes are registered as {node.name!r}: remove one with "
                    "`flwr supernode unregister`"
                )
            if node.name:
                found[node.name] = node.node_id
        return found

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        end = time.monotonic() + seconds
        for silo, request in requests.items():  # one that comes too late for it needs it later
            if messages.glance(request.head)["kind"] == "hello":
                self.hellos[silo] = request.head
        unsent, sent = dict(requests), dict[str, str]()  # sent: the letter's number -> silo
        body: tuple[Body, Array] | None = None
        while (unsent or sent) and time.monotonic() < end:
            nodes = self._nodes() if unsent else {}
            for silo in [s for s in unsent if s in nodes]:
                request = unsent.pop(silo)
                body = body if body and body[0] is request.body else (request.body, _array(request))
                letter = Letter(
                    self._content(silo, request.head, body[1]),
                    nodes[silo],
                    MessageType.TRAIN,
                    ttl=max(1.0, end - time.monotonic()) + GRACE_SECONDS,
                )
                (number,) = self.grid.push_messages([letter]) or (None,)
                if number is None:
                    log.warning("Flower did not take the message to %r", silo)
                    yield silo, None
                else:
                    sent[number] = silo
            for number in list(sent):  # one at a time: they may be large
                for reply in self.grid.pull_messages([number]):
                    silo = sent.pop(number)
                    yield silo, _answer(silo, reply, limit)
            if unsent or sent:
                time.sleep(POLL_SECONDS)

    def _content(self, silo: str, head: bytes, body: Array) -> RecordDict:
        """Every message contains the hello, because the silo's process is new, and its disk may be.

        An answer names its request by a digest. Flower does not check that the sender of an answer
        is the silo that was asked. So each request has a random token: no other silo can know its
        digest."""
        found = _content(head, body)
        found["token"] = ConfigRecord({"hex": secrets.token_hex(16)})
        if silo in self.hellos and head != self.hellos[silo]:
            found["hello"] = ConfigRecord({"json": self.hellos[silo]})
        return found


def _answer(silo: str, reply: Letter, limit: int) -> Message | None:
    if reply.has_error():
        log.warning("Flower reports error %s for %r", reply.error.code, silo)
        return None
    found = _opened(reply)
    if found.size > limit:
        log.warning("silo %r sent %d bytes, more than %d; refused", silo, found.size, limit)
        return Message(b"", b"")
    return found


def _array(message: Message) -> Array:
    data = bytes(message.body)
    return Array("uint8", (len(data),), "fafed", data)


def _content(head: bytes, body: Array) -> RecordDict:
    return RecordDict({"head": ConfigRecord({"json": head}), "body": ArrayRecord({"bytes": body})})


def _opened(letter: Letter) -> Message:
    """Our message inside Flower's. A malformed one becomes an empty message, which is refused."""
    try:
        head = letter.content.config_records["head"]["json"]
        body = letter.content.array_records["body"]["bytes"].data
    except (KeyError, ValueError):
        return Message(b"", b"")
    if isinstance(head, bytes) and isinstance(body, bytes):
        return Message(head, body)
    return Message(b"", b"")


def _hello(letter: Letter) -> Message:
    head = letter.content.config_records["hello"]["json"]
    return Message(head if isinstance(head, bytes) else b"", b"")


def _carried(context: Context) -> bytes:
    """The secure sum that the process before had under way. Flower keeps a context in the memory of
    the SuperNode: it is not on disk, and the SuperLink does not get it."""
    held = context.state[SUM]["held"] if SUM in context.state else b""
    return held if isinstance(held, bytes) else b""


def _answered(letter: Letter, context: Context) -> Letter:
    """A silo's answer. Exceptions are caught here, because Flower would send their text to the
    server, and it may name paths."""
    request = _opened(letter)
    try:
        path = context.node_config.get("site")
        if not isinstance(path, str):
            raise ConfigError(
                f"the SuperNode's node-config has site = {path!r}: start flower-supernode with "
                "--node-config 'site=\"/path/of/the/silo/file.toml\"'"
            )
        worker = Worker(str(context.node_id), Site.read(Path(path)), carried=_carried(context))
        sender = letter.metadata.src_node_id
        if sender != SUPERLINK_NODE_ID:
            worker.audit.note("refused", str(sender), "", ExchangeId(""), request.size, "")
            raise Refused(f"node {sender} sent a message: only the SuperLink may")
        if "hello" in letter.content:
            worker.brief(_hello(letter))
        answer = worker.handle(request)
        context.state[SUM] = ConfigRecord({"held": worker.held()})
    except Exception as cause:
        log.exception("this silo cannot answer")
        answer = unable(request.head, cause)
    return Letter(_content(answer.head, _array(answer)), reply_to=letter)


client = ClientApp()
client.train()(_answered)
