"""Run an experiment to its end from an administrator's session: submit the job, follow it, submit
it again.

A FLARE job does not survive the death of its server, and a site that died cannot return to it. The
run survives: it has its own directory and its own name. If a job ends early, the next job continues
after the last finished round.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fafed.core.records import Record
from fafed.errors import ConfigError, FafedError
from fafed.silos.server import log
from fafed.silos.transports.nvflare.endpoint import TOPIC
from fafed.silos.transports.nvflare.job import FafedRecipe, JobFacts
from fafed.silos.transports.nvflare.kit_files import require
from fafed.training.loop import Diverged

POLL = 0.5
LOOK = 5.0  # seconds between two looks whether a silo is back
DEAD = 8.0  # seconds without a process of the job
RETRIED = {"TooFew", "Absent", "Busy"}  # errors that pass when the others are back
ADVICE = (
    ". `log.txt` in the kits has the details. A silo's kit must be set up by `fafed silos site`, "
    "the server's by `fafed silos server`, and each must be started again after it"
)
OnFacts = Callable[[JobFacts], None]
OnRecord = Callable[[int, Record], None]  # which experiment, and its newest round


class Driver:
    """Runs a recipe to its end on a federation, with the administrator's kit."""

    def __init__(
        self,
        kit: Path,
        silos: list[str],
        *,
        username: str,
        min_silos: int,
        patience: float = 60.0,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        require(kit, "admin")
        self.kit = kit
        self.silos = silos
        self.username = username
        self.min_silos = min_silos
        self.patience = patience  # seconds that the server or a lost silo has to come back
        self.tick = tick  # called while waiting
        self.session: Session | None = None
        self.job: str | None = None
        self.trouble = ""  # why the last question to the server failed
        self.cause = ""  # FLARE's text for it; kept until a question succeeds
        self.misses = 0  # failed questions in a row

    def run(self, recipe: FafedRecipe, on_record: OnRecord | None = None) -> None:
        """Submit the job until everything is finished. Stop when it makes no progress."""
        seen = [[0, 0]]
        stuck = 0

        def show(facts: JobFacts) -> None:
            if facts.get("record") and facts["at"] > seen[0]:
                seen[0] = facts["at"]
                if on_record:
                    on_record(facts["at"][0], Record(**facts["record"]))

        while True:
            before = seen[0]
            absent = set(self.silos) - self._wait_for(self.silos)
            self._check_server()
            facts = self._one_job(recipe.without(absent), show, absent)
            show(facts)
            if facts["state"] == "finished":
                return
            if facts["state"] == "failed" and facts.get("kind") not in RETRIED:
                raise _failure(facts)
            if facts["status"] == "FINISHED:ABORTED":
                raise FafedError(
                    "an administrator aborted the job; what is finished is saved, and the same "
                    "command goes on"
                )
            stuck = 0 if seen[0] > before else stuck + 1
            if stuck >= 3:
                raise FafedError(f"three jobs in a row made no progress: {facts['why']}{ADVICE}")
            log.warning("the job has ended (%s); submitting it again", facts["why"])

    def close(self) -> None:
        """End the current job, if there is one."""
        if self.session is not None:
            with contextlib.suppress(Exception), _silently():
                if self.job is not None:
                    self.session.abort_job(self.job)
                self.session.close()
        self.session = self.job = None

    # One job.

    def _one_job(self, recipe: FafedRecipe, show: OnFacts, absent: set[str]) -> JobFacts:
        with tempfile.TemporaryDirectory() as folder:
            recipe.export(folder)
            self.job = self._ask(lambda s: s.submit_job(str(Path(folder) / recipe.name)))
        log.info("job %s submitted", self.job)
        facts: JobFacts = {}
        heard = running = looked = time.monotonic()
        while True:
            self.tick()
            time.sleep(POLL)
            now = time.monotonic()
            status = self._try(lambda s: s.get_job_meta(self.job).get("status", ""))
            if status is None:
                if now - heard > self.patience:
                    raise FafedError(
                        f"the server has not answered for {self.patience:g} s: start it again, "
                        "and then the run; it goes on where it was"
                    )
                continue
            heard = now
            told = self._try(lambda s: s.do_app_command(self.job, TOPIC, {}))
            if isinstance(told, dict) and "state" in told:
                facts, running = cast(JobFacts, told), now
                show(facts)
                if now - looked > LOOK:
                    looked, absent = now, self._call_back(facts, absent)
            state = facts.get("state")
            over = state in ("again", "failed", "finished")  # FLARE notices this later
            # a server that was killed and restarted still reports its old jobs as running
            wait = 4 * DEAD if state == "aborted" else DEAD
            dead = self.trouble == "JobNotRunning" and facts and now - running > wait
            if (over or dead) and state != "finished":
                self._try(lambda s: s.abort_job(self.job))
            if over or dead or str(status).startswith("FINISHED"):
                job, self.job = self.job, None
                last = facts if over else self._outcome(job, status, facts)
                if not over and (who := self._ended(job)):
                    last = last | {"why": f"{last['why']}; the process of {who} has ended"}
                return {"status": status, **last}

    def _call_back(self, facts: JobFacts, absent: set[str]) -> set[str]:
        """If a silo was absent when the job began and is back now, end the job after the current
        round. The next job will have the silo."""
        if "met" not in facts:
            return absent
        missing = set(self.silos) - set(facts["met"])
        here = self._alive(sorted(missing & self._connected())) if missing else set()
        if here & absent:
            self._try(lambda s: s.do_app_command(self.job, TOPIC, {"pause": True}))
        return missing - here

    def _outcome(self, job: str | None, status: str, facts: JobFacts) -> JobFacts:
        """The last state that the job reported. Its server may have died before it could report."""
        with tempfile.TemporaryDirectory() as folder:
            self._try(lambda s: s.download_job_result(job, folder))
            for path in Path(folder).rglob("fafed.json"):
                return cast(JobFacts, dict(json.loads(path.read_text("utf-8"))))
        return facts | {"state": "again", "why": f"FLARE says {status}"}

    # What FLARE knows of a job that fafed could not end.

    def _check_server(self) -> None:
        """FLARE would start no job there, and its words for that say nothing."""
        listed = str(self._try(lambda s: s.ls_target("server", "", "local"))).split()
        if "resources.json.default" in listed and "fafed.toml" not in listed:
            raise ConfigError(
                "the server's kit is not set up: run `fafed silos server` on it, and start the "
                "server again"
            )

    def _ended(self, job: str | None) -> str:
        """The silo whose process has ended the job, from the server's log; "" if none has."""
        line = f"Failing job {job} due to reported failure from"
        told = str(self._try(lambda s: s.grep_target("server", "", line, "log.txt")))
        found = re.search(rf"{re.escape(line)} ([\w-]+)", told)
        return found[1] if found else ""

    # Which silos are present.

    def _wait_for(self, silos: list[str]) -> set[str]:
        """Wait until all silos are present, or until time is over and enough are present. Return
        those that are."""
        end = time.monotonic() + self.patience
        while True:
            self.tick()
            here = self._connected() & set(silos)
            if len(here) == len(silos) and self._alive(silos) == set(silos):
                return here
            if time.monotonic() > end:
                break
            time.sleep(POLL)
        if not here and self.cause:
            raise FafedError(
                f"the server did not answer for {self.patience:g} s ({self.cause}): start it, or "
                "see whether the kit is one of its own"
            )
        here = self._alive(sorted(here))
        if len(here) < self.min_silos:
            missing = sorted(set(silos) - here)
            raise FafedError(
                f"{len(here)} of {len(silos)} silos are connected, the run must have "
                f"{self.min_silos}: start {', '.join(missing)}, or let a run that has begun go on "
                "without, with a smaller --min-silos"
            )
        log.warning("going on without %s", ", ".join(sorted(set(silos) - here)))
        return here

    def _connected(self) -> set[str]:
        found = self._try(lambda s: s.get_connected_client_list())
        return {client.name for client in found or []}

    def _alive(self, silos: list[str]) -> set[str]:
        """The silos that answer. FLARE lists a killed site for ten minutes, so its list is no
        proof."""
        if not silos:
            return set()
        found = self._try(lambda s: s.check_status("client", silos)) or {}
        told = {one["client_name"]: one["status"] for one in found.get("client_status", [])}
        return {name for name in silos if told.get(name, "no_reply") != "no_reply"}

    # The session.

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        end = time.monotonic() + self.patience
        while True:
            answer = self._try(question)
            if answer is not None:
                return answer
            if time.monotonic() > end:
                raise FafedError(f"the server did not answer for {self.patience:g} s: start it")
            self.tick()
            time.sleep(POLL)

    def _try(self, question: Callable[[Any], Any]) -> Any:
        """The server's answer, or None while the server is absent."""
        self.trouble = ""
        try:
            with _silently():
                if self.session is None:
                    self.session = new_secure_session(self.username, str(self.kit), timeout=5.0)
                answer = question(self.session)
            self.misses, self.cause = 0, ""
            return answer
        except Exception as cause:  # the session raises many kinds, and some close it
            log.debug("no answer from the server: %r", cause)
            self.trouble, self.cause = type(cause).__name__, f"{type(cause).__name__}: {cause}"
            self.misses += 1
            if self.trouble in _BROKEN or self.misses >= 5:  # some sessions break silently
                self.misses = 0
                with contextlib.suppress(Exception), _silently():
                    if self.session is not None:
                        self.session.close()
                self.session = None
            return None


def _failure(facts: JobFacts) -> FafedError:
    """The error that ended the job, of the same kind as in a run on this machine."""
    if facts.get("kind") == "Diverged":
        return Diverged(facts["why"], facts["client"], facts["round"])
    return FafedError(facts["why"])


_BROKEN = {"NoConnection", "SessionClosed", "ConnectionError", "AuthenticationError"}


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Hide what FLARE's session prints to the console."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
