"""Ctrl-C and SIGTERM while a run goes on: what was finished is saved first.

The first signal gives up the round under way where that can be undone, and waits for its end where
it cannot. A second one does not wait. Nothing interrupts what is being saved. The signal is then
delivered again, to whoever handled it before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Use as a context around a run."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that came
        self.abrupt = False  # a second one came: the round was cut off anywhere
        self.saving = False
        self.at_once: Callable[[], bool] = lambda: True  # whether the first one may interrupt now
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        second, self.asked = self.asked is not None, number
        if self.saving:
            return
        if second:
            self.abrupt = True
        if second or self.at_once():
            raise KeyboardInterrupt

    def check(self) -> None:
        """Between two rounds. Python drops an exception of a signal that comes while an object is
        being cleaned up, so it is not enough to raise one."""
        if self.asked is not None:
            raise KeyboardInterrupt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)
        if self.asked is not None:
            signal.raise_signal(self.asked)
            raise KeyboardInterrupt
