"""Ctrl-C and SIGTERM during a run: finished rounds are saved first.

The first signal discards the current round if that is possible. Otherwise it waits for the end of
the round. A second signal does not wait. No signal interrupts saving. Then the signal is delivered
again, to its previous handler.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """A context manager around a run."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that came
        self.times = 0  # how many came
        self.abrupt = False  # a second signal came: the round stopped at any point
        self.saving = False
        self.at_once: Callable[[], bool] = lambda: True  # may the first signal interrupt now?
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # other threads get no signals
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        second, self.asked = self.asked is not None, number
        self.times += 1
        if self.saving:
            return
        if second:
            self.abrupt = True
        if second or self.at_once():
            raise KeyboardInterrupt

    def check(self) -> None:
        """Call this between two rounds. Raising in the signal handler is not enough: Python drops
        the exception if the signal comes while an object is being cleaned up."""
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
