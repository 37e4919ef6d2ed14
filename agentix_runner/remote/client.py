"""A sandbox as the host sees it: calls go in, results and output come out, and whatever happens nobody waits for ever.

One daemon thread per sandbox reads, always: a connection that nobody reads would stop the sandbox, and with some
transports the engine behind it. It never writes; credit is given by a second thread, which starts when a message is
longer than a window.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from .._version import __version__
from ..errors import BadResult, CallError, RemoteError, SandboxDied, SandboxError, SandboxStartError
from . import frames
from .calls import Reach, make_call, name_of
from .codec import Malformed, decode
from .frames import FrameError, FrameReader
from .logs import SandboxLog
from .outbox import Closed, Outbox
from .transport import Ended, Transport
from .typed import annotation_of, rebuild

_log = logging.getLogger("agentix_runner.remote")

_REPORT_LIMIT = 1024 * 1024
_HELLO_LIMIT = 1024 * 1024
# Above this, decoding is left to a thread of its own: the reader has more to do.
_SMALL = 1024 * 1024
_STAGES = ("call", "raised", "result")


class _Call:
    """One call that waits for its answer. `answer` is for whoever made it: raw, or the value itself."""

    __slots__ = ("abandoned", "annotation", "data", "future", "kind", "name", "raw")

    def __init__(self, function: Callable[..., Any], *, raw: bool) -> None:
        self.name = name_of(function)
        self.annotation = annotation_of(function)
        self.future: Future[Any] = Future()
        self.raw = raw
        self.kind = 0
        self.data = bytearray()
        self.abandoned = False

    def value(self, kind: int, data: bytearray) -> Any:
        """What the answer says. Raises what it says, or BadResult."""
        try:
            if kind == frames.ERROR:
                raise self._error(decode(data))
            value = decode(data)
        except Malformed as error:
            raise BadResult(f"what came back from {self.name} is no valid result: {error}") from None
        return rebuild(value, self.annotation, self.name)

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
            return BadResult(f"{self.name} returned what can't be sent: {message}")
        return RemoteError(
            f"{self.name} raised {text}", type_name=kind, remote_message=message, remote_traceback=traceback
        )

    def settle(self, outcome: Callable[[], Any]) -> None:
        """Give the future what `outcome` returns or raises, unless it has been cancelled."""
        try:
            value, error = outcome(), None
        except Exception as caught:
            value, error = None, caught
        with contextlib.suppress(InvalidStateError):
            if self.future.set_running_or_notify_cancel():
                if error is None:
                    self.future.set_result(value)
                else:
                    self.future.set_exception(error)


class RemoteSandbox:
    """A running sandbox at the other end of `transport`. `connect` makes it ready for calls.

    `max_result` and `max_log` are bytes: of one result, and of everything that the sandbox prints.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        shared: bool = False,
        on_log: Callable[[bytes], None] | None = None,
        labels: Mapping[str, str] | None = None,
        max_result: int = 1 << 30,
        max_log: int = 64 << 20,
    ) -> None:
        self._transport = transport
        self._shared = shared
        self._max_result = max_result
        self._max_log = max_log
        # The worker cuts first, and says so in a line of its own.
        self._printed = SandboxLog(max_log + 1024, on_log, labels or {})
        self._outbox = Outbox(transport.write)
        self._reach: Reach | None = None
        self._hello = threading.Event()
        self._greeting = bytearray()
        # Guards the calls, their count and the end.
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._last_call = 0
        self._end: Callable[[str], SandboxError] | None = None
        self._ended: Ended | None = None
        self._granted = threading.Condition()
        self._credit: dict[int, int] = {}
        self._granter: threading.Thread | None = None
        self._reader = threading.Thread(target=self._read, name="agentix-sandbox", daemon=True)

    # --- what users call ---

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in the sandbox, wait, and return its value. Any number of threads may do so.

        Raises:
            RemoteError: `fn` raised there.
            SandboxDied: the sandbox ended meanwhile.
            CallError: `fn` or its arguments can't be sent.
            BadResult: what came back is no valid result.
        """
        number, call = self._start(fn, args, kwargs, raw=True)
        try:
            kind, data = call.future.result()
        except BaseException:
            self._abandon(number)
            raise
        return call.value(kind, data)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Like `remote`, without waiting. Raises CallError and SandboxDied at once; the rest is the future's.

        Cancelling the future gives up the answer; the function runs on until the sandbox ends.
        """
        number, call = self._start(fn, args, kwargs, raw=False)
        call.future.add_done_callback(lambda future: self._abandon(number) if future.cancelled() else None)
        return call.future

    def kill(self) -> None:
        """End everything in the sandbox, and wake whoever waits for it with SandboxDied. From any thread, at once."""
        self._finish(lambda name: SandboxDied(f"the sandbox was killed while {name} ran"))
        self._transport.close()

    def close(self, timeout: float = 30.0) -> bool:
        """Kill the sandbox, wait up to `timeout` seconds for its end, and free what it holds here.

        False where it did not end by itself in time: something of it may be left.
        """
        self.kill()
        with self._granted:
            granter = self._granter
            self._granted.notify_all()
        for thread in (self._reader, granter):
            if thread is not None and thread.ident is not None and thread is not threading.current_thread():
                thread.join(timeout)
                if thread.is_alive():
                    # on_log does not return. Its descriptors stay open: closed, their numbers would be used again.
                    _log.error("the thread of a sandbox does not end: is on_log stuck?")
                    return False
        with self._outbox.exclusively():
            return self._transport.release(timeout)

    # --- the start ---

    def connect(self, timeout: float, greeting: Mapping[str, Any] | None = None) -> None:
        """Greet the worker and wait for its answer, at most `timeout` seconds. Call `close` whatever happens.

        Raises:
            SandboxStartError: there was none, or it is of another version.
        """
        hello = {
            "wire": frames.WIRE,
            "agentix": __version__,
            "max_result": self._max_result,
            "max_log": self._max_log,
            **(greeting or {}),
        }
        self._reader.start()
        with contextlib.suppress(Closed):
            self._outbox.send(frames.HELLO, 0, [json.dumps(hello).encode()])
        if not self._hello.wait(timeout):
            self._transport.close()
            text = self._transport.ended(1.0).text
            raise SandboxStartError(
                f"the sandbox's worker said nothing in {timeout:g} s{_quoted(text)}", transient=True
            )
        with self._lock:
            if self._end is not None:
                raise self._end("its start")

    def _greeted(self, frame: frames.Frame) -> None:
        self._greeting += frame.payload
        if len(self._greeting) > _HELLO_LIMIT:
            raise FrameError("a greeting that does not end")
        if not frame.end:
            return
        if self._hello.is_set():
            raise FrameError("a second greeting")
        try:
            hello = json.loads(bytes(self._greeting))
            version, wire, python = hello["agentix"], hello["wire"], tuple(hello["python"][:2])
            modules = frozenset(map(str, hello.get("modules", ())))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise FrameError("a greeting that is not of the form it must have") from None
        if (wire, version) != (frames.WIRE, __version__):
            text = (
                f"the sandbox has agentix-runner {version!s:.40} (wire {wire!s:.10}), and here is {__version__} "
                f"(wire {frames.WIRE}): build its bundle again with this version"
            )
            self._finish(lambda name: SandboxStartError(text))
            return
        self._reach = Reach(python=python, shared=self._shared, modules=modules)
        self._hello.set()

    # --- calls ---

    def _start(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool
    ) -> tuple[int, _Call]:
        reach = self._reach
        if reach is None:
            raise CallError("the sandbox is not connected yet")
        parts = make_call(function, args, kwargs, reach)
        call = _Call(function, raw=raw)
        with self._lock:
            if self._end is not None:
                raise self._end(call.name)
            self._last_call = number = self._last_call + 1
            self._calls[number] = call
        try:
            self._outbox.send(frames.CALL, number, parts)
        except Closed:
            # The reader sees the same end, and knows more of it.
            pass
        except BaseException:
            self._abandon(number)
            raise
        return number, call

    def _abandon(self, number: int) -> None:
        """Nobody waits for this call any more. Its answer, when it comes, is read and dropped."""
        with self._lock:
            call = self._calls.get(number)
            if call is not None:
                call.abandoned = True
                call.data = bytearray()

    def _finish(self, error: Callable[[str], SandboxError]) -> None:
        with self._lock:
            if self._end is None:
                self._end = error
            error = self._end
            calls, self._calls = self._calls, {}
        self._outbox.close()
        self._hello.set()
        for call in calls.values():
            call.settle(lambda call=call: _raise(error(call.name)))  # type: ignore[misc]

    # --- the reader's thread ---

    def _read(self) -> None:
        broken = ""
        try:
            reader = FrameReader(self._transport.read)
            while (frame := reader.next()) is not None:
                self._take(frame)
        except FrameError as error:
            broken = str(error)
        except OSError as error:
            _log.debug("a sandbox's connection broke: %s", error)
        except Exception as error:
            _log.exception("a sandbox's reader failed")
            broken = f"{type(error).__name__}: {error}"
        finally:
            self._outbox.close()
            self._at_end(broken)
            self._printed.finish()
            with self._granted:
                self._granted.notify_all()

    def _at_end(self, broken: str) -> None:
        if self._end is not None:
            return
        if broken:
            self._transport.close()
            if self._hello.is_set():
                self._finish(
                    lambda name: SandboxDied(f"the sandbox was ended while {name} ran: it sent garbage ({broken})")
                )
            else:
                text = self._transport.ended(2.0).text
                self._finish(
                    lambda name: SandboxStartError(
                        f"the sandbox's worker does not speak this protocol ({broken}){_quoted(text)}"
                    )
                )
            return
        ended = self._transport.ended(10.0)
        greeted = self._hello.is_set()
        self._finish(lambda name: _death(name, ended) if greeted else _stillborn(ended))

    def _take(self, frame: frames.Frame) -> None:
        if frame.kind in (frames.RESULT, frames.ERROR):
            self._take_answer(frame)
        elif frame.kind == frames.LOG:
            if self._end is None:
                self._printed.feed(bytes(frame.payload))
            self._grant(0, len(frame.payload))
        elif frame.kind == frames.HELLO:
            self._greeted(frame)
        elif frame.kind == frames.CREDIT:
            self._outbox.grant(frame.stream, frames.credit_of(frame))
        else:
            raise FrameError(f"a frame of kind {frame.kind}, which only the host sends")

    def _take_answer(self, frame: frames.Frame) -> None:
        with self._lock:
            call = self._calls.get(frame.stream)
            if call is None:
                # Never asked, or answered already.
                return
            if frame.end:
                del self._calls[frame.stream]
            if not call.abandoned:
                call.data += frame.payload
        if not frame.end:
            self._grant(frame.stream, len(frame.payload))
        else:
            with self._granted:
                self._credit.pop(frame.stream, None)
        limit = self._max_result if frame.kind == frames.RESULT else _REPORT_LIMIT
        if call.kind not in (0, frame.kind):
            self._refuse(frame.stream, call, "a result and an error in one")
        elif len(call.data) > limit + 1024:
            self._refuse(frame.stream, call, f"more than {limit} bytes")
        elif frame.end and not call.abandoned:
            self._answer(call, frame.kind)
        call.kind = frame.kind

    def _refuse(self, number: int, call: _Call, why: str) -> None:
        self._abandon(number)
        call.data = bytearray()
        if not call.abandoned or not call.future.done():
            call.abandoned = True
            call.settle(lambda: _raise(BadResult(f"what came back from {call.name} is no valid result: {why}")))

    def _answer(self, call: _Call, kind: int) -> None:
        data, call.data = call.data, bytearray()
        if call.raw:
            call.settle(lambda: (kind, data))
        elif len(data) <= _SMALL:
            call.settle(lambda: call.value(kind, data))
        else:
            threading.Thread(
                target=call.settle, args=(lambda: call.value(kind, data),), name="agentix-decode", daemon=True
            ).start()

    # --- credit ---

    def _grant(self, stream: int, size: int) -> None:
        with self._granted:
            self._credit[stream] = self._credit.get(stream, 0) + size
            if self._credit[stream] < frames.WINDOW // 2:
                return
            if self._granter is None:
                self._granter = threading.Thread(target=self._give_credit, name="agentix-credit", daemon=True)
                self._granter.start()
            self._granted.notify_all()

    def _give_credit(self) -> None:
        while True:
            with self._granted:
                due = [stream for stream, size in self._credit.items() if size >= frames.WINDOW // 2]
                if not due:
                    if self._end is not None:
                        return
                    self._granted.wait()
                    continue
                grants = [frames.credit(stream, self._credit.pop(stream)) for stream in due]
            try:
                for grant in grants:
                    self._outbox.put(grant)
            except Closed:
                return


def _raise(error: BaseException) -> Any:
    raise error


def _quoted(text: str) -> str:
    return f"; it wrote: {' | '.join(text.split(chr(10)))[-2000:]}" if text else ""


def _death(name: str, ended: Ended) -> SandboxDied:
    code, how = ended.exit_code, "ended"
    if ended.oom:
        how = "ran out of memory: give it more, or let it do less"
    elif code is not None and code < 0:
        how = f"was killed by signal {-code}"
    elif code is not None:
        how = f"exited with code {code}"
    return SandboxDied(
        f"the sandbox's worker {how} while {name} ran{_quoted(ended.text)}", exit_code=code, oom=ended.oom
    )


def _stillborn(ended: Ended) -> SandboxStartError:
    code = "" if ended.exit_code is None else f" (exit code {ended.exit_code})"
    return SandboxStartError(
        f"the sandbox's interpreter ended before it was ready{code}"
        f"{_quoted(ended.text) or '; it wrote nothing'}: check that it runs at all"
    )
