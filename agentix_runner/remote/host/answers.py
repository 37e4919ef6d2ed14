"""What becomes of one call, on the host: its answer is put together, checked, decoded, and handed to who waits.

Also the words for a sandbox's end, which is every waiting call's answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ...errors import BadResult, CallError, RemoteError, SandboxDied, SandboxError, SandboxStartError
from ..wire import frames
from ..wire.codec import Malformed, decode
from .calls import name_of
from .transport import Ended
from .typed import annotation_of, rebuild

_REPORT_LIMIT = 1024 * 1024
# What a message has besides the value.
_SLACK = 1024 * 1024
_REPORT_KEYS = frozenset(("stage", "type", "message", "traceback"))


class Answer:
    """The answer to a call of `function`, which the connection's reader fills in and one thread waits for.

    A sandbox that keeps to no limit is cut off at `max_result` bytes; what comes beyond is dropped.
    """

    def __init__(self, function: Callable[..., Any], max_result: int) -> None:
        self.name = name_of(function)
        self._function = function
        self._max_result = max_result
        self._kind = 0
        self._data = bytearray()
        self._error: SandboxError | None = None
        # Free when the answer is whole, or when there won't be any. (An Event would be one more lock and a list.)
        self._waiting = threading.Lock()
        self._waiting.acquire()

    # --- for the reader ---

    def take(self, frame: frames.Frame) -> None:
        """Take a frame of the answer."""
        limit = self._max_result + _SLACK if frame.kind == frames.RESULT else _REPORT_LIMIT
        if self._kind not in (0, frame.kind):
            self._refuse("a result and an error in one")
        elif len(self._data) + len(frame.payload) > limit:
            self._refuse(f"more than {limit} bytes")
        else:
            self._kind = frame.kind
            self._data += frame.payload
        if frame.end:
            self._waiting.release()

    def _refuse(self, why: str) -> None:
        self._data = bytearray()
        if self._error is None:
            self._error = self._bad(why)

    def fail(self, error: SandboxError) -> None:
        """There won't be an answer. Not after its last frame."""
        self._error = error
        self._waiting.release()

    # --- for the caller ---

    def wait(self) -> None:
        """Return when the answer is there, or when there won't be any."""
        self._waiting.acquire()

    def value(self) -> Any:
        """What the answer says.

        Raises:
            RemoteError, CallError, BadResult: it says that there is no value.
            BadResult: it is malformed, or not what the function's annotation says.
            SandboxError: there was none.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # Its traceback has this frame: what it holds would stay until somebody collects garbage.
                del error
        data, self._data = self._data, bytearray()
        try:
            value = decode(data)
            if self._kind == frames.ERROR:
                raise self._reported(value)
        except Malformed as error:
            raise self._bad(str(error)) from None
        return rebuild(value, annotation_of(self._function), self.name)

    def _bad(self, why: str) -> BadResult:
        return BadResult(f"what came back from {self.name} is not a valid result: {why}")

    def _reported(self, report: Any) -> SandboxError:
        """The error that a report tells of. Raises Malformed."""
        valid = isinstance(report, dict) and set(report) == _REPORT_KEYS
        if not valid or not all(type(text) is str for text in report.values()):
            raise Malformed("an error report that is not of the form it must have")
        stage, kind, message = report["stage"], report["type"], report["message"]
        text = f"{kind}: {message}" if message else kind
        if stage == "call":
            return CallError(f"{self.name} can't be run in the sandbox: {text}")
        if stage == "result":
            return BadResult(f"{self.name} returned what can't be sent: {message or kind}")
        if stage != "raised":
            raise Malformed("an error report of an unknown stage")
        return RemoteError(
            f"{self.name} raised {text}", type_name=kind, remote_message=message, remote_traceback=report["traceback"]
        )


def shown_text(text: str) -> str:
    """What a process wrote, as the end of a one-line message."""
    lines = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return f"; it wrote: {lines[-2000:]}" if lines else ""


def death_error(name: str, ended: Ended) -> SandboxDied:
    """The error for a call of `name` that was under way when the sandbox ended."""
    code, how = ended.exit_code, "ended"
    if ended.oom:
        how = "ran out of memory (give it more, or let it do less)"
    elif code is not None and code < 0:
        how = f"was killed by signal {-code}"
    elif code is not None:
        how = f"exited with code {code}"
    return SandboxDied(
        f"the sandbox's worker {how} while {name} ran{shown_text(ended.text)}", exit_code=code, oom=ended.oom
    )


def start_error(ended: Ended) -> SandboxStartError:
    """The error for a sandbox that ended before it had answered."""
    code = "" if ended.exit_code is None else f" (exit code {ended.exit_code})"
    wrote = shown_text(ended.text) or "; it wrote nothing"
    return SandboxStartError(
        f"the sandbox's interpreter ended before it was ready{code}{wrote}. Check that it runs at all", transient=False
    )
