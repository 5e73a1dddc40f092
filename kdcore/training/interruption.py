"""Ctrl-C and SIGTERM while training: finish the step, save, then stop."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interruption:
    """Notes the first signal instead of dying; a second one stops at once, as usual.

    Signals reach Python's main thread only, so elsewhere (a notebook's worker, a thread) nothing is changed.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, active: bool = True) -> None:
        """Without `active` signals keep their usual effect: ranks of one training would stop at different steps."""
        self.active = active
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if self.active and threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._restore()

    def stop(self) -> None:
        """Raise what the signal would have raised; does nothing when none came."""
        if self.received is signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()
