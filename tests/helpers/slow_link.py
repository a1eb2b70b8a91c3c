"""A slow link that breaks: a TCP proxy on loopback, with a rate for each direction, and cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CHUNK = 2**14


class SlowLink:
    """Passes connections on to a port of this machine. `down()` breaks them all, and refuses new
    ones until `up()`."""

    def __init__(self, target: int, rate: float) -> None:
        self.target, self.rate = target, rate
        self.lock = threading.Lock()
        self.ready = dict.fromkeys(("there", "back"), 0.0)  # when the direction is free again
        self.bytes = 0
        self.open: list[socket.socket] = []
        self.port = 0
        self.up()

    def up(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def down(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            found, self.open = self.open, []
        for one in found:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            with self.lock:
                self.open += [near, far]
            for a, b, way in ((near, far, "there"), (far, near, "back")):
                threading.Thread(target=self._pass, args=(a, b, way), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                with self.lock:  # all connections share the line
                    begin = max(time.monotonic(), self.ready[way])
                    self.ready[way] = begin + len(data) / self.rate
                    self.bytes += len(data)
                time.sleep(max(0.0, begin - time.monotonic()))
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
