"""What becomes of one call, on the host: its answer is put together, checked, decoded, and handed to who waits.

Also the words for a sandbox's end, which is every waiting call's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
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
_STAGES = ("call", "raised", "result")


class Call:
    """A call that waits for its answer.

    `future` gets the message as it came, (kind, data), for `value` to decode, where `raw`; else the value itself.
    Whoever takes the call out of the client's table, and nobody else, settles it.
    """

    __slots__ = ("_data", "_kind", "_why_bad", "function", "future", "name", "raw")

    def __init__(self, function: Callable[..., Any], *, raw: bool) -> None:
        self.function = function
        self.name = name_of(function)
        self.future: Future[Any] = Future()
        self.raw = raw
        self._kind = 0
        self._data = bytearray()
        self._why_bad = ""

    def take(self, frame: frames.Frame, max_result: int) -> bool:
        """Take a frame of the answer. False: the answer is no good already; `refuse` the call, and drop the rest."""
        limit = max_result + _SLACK if frame.kind == frames.RESULT else _REPORT_LIMIT
        if self._kind not in (0, frame.kind):
            self._why_bad = "a result and an error in one"
        elif len(self._data) + len(frame.payload) > limit:
            self._why_bad = f"more than {limit} bytes"
        else:
            self._kind = frame.kind
            self._data += frame.payload
            return True
        self._data = bytearray()
        return False

    def refuse(self) -> None:
        """Settle the call as having a bad answer."""
        self.fail(BadResult(f"what came back from {self.name} is no valid result: {self._why_bad}"))

    def fail(self, error: BaseException) -> None:
        """Settle the call with an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def size(self) -> int:
        """Bytes of the answer so far."""
        return len(self._data)

    def deliver(self) -> None:
        """The answer is whole: settle the call with it as it came."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result((self._kind, self._data))

    def decode(self) -> None:
        """The answer is whole: settle the call with its value."""
        if not self.future.set_running_or_notify_cancel():
            return
        data, self._data = self._data, bytearray()
        try:
            value = self.value(self._kind, data)
        except BaseException as error:
            # Whatever the annotation's own classes raise is for who waits, and not for the thread that decodes.
            self.future.set_exception(error)
        else:
            self.future.set_result(value)

    def value(self, kind: int, data: bytearray) -> Any:
        """What the answer says.

        Raises:
            RemoteError, CallError, BadResult: it says that there is no value.
            BadResult: it is malformed, or not what the function's annotation says.
        """
        try:
            if kind == frames.ERROR:
                raise self._error(decode(data))
            value = decode(data)
        except Malformed as error:
            raise BadResult(f"what came back from {self.name} is no valid result: {error}") from None
        return rebuild(value, annotation_of(self.function), self.name)

    def _error(self, report: Any) -> SandboxError:
        keys = ("stage", "type", "message", "traceback")
        if not isinstance(report, dict) or set(report) != set(keys) or not all(type(report[k]) is str for k in keys):
            raise Malformed("an error report that is not of the form it must have")
        stage, kind, message, traceback = (report[key] for key in keys)
        if stage not in _STAGES:
            raise Malformed("an error report of an unknown stage")
        text = f"{kind}: {message}" if message else kind
        if stage == "call":
            return CallError(f"{self.name} can't be run in the sandbox: {text}")
        if stage == "result":
            return BadResult(f"{self.name} returned what can't be sent: {message or kind}")
        return RemoteError(
            f"{self.name} raised {text}", type_name=kind, remote_message=message, remote_traceback=traceback
        )


def quoted(text: str) -> str:
    """What a process wrote, as the end of a one-line message."""
    lines = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return f"; it wrote: {lines[-2000:]}" if lines else ""


def death(name: str, ended: Ended) -> SandboxDied:
    """The error for a call of `name` that was under way when the sandbox ended."""
    code, how = ended.exit_code, "ended"
    if ended.oom:
        how = "ran out of memory (give it more, or let it do less)"
    elif code is not None and code < 0:
        how = f"was killed by signal {-code}"
    elif code is not None:
        how = f"exited with code {code}"
    return SandboxDied(
        f"the sandbox's worker {how} while {name} ran{quoted(ended.text)}", exit_code=code, oom=ended.oom
    )


def stillborn(ended: Ended) -> SandboxStartError:
    """The error for a sandbox that ended before it had answered."""
    code = "" if ended.exit_code is None else f" (exit code {ended.exit_code})"
    wrote = quoted(ended.text) or "; it wrote nothing"
    return SandboxStartError(
        f"the sandbox's interpreter ended before it was ready{code}{wrote}. Check that it runs at all", transient=False
    )
