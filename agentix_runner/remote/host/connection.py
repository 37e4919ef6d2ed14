"""The host's end of the connection to one sandbox: calls go in, results and output come out, and nobody waits for ever.

One daemon thread per sandbox reads, always: a connection that nobody reads would stop the sandbox, and with some
transports the engine behind it. It never writes; credit is given by a second thread, which starts when a message is
longer than a window.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from ..._version import __version__
from ...errors import CallError, SandboxDied, SandboxError, SandboxStartError
from ..wire import frames
from ..wire.frames import Closed, Frame, FrameError, FrameReader, Outbox
from .answers import Answer, death_error, shown_text, start_error
from .calls import ImportableModules, make_call
from .output import SandboxLog
from .transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
HandlerT = TypeVar("HandlerT", bound="StreamHandler")

_log = logging.getLogger("agentix_runner.remote")

_HELLO_LIMIT = 1024 * 1024
RELEASE_LIMIT_S = 30.0
"""How long a sandbox may take to end and to remove its directory before it is killed from outside."""
_START_LIMIT_S = 1.0
# How long the end of a sandbox may take to be told, and a thread to end, in seconds.
_END_LIMIT_S = 10.0


class StreamHandler(Protocol):
    """What takes the frames of streams that are not calls: a sandbox's tunnels."""

    def take(self, frame: Frame) -> None:
        """Take a frame from the sandbox, which may be anything. Never waits. For the connection's reader."""
        ...

    def cancel(self) -> None:
        """The sandbox has ended. From any thread; waits for nothing."""
        ...

    def close(self) -> None:
        """Free what is left, after `cancel`. Bounded."""
        ...


