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

from ..errors import BadAdapter, BadArgument, JournalError, RunDirError
from ..text import clean, printable

OK = 0
FAILED = 1
USAGE = 2
BUG = 70
NOT_WRITTEN = 74

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


def exit_code(run: Callable[[], int], *, verbose: bool, on_interrupt: Callable[[], str]) -> int:
    """What `run()` returns, or the code of what it raises, told on stderr.

    `on_interrupt` gives the line for a run that a signal ended. `verbose` adds the traceback of the user's own error.
    """
    try:
        return run()
    except KeyboardInterrupt as exc:
        signum = exc.signum if isinstance(exc, Ended) else signal.SIGINT
        _tell(f"Ended by {signal.Signals(signum).name}: {on_interrupt()}")
        return 128 + signum
    except (BadArgument, BadAdapter, RunDirError) as exc:
        if verbose and exc.__cause__ is not None:
            _tell(_trace(exc.__cause__))
        _tell(f"Error: {clean(exc, 2000)}")
        return USAGE
    except JournalError as exc:
        _tell(f"Error: {clean(exc, 2000)}")
        return NOT_WRITTEN
    except Exception as exc:
        _tell(_trace(exc))
        _tell("Error: this is a bug in agentix-runner; please report it with the lines above")
        return BUG


def _trace(exc: BaseException) -> str:
    return printable("".join(traceback.format_exception(exc))).rstrip("\n")


def _tell(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it any more; the exit code still says it
        print(text, file=sys.stderr, flush=True)
