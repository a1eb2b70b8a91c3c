"""`fafed watch`: the report of runs that go on, served on this machine alone.

The server knows three addresses: the page, a small state that the page asks for every second, and
the report that it asks for when a record is new. Nothing that a browser sends becomes the name of a
file. The server listens on 127.0.0.1. It answers only requests whose Host is this machine: so a
foreign web page cannot reach it under a name of its own.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from fafed.core.run_data import RunData
from fafed.errors import FafedError
from fafed.experiments.rundir import RunDir
from fafed.report.chosen import chosen
from fafed.report.page import content, document

HOSTS = ("127.0.0.1", "localhost")
PATIENCE = 30.0  # seconds that a browser has to send its request
FRESH = 0.5  # seconds for which a look at the folders counts
FILES = ("experiment.toml", "records.jsonl", "failure.txt", "environment.json", "clients.json")


class Seen(NamedTuple):
    """One look at the folders."""

    version: str  # another one if anything has changed
    stamps: dict[Path, str]
    said: list[str]


class Watch:
    """Runs that may go on, and their report. Only what has changed is read again."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self._lock = threading.Lock()
        self._looked = -FRESH
        self._seen = Seen("", {}, [])
        self._read: dict[Path, tuple[str, RunData | str]] = {}  # stamp; the data, or the damage
        self._drawn: tuple[str, str, str] | None = None  # version, title, HTML

    def page(self) -> str:
        """The whole page."""
        script = files("fafed.report").joinpath("watch.js").read_text("utf-8")
        bar = '<div id="watch" role="status" data-state="on"></div>'
        title, report = self._titled()
        return document(title, f"{bar}\n{report}", live=script)

    def report(self) -> str:
        """The part of the page that changes."""
        title, report = self._titled()
        return f"<!doctype html><title>{escape(title)}</title>{report}"

    def state(self) -> str:
        """What the page asks for every second, as JSON."""
        with self._lock:
            seen, runs, damaged = self._data()
        done = sum(run.finished for run in runs)
        failed = sum(run.failure is not None for run in runs)
        open_ = [run for run in runs if not run.finished and run.failure is None]
        total = len(runs) + len(damaged)
        parts = [f"{total} run{'' if total == 1 else 's'}", f"{done} finished"]
        parts += [f"{failed} diverged"] if failed else []
        parts += [f"{len(damaged)} damaged or not readable"] if damaged else []
        for run in open_[:3]:
            parts.append(f"{run.name}: round {len(run.records)} of {run.config['rounds']}")
        parts += [f"and {len(open_) - 3} more unfinished"] if len(open_) > 3 else []
        return json.dumps({"version": seen.version, "text": " · ".join(parts)})

    def _titled(self) -> tuple[str, str]:
        with self._lock:
            seen, runs, damaged = self._data()
            if self._drawn is None or self._drawn[0] != seen.version:
                title, body = _drawn(runs, damaged, seen.said, self.roots)
                html = f'<div id="report" data-version="{seen.version}">{body}</div>'
                self._drawn = seen.version, title, html
            return self._drawn[1:]

    def _data(self) -> tuple[Seen, list[RunData], dict[str, str]]:
        if time.monotonic() - self._looked >= FRESH:
            self._seen, self._looked = _look(self.roots), time.monotonic()
        runs, damaged, kept = [], {}, {}
        for path, stamp in self._seen.stamps.items():
            known = self._read.get(path)
            if known is None or known[0] != stamp:
                known = stamp, _read(path)
            kept[path] = known
            if isinstance(known[1], RunData):
                runs.append(known[1])
            else:
                damaged[path.name] = known[1]
        self._read = kept
        return self._seen, runs, damaged


def _look(roots: Sequence[Path]) -> Seen:
    places, said = chosen(roots)
    stamps = {place.path: _stamp(place) for place in places}
    told = json.dumps([said, sorted((str(path), stamp) for path, stamp in stamps.items())])
    return Seen(hashlib.sha256(told.encode()).hexdigest()[:16], stamps, said)


def _stamp(place: RunDir) -> str:
    """Another text if a file of the run has changed. Missing files are part of it."""
    facts = []
    for name in FILES:
        try:
            found = (place.path / name).stat()
            facts.append(f"{found.st_mtime_ns} {found.st_size}")
        except OSError:
            facts.append("none")
    try:
        facts += sorted(path.name for path in place.checkpoints.iterdir())
    except OSError:
        facts.append("none")
    return "; ".join(facts)


def _read(path: Path) -> RunData | str:
    try:
        return RunDir(path).data()
    except (FafedError, OSError, ValueError) as error:  # a folder may vanish while it is read
        return str(error)


def _drawn(
    runs: Sequence[RunData], damaged: dict[str, str], said: Sequence[str], roots: Sequence[Path]
) -> tuple[str, str]:
    if any(run.records for run in runs):
        return content(runs, damaged=damaged, said=said)
    below = ", ".join(str(root) for root in roots)
    notes = [*said, *(f"{name} is damaged: {why}" for name, why in damaged.items())]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    empty = '{"axes":{},"curves":[],"grids":[],"charts":[],"heat":[],"studies":[]}'
    return "fafed watch", (
        f"<header><h1>No round is finished yet</h1><p>This page shows the runs below "
        f"{escape(below)} as soon as one of them has finished a round.</p></header>"
        f'<main><ul class="notes">{items}</ul></main>'
        f'<script type="application/json" id="report-data">{empty}</script>'
    )


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "fafed", ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")
        if (host[0] or host[2]) not in HOSTS:
            self._answer(403, "text/plain", f"this server answers only as {' or '.join(HOSTS)}\n")
            return
        known = self.server.known.get(self.path)
        if known is None:
            self._answer(404, "text/plain", f"the page is at /, got {self.path!r}\n")
            return
        kind, make = known
        try:
            text = make()
        except FafedError as error:
            self._answer(500, "text/plain", f"{error}\n")
            return
        self._answer(200, kind, text)

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the page asks every second."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, watch: Watch, port: int) -> None:
        super().__init__((HOSTS[0], port), _Handler)
        self.known: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html", watch.page),
            "/report": ("text/html", watch.report),
            "/state": ("application/json", watch.state),
        }

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a browser that goes away is no error."""


@contextmanager
def serving(roots: Sequence[Path], port: int = 0) -> Iterator[str]:
    """Serve the report of the runs below these folders; yields its address. Port 0: a free one."""
    try:
        server = _Server(Watch(roots), port)
    except (OSError, OverflowError) as cause:
        raise FafedError(
            f"port {port} cannot be used: {cause}. Choose another one, or none for a free one"
        ) from cause
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://{HOSTS[0]}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