class Connection:
    """A running sandbox at the other end of `transport`. `connect` makes it ready for calls, `close` ends it.

    With `shared` the sandbox can import whatever this process can. `on_log` gets what is printed there, as bytes, from
    the reading thread: it should be quick. `max_result` and `max_log` are bytes: of one result, and of everything that
    the sandbox prints.
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
        self.labels = dict(labels or {})
        self._transport = transport
        self._shared = shared
        self._max_result = max_result
        self._max_log = max_log
        # The worker cuts first, and says so in a line of its own.
        self._output = SandboxLog(max_log + 1024, on_log, self.labels)
        self._outbox = Outbox(transport.write)
        # None until the sandbox has answered.
        self._importable: ImportableModules | None = None
        self._hello = bytearray()
        # Set when the sandbox has answered, or ended.
        self._ready = threading.Event()
        # Guards the calls, their count, the handler and the end. Nobody waits under it.
        self._lock = threading.Lock()
        self._calls: dict[int, Answer] = {}
        # Calls that nobody waits for any more, whose answers are still to come.
        self._given_up: set[int] = set()
        self._last_call = 0
        self._handler: StreamHandler | None = None
        self._end: Callable[[str], SandboxError] | None = None
        # Guards the credit that is due, by stream.
        self._due = threading.Condition()
        self._credit: dict[int, int] = {}
        self._creditor: threading.Thread | None = None
        self._reader = threading.Thread(target=self._read, name="agentix-sandbox", daemon=True)

    @overload
    def remote(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def remote(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in the sandbox, wait, and return its value. Any number of threads may do so.

        Raises:
            RemoteError: `fn` raised there.
            SandboxDied: the sandbox ended meanwhile.
            CallError: `fn` or its arguments can't be sent.
            BadResult: what came back is not a valid result.
        """
        if self._importable is None:
            raise CallError("the sandbox is not connected: call it within its session")
        parts = make_call(fn, args, kwargs, self._importable)
        answer = Answer(fn, self._max_result)
        with self._lock:
            if self._end is not None:
                raise self._end(answer.name)
            self._last_call = number = self._last_call + 1
            self._calls[number] = answer
        try:
            try:
                self._outbox.send(frames.CALL, number, parts)
            except Closed:
                # The reader sees the end as well, knows more of it, and tells everyone.
                self._transport.close()
            del parts
            answer.wait()
        except BaseException:
            with self._lock:
                if self._calls.pop(number, None) is not None:
                    self._given_up.add(number)
            raise
        return answer.value()

    def kill(self) -> None:
        """End everything in the sandbox, and wake whoever waits for it with SandboxDied. From any thread, at once."""
        self._finish(lambda name: SandboxDied(f"the sandbox was killed while {name} ran"))
        self._transport.close()

    def close(self) -> bool:
        """Kill the sandbox, wait for its end, and free what it holds here. Bounded, by `RELEASE_LIMIT_S` mostly.

        False where it did not end by itself in time: something of it may be left.
        """
        self.kill()
        if self._handler is not None:
            self._handler.close()
        with self._due:
            creditor = self._creditor
            self._due.notify_all()
        for thread in (self._reader, creditor):
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                thread.join(_END_LIMIT_S)
                if thread.is_alive():
                    _log.error("a thread of a sandbox does not end; does on_log return?")
        # A descriptor that is closed under a writer may be somebody else's when it writes.
        if not self._outbox.is_quiet(_END_LIMIT_S):
            _log.error("a write to a sandbox does not end; its connection stays open")
            return False
        # What has never answered may be anything, and need not know what a hang-up means.
        return self._transport.release(RELEASE_LIMIT_S if self._importable is not None else _START_LIMIT_S)

    def handler(self, make: Callable[[Callable[[Frame], None]], HandlerT]) -> HandlerT:
        """The handler of this connection's other streams: `make(put)` makes it, once; `put` sends a frame."""
        with self._lock:
            if self._handler is None:
                self._handler = make(self._outbox.put)
            return self._handler  # type: ignore[return-value]

    # --- the start ---

    def connect(self, timeout: float, hello: Mapping[str, Any] | None = None) -> None:
        """Greet the worker and wait for its answer, at most `timeout` seconds. `close` is due whatever happens.

        `hello` is what the worker is told besides versions and limits.

        Raises:
            SandboxStartError: there was no answer, or it is of another version.
        """
        message = {
            "wire": frames.WIRE,
            "agentix": __version__,
            "max_result": self._max_result,
            "max_log": self._max_log,
            **(hello or {}),
        }
        try:
            self._reader.start()
        except RuntimeError as error:
            raise SandboxStartError(f"no thread for a sandbox: {error}", transient=True) from error
        with contextlib.suppress(Closed):
            self._outbox.send(frames.HELLO, 0, [json.dumps(message).encode()])
        if not self._ready.wait(timeout):
            late = f"the sandbox's worker gave no answer in {timeout:g} s"
            self._finish(lambda name: SandboxStartError(late, transient=True))
            self._transport.close()
            raise SandboxStartError(late + shown_text(self._transport.ended(0.5).text), transient=True)
        with self._lock:
            if self._end is not None:
                raise self._end("its start")

    def _receive_hello(self, frame: Frame) -> None:
        if self._importable is not None:
            raise FrameError("a second hello")
        self._hello += frame.payload
        if len(self._hello) > _HELLO_LIMIT:
            raise FrameError(f"a hello of more than {_HELLO_LIMIT} bytes")
        if not frame.end:
            return
        try:
            hello = json.loads(bytes(self._hello))
            version, wire = hello["agentix"], hello["wire"]
            major, minor = map(int, hello["python"][:2])
            modules = frozenset(map(str, hello.get("modules", ())))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise FrameError("its hello is not valid: expected JSON with agentix, wire and python") from None
        if (wire, version) != (frames.WIRE, __version__):
            text = (
                f"the sandbox has agentix-runner {str(version)[:40]} (wire {str(wire)[:10]}), and here is "
                f"{__version__} (wire {frames.WIRE}): build its bundle again with this version"
            )
            self._finish(lambda name: SandboxStartError(text))
            return
        self._importable = ImportableModules(python=(major, minor), shared=self._shared, modules=modules)
        self._ready.set()

    # --- the end ---

    def _finish(self, error: Callable[[str], SandboxError]) -> None:
        """This is the end, and every waiting call's answer. Only the first one counts."""
        with self._lock:
            if self._end is not None:
                return
            self._end = error
            calls, self._calls = self._calls, {}
        self._outbox.close()
        self._ready.set()
        if self._handler is not None:
            self._handler.cancel()
        for answer in calls.values():
            answer.fail(error(answer.name))

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
            _log.exception("the reader of a sandbox failed")
            broken = f"{type(error).__name__}: {error}"
        finally:
            self._outbox.close()
            if self._end is None:
                self._finish_as_ended(broken)
            self._output.finish()
            with self._due:
                self._due.notify_all()

    def _finish_as_ended(self, broken: str) -> None:
        connected = self._importable is not None
        if broken:
            # Truncated where the worker died while it wrote; else garbage. Either way nothing more can be read.
            self._transport.close()
        ended = self._transport.ended(_END_LIMIT_S)
        if ended.text:
            self._output.feed(ended.text.encode("utf-8", "replace") + b"\n")
        if broken and ended.exit_code in (None, 0):
            text = f"it sent an invalid frame: {broken}{shown_text(ended.text)}"
            kind = SandboxDied if connected else SandboxStartError
            self._finish(lambda name: kind(f"the sandbox was ended while {name} ran: {text}"))
        else:
            self._finish(lambda name: death_error(name, ended) if connected else start_error(ended))

    def _take(self, frame: Frame) -> None:
        if frame.kind in (frames.RESULT, frames.ERROR):
            self._take_answer(frame)
        elif frame.kind == frames.LOG:
            if self._end is None:
                self._output.feed(bytes(frame.payload))
            self._grant(0, len(frame.payload))
        elif frame.stream >= frames.TUNNEL_STREAMS:
            if self._handler is not None:
                self._handler.take(frame)
        elif frame.kind == frames.HELLO:
            self._receive_hello(frame)
        elif frame.kind == frames.CREDIT:
            self._outbox.grant(frame.stream, frames.credit_of(frame))
        else:
            raise FrameError(f"a frame of kind {frame.kind}, which only the host sends")

    def _take_answer(self, frame: Frame) -> None:
        number = frame.stream
        with self._lock:
            answer = self._calls.get(number)
            if answer is None and number not in self._given_up:
                # Never asked, or answered already.
                return
            if frame.end:
                self._calls.pop(number, None)
                self._given_up.discard(number)
        if frame.end:
            with self._due:
                self._credit.pop(number, None)
        else:
            self._grant(number, len(frame.payload))
        if answer is not None:
            answer.take(frame)

    # --- credit ---

    def _grant(self, stream: int, size: int) -> None:
        with self._due:
            self._credit[stream] = self._credit.get(stream, 0) + size
            if self._credit[stream] < frames.WINDOW // 2:
                return
            if self._creditor is None:
                self._creditor = threading.Thread(target=self._give_credit, name="agentix-credit", daemon=True)
                self._creditor.start()
            self._due.notify_all()

    def _give_credit(self) -> None:
        while True:
            with self._due:
                due = [stream for stream, size in self._credit.items() if size >= frames.WINDOW // 2]
                if not due and self._end is not None:
                    return
                if not due:
                    self._due.wait()
                    continue
                grants = [frames.credit(stream, self._credit.pop(stream)) for stream in due]
            try:
                for grant in grants:
                    self._outbox.put(grant)
            except Closed:
                return
