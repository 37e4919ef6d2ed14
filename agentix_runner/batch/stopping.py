"""SIGTERM and SIGHUP as an exception in the main thread, so that they clean up the way Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. `signum` is its number; 128 + `signum` is the exit code that a shell would show."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextmanager
def terminating() -> Iterator[Sequence[int]]:
    """Inside, SIGTERM and SIGHUP raise `Terminated` in the main thread.

    Only where they would have ended the process: a signal that is ignored (nohup) or handled by somebody else stays
    as it is. Does nothing outside the main thread. The old dispositions are back at the end. Gives the signals that it
    took over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield ()
        return

    def on_signal(signum: int, frame: FrameType | None) -> None:
        raise Terminated(signum)

    taken = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for signum in taken:
        signal.signal(signum, on_signal)
    try:
        yield taken
    finally:
        for signum in taken:
            signal.signal(signum, signal.SIG_DFL)


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP let `finally` clauses run; then they end the process as they would have."""
    taken: Sequence[int] = ()
    try:
        with terminating() as taken:
            yield
    except Terminated as exc:
        if exc.signum in taken:
            os.kill(os.getpid(), exc.signum)
        raise
