"""Exit codes, in one place: which error, or which signal, ends the command with which code and which words.

0 all ran; 1 some rollout has an error (or is not resolved, where that was asked); 2 the command can't be run as given,
and nothing was started; 70 a bug of agentix-runner's own; 74 the results can't be written; 129, 130, 143 ended by
SIGHUP, SIGINT (Ctrl-C), SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from ..errors import BadAdapter, BadArgument, BundleError, JournalError, RunDirError, SandboxError
from ..text import clean, printable

OK = 0
FAILED = 1
USAGE = 2
BUG = 70
NOT_WRITTEN = 74

CODES: dict[type[Exception], int] = {
    BadArgument: USAGE,
    BadAdapter: USAGE,
    RunDirError: USAGE,
    JournalError: NOT_WRITTEN,
    BundleError: FAILED,
    SandboxError: FAILED,
}
"""Every other error is a bug."""

BUG_TEXT = "this is a bug in agentix-runner; please report it with the lines above"

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """One of `SIGNALS` arrived. A KeyboardInterrupt, so that a run cleans up as for Ctrl-C whichever it was."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP raises in the main thread, so that everything is cleaned up; a second
    one, of any kind, leaves at once.

    A signal that is ignored (nohup, a shell's background job) or handled by somebody else stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    taken = [s for s, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]

    def first(signum: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, leave)
        raise Ended(signum)

    def leave(signum: int, frame: FrameType | None) -> None:
        # What is left of the sandboxes ends with this process: their guards see it go.
        os._exit(128 + signum)

    for signum in taken:
        signal.signal(signum, first)
    try:
        yield
    finally:
        for signum in taken:
            signal.signal(signum, before[signum])


def run(command: Callable[[], int], *, on_interrupt: Callable[[], str], verbose: bool = False) -> int:
    """What `command()` returns, or the exit code of what it raises, which is shown on stderr.

    `on_interrupt` gives the line for a command that a signal ended. `verbose` adds the traceback of the user's own
    error.
    """
    with interruptible():
        try:
            return command()
        except KeyboardInterrupt as exc:
            signum = exc.signum if isinstance(exc, Ended) else signal.SIGINT
            _show(f"Ended by {signal.Signals(signum).name}: {on_interrupt()}")
            return 128 + signum
        except Exception as exc:
            code = next((code for kind, code in CODES.items() if isinstance(exc, kind)), BUG)
            to_trace = exc if code == BUG else exc.__cause__ if verbose else None
            if to_trace is not None:
                _show(printable("".join(traceback.format_exception(to_trace))).rstrip("\n"))
            _show(f"Error: {BUG_TEXT if code == BUG else clean(exc, 2000)}")
            return code


def _show(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it any more; the exit code still says it
        print(text, file=sys.stderr, flush=True)
