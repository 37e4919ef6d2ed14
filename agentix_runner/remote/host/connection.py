"""A sandbox as the host sees it: calls go in, results and output come out, and whatever happens nobody waits for ever.

One daemon thread per sandbox reads, always: a connection that nobody reads would stop the sandbox, and with some
transports the engine behind it. It never writes; credit is given by a second thread, which starts when a message is
longer than a window.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from ...errors import CallError, SandboxDied, SandboxError, SandboxStartError
from ..wire import frames
from ..wire.frames import FrameError, FrameReader
from ..wire.outbox import Closed, Outbox
from .answers import Call, death, quoted, stillborn
from .calls import Reach, make_call
from .output import SandboxLog
from .transport import Transport

if TYPE_CHECKING:
    from ...tunnel.tunnel import Tunnel, Tunnels

_log = logging.getLogger("agentix_runner.remote")

_GREETING_LIMIT = 1024 * 1024
# Above this, decoding is left to a thread of its own: the reader has more to do.
_QUICK = 1024 * 1024
RELEASE_LIMIT_S = 30.0
"""How long a sandbox may take to end and to remove its directory before it is killed from outside."""
_START_LIMIT_S = 1.0
# How long an end may take to be told, and a thread to end, in seconds.
_PATIENCE = 10.0


class RemoteSandbox:
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
        self._transport = transport
        self._shared = shared
        self._max_result = max_result
        self._max_log = max_log
        # The worker cuts first, and says so in a line of its own.
        self._printed = SandboxLog(max_log + 1024, on_log, labels or {})
        self._labels = dict(labels or {})
        self._outbox = Outbox(transport.write)
        self._reach: Reach | None = None
        self._greeting = bytearray()
        # Set when there is an answer to the greeting, or an end.
        self._ready = threading.Event()
        # Guards the calls, their count, and the end. Nobody waits under it.
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        # Calls that nobody waits for any more, whose answers are still to come.
        self._given_up: set[int] = set()
        self._last_call = 0
        self._end: Callable[[str], SandboxError] | None = None
        self._tunnels: Tunnels | None = None
        # Guards the credit that is due, by stream.
        self._due = threading.Condition()
        self._credit: dict[int, int] = {}
        self._creditor: threading.Thread | None = None
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
            self._give_up(number)
            raise
        return call.value(kind, data)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Like `remote`, without waiting. Raises CallError and SandboxDied at once; the rest is the future's.

        Cancelling the future gives up the answer; the function runs on until the sandbox ends.
        """
        number, call = self._start(fn, args, kwargs, raw=False)
        call.future.add_done_callback(lambda future: self._give_up(number) if future.cancelled() else None)
        return call.future

    def tunnel(
        self,
        upstream: str,
        *,
        headers: Mapping[str, str | None] | None = None,
        record: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Tunnel:
        """A way for the sandbox to reach `upstream`, through this process: `with sandbox.tunnel(...) as url:`.

        See `Tunnel` in agentix_runner.tunnel.tunnel for the arguments, and its `Limits` for more. Raises
        BadArgument.
        """
        from ...tunnel.tunnel import Tunnel, Tunnels  # most sandboxes have none

        with self._lock:
            if self._tunnels is None:
                self._tunnels = Tunnels(self._outbox.put)
            tunnels = self._tunnels
        return Tunnel(self, tunnels, upstream, headers=headers, record=record, labels=self._labels, **options)

    def kill(self) -> None:
        """End everything in the sandbox, and wake whoever waits for it with SandboxDied. From any thread, at once."""
        self._finish(lambda name: SandboxDied(f"the sandbox was killed while {name} ran"))
        self._transport.close()

    def close(self) -> bool:
        """Kill the sandbox, wait for its end, and free what it holds here. Bounded, by `RELEASE_LIMIT_S` mostly.

        False where it did not end by itself in time: something of it may be left.
        """
        self.kill()
        if self._tunnels is not None:
            self._tunnels.close()
        with self._due:
            creditor = self._creditor
            self._due.notify_all()
        for thread in (self._reader, creditor):
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                thread.join(_PATIENCE)
                if thread.is_alive():
                    _log.error("a thread of a sandbox does not end; does on_log return?")
        # A descriptor that is closed under a writer may be somebody else's when it writes.
        if not self._outbox.is_quiet(_PATIENCE):
            _log.error("a write to a sandbox does not end; its connection stays open")
            return False
        # What has never answered may be anything, and need not know what a hang-up means.
        return self._transport.release(RELEASE_LIMIT_S if self._reach is not None else _START_LIMIT_S)

    # --- the start ---

    def connect(self, timeout: float, greeting: Mapping[str, Any] | None = None) -> None:
        """Greet the worker and wait for its answer, at most `timeout` seconds. `close` is due whatever happens.

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
        try:
            self._reader.start()
        except RuntimeError as error:
            raise SandboxStartError(f"no thread for a sandbox: {error}", transient=True) from error
        with contextlib.suppress(Closed):
            self._outbox.send(frames.HELLO, 0, [json.dumps(hello).encode()])
        if not self._ready.wait(timeout):
            late = f"the sandbox's worker gave no answer in {timeout:g} s"
            self._finish(lambda name: SandboxStartError(late, transient=True))
            self._transport.close()
            raise SandboxStartError(late + quoted(self._transport.ended(0.5).text), transient=True)
        with self._lock:
            if self._end is not None:
                raise self._end("its start")

    def _take_greeting(self, frame: frames.Frame) -> None:
        if self._reach is not None:
            raise FrameError("a second greeting")
        self._greeting += frame.payload
        if len(self._greeting) > _GREETING_LIMIT:
            raise FrameError("a greeting that does not end")
        if not frame.end:
            return
        try:
            hello = json.loads(bytes(self._greeting))
            version, wire = hello["agentix"], hello["wire"]
            major, minor = map(int, hello["python"][:2])
            modules = frozenset(map(str, hello.get("modules", ())))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise FrameError("a greeting that is not of the form it must have") from None
        if (wire, version) != (frames.WIRE, __version__):
            text = (
                f"the sandbox has agentix-runner {str(version)[:40]} (wire {str(wire)[:10]}), and here is "
                f"{__version__} (wire {frames.WIRE}): build its bundle again with this version"
            )
            self._finish(lambda name: SandboxStartError(text))
            return
        self._reach = Reach(python=(major, minor), shared=self._shared, modules=modules)
        self._ready.set()

    # --- calls ---

    def _start(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool
    ) -> tuple[int, Call]:
        if self._reach is None:
            raise CallError("the sandbox is not connected: call it within its session")
        parts = make_call(function, args, kwargs, self._reach)
        call = Call(function, raw=raw)
        with self._lock:
            if self._end is not None:
                raise self._end(call.name)
            self._last_call = number = self._last_call + 1
            self._calls[number] = call
        try:
            self._outbox.send(frames.CALL, number, parts)
        except Closed:
            # The reader sees the end as well, knows more of it, and tells everyone.
            self._transport.close()
        except BaseException:
            self._give_up(number)
            raise
        return number, call

    def _give_up(self, number: int) -> None:
        """Nobody waits for this call any more. Its answer, when it comes, is read and dropped."""
        with self._lock:
            if self._calls.pop(number, None) is not None:
                self._given_up.add(number)

    def _finish(self, error: Callable[[str], SandboxError]) -> None:
        """This is the end, and every waiting call's answer. Only the first one counts."""
        with self._lock:
            if self._end is not None:
                return
            self._end = error
            calls, self._calls = self._calls, {}
        self._outbox.close()
        self._ready.set()
        if self._tunnels is not None:
            self._tunnels.cancel()
        for call in calls.values():
            call.fail(error(call.name))

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
                self._tell_end(broken)
            self._printed.finish()
            with self._due:
                self._due.notify_all()

    def _tell_end(self, broken: str) -> None:
        greeted = self._reach is not None
        if broken:
            # Truncated where the worker died while it wrote; else garbage. Either way nothing more can be read.
            self._transport.close()
        ended = self._transport.ended(_PATIENCE)
        if ended.text:
            self._printed.feed(ended.text.encode("utf-8", "replace") + b"\n")
        if broken and ended.exit_code in (None, 0):
            text = f"it sent what is no frame: {broken}{quoted(ended.text)}"
            kind = SandboxDied if greeted else SandboxStartError
            self._finish(lambda name: kind(f"the sandbox was ended while {name} ran: {text}"))
        else:
            self._finish(lambda name: death(name, ended) if greeted else stillborn(ended))

    def _take(self, frame: frames.Frame) -> None:
        if frame.kind in (frames.RESULT, frames.ERROR):
            self._take_answer(frame)
        elif frame.kind == frames.LOG:
            if self._end is None:
                self._printed.feed(bytes(frame.payload))
            self._grant(0, len(frame.payload))
        elif frame.stream >= frames.TUNNEL_STREAMS:
            if self._tunnels is not None:
                self._tunnels.take(frame)
        elif frame.kind == frames.HELLO:
            self._take_greeting(frame)
        elif frame.kind == frames.CREDIT:
            self._outbox.grant(frame.stream, frames.credit_of(frame))
        else:
            raise FrameError(f"a frame of kind {frame.kind}, which only the host sends")

    def _take_answer(self, frame: frames.Frame) -> None:
        number = frame.stream
        with self._lock:
            call = self._calls.get(number)
            if call is None and number not in self._given_up:
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
        if call is None:
            return
        if not call.take(frame, self._max_result):
            with self._lock:
                mine = frame.end or self._calls.pop(number, None) is not None
                if not frame.end:
                    self._given_up.add(number)
            if mine:
                call.refuse()
        elif frame.end:
            if call.raw:
                call.deliver()
            elif call.size() <= _QUICK:
                call.decode()
            else:
                threading.Thread(target=call.decode, name="agentix-decode", daemon=True).start()

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
