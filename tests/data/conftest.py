"""A small real web server, with the faults that real ones have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fafed import data
from fafed.data.datasets import cache


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges = True  # whether it understands Range
        self.breaks: list[int] = []  # each request to come: bytes sent before it hangs up
        self.lengths = True  # whether it says how long an answer is
        self.asked: list[str | None] = []  # the Range of each request so far
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        content = self.server.files.get(self.path.removeprefix("/"))
        if content is None:
            return self.send_error(404)
        start = 0
        if asked and self.server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        if self.server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks.pop(0)] if self.server.breaks else body)
        return None

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def small_files() -> object:
    """A context in which no file can grow beyond a size: the disk is full, for real."""
    resource = pytest.importorskip("resource")

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def real() -> object:
    """Loads a dataset that does not ship, or skips the test."""

    def load(name: str) -> object:
        if not cache.present(data.DATASETS[name]):
            pytest.skip(f"{name} is not here; run fafed data get {name}, or fafed data import")
        return data.load(name)

    return load


@pytest.fixture
def left() -> object:
    """All that is in a folder, hidden things too."""
    return lambda folder: sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
