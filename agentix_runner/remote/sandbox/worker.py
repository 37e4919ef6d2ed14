"""The worker: runs the host's calls in the sandbox. Forked by the guard; standard library only; runs under `-I -S`.

It keeps the frames' descriptors to itself and gives user code another stdin (empty), stdout and stderr (the log).
Every call runs in a thread of its own; a coroutine function runs to its end there. The main thread does nothing but
read, so that it is never kept from taking the host's credit.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import pickle
import sys
import threading

from ..._version import __version__
from ..wire import frames
from ..wire.codec import Unsendable, encode
from ..wire.frames import Closed, Frame, FrameError, FrameReader, Outbox
from .output import OutputSender

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .inlet import TunnelListeners

_TEXT_LIMIT = 64 * 1024
# Seconds that the modules of one call may keep those of the others waiting.
_LOADING_S = 60.0

current: Worker | None = None
"""This process's worker, for what the host calls in it."""


def serve(log_reader: int, log_writer: int, transit: int | None = None) -> int:
    """Work until the host hangs up. The frames are stdin and stdout; the log is a pipe, and `transit` what keeps what
    was read from it until it is sent. Returns the exit code."""
    inlet, outlet, log = _detach(0), _detach(1), _detach(log_reader)
    os.close(log_reader)
    if transit is not None:
        low, transit = transit, _detach(transit)
        os.close(low)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    global current
    worker = current = Worker(inlet, outlet, log, transit)
    hello = worker.receive_hello()
    os.dup2(log_writer, 1)
    os.dup2(log_writer, 2)
    os.close(log_writer)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [""]
    os.register_at_fork(after_in_child=worker.forked)
    gc.enable()
    worker.send_hello(hello)
    return worker.run()


def _detach(number: int) -> int:
    """A copy of a descriptor, out of reach of code that closes or reuses the low numbers, and of programs started."""
    for lowest in (200, 3):
        try:
            return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
    raise OSError(f"no descriptor left to copy {number} to")


class Worker:
    """One end of the connection, and the calls that run."""

    def __init__(self, inlet: int, outlet: int, log: int, transit: int | None) -> None:
        self.inlet = inlet
        self.outlet = outlet
        self.reader = FrameReader(lambda size: os.read(inlet, size))
        self.outbox = Outbox(self._write)
        self.output = OutputSender(log, self.outbox, transit)
        self.max_result = 1 << 62
        self.is_fork = False
        self.listeners: TunnelListeners | None = None
        self._coming: dict[int, bytearray] = {}
        self._loading = threading.Lock()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.outlet, view) :]

    def receive_hello(self) -> dict[str, Any]:
        """Take the host's hello and do as it says. Returns it."""
        payload = bytearray()
        end = False
        while not end:
            frame = self.reader.next()
            if frame is None:
                os._exit(0)
            if frame.kind != frames.HELLO:
                raise FrameError(f"the first frame is of kind {frame.kind}: the host is of another version")
            payload += frame.payload
            end = frame.end
        hello: dict[str, Any] = json.loads(bytes(payload))
        if hello.get("path") is not None:
            sys.path[:] = hello["path"]
            sys.prefix = hello["prefix"]
            sys.exec_prefix = hello["exec_prefix"]
        os.environ.update(hello.get("environ", {}))
        for name in hello.get("editable", ()):
            # What a .pth file of site-packages would have done.
            sys.modules.pop(name, None)
            __import__(name)
            sys.modules[name].install()
        self.max_result = hello["max_result"]
        self.output.limit = hello["max_log"]
        return hello

    def send_hello(self, hello: dict[str, Any]) -> None:
        """Answer the host's `hello`: say who this is."""
        mine: dict[str, Any] = {
            "wire": frames.WIRE,
            "agentix": __version__,
            "python": list(sys.version_info[:3]),
            "pid": os.getpid(),
        }
        if hello.get("path") is None:
            mine["modules"] = _top_level_modules()
        self.outbox.send(frames.HELLO, 0, [json.dumps(mine).encode()])
        threading.Thread(target=self.output.run, name="agentix-log", daemon=True).start()

    def run(self) -> int:
        """Take calls until the host hangs up."""
        while True:
            frame = self.reader.next()
            if frame is None:
                return 0
            if frame.kind == frames.CALL:
                self._take_call(frame)
            elif frame.stream >= frames.TUNNEL_STREAMS:
                if self.listeners is not None:
                    self.listeners.take(frame)
            elif frame.kind == frames.CREDIT:
                self.outbox.grant(frame.stream, frames.credit_of(frame))

    def _take_call(self, frame: Frame) -> None:
        message: bytes | bytearray | memoryview = frame.payload
        if not frame.end or frame.stream in self._coming:
            self._coming.setdefault(frame.stream, bytearray()).extend(frame.payload)
            if not frame.end:
                return
            message = self._coming.pop(frame.stream)
        name = f"agentix-call-{frame.stream}"
        try:
            threading.Thread(target=self._call, args=(frame.stream, message), name=name, daemon=True).start()
        except RuntimeError as error:
            # No more threads or memory. The host always reads, so this can't keep the main thread waiting.
            self.outbox.send(frames.ERROR, frame.stream, _report("call", error))

    def _call(self, call: int, message: bytes | bytearray | memoryview) -> None:
        kind, parts = self._outcome(message)
        del message
        if self.is_fork:
            # The function forked and let the child return: that one ends here, without an answer of its own.
            self._flush()
            os._exit(0 if kind == frames.RESULT else 1)
        try:
            self._flush()
            # The function may have closed anything.
            with contextlib.suppress(OSError):
                self.output.send_rest()
            self.outbox.send_within_window(kind, call, parts)
        except Closed:
            os._exit(0)
        except BaseException:
            # The host waits for an answer that can't be sent: let it see the end of the worker instead.
            sys.excepthook(*sys.exc_info())
            os._exit(70)

    def _outcome(self, message: bytes | bytearray | memoryview) -> tuple[int, list[bytes | memoryview]]:
        try:
            with self._alone():
                function, args, kwargs = load_call(message)
        except BaseException as error:
            return frames.ERROR, _report("call", error)
        try:
            result = function(*args, **kwargs)
            if type(result) is _COROUTINE:
                with self._alone():
                    import asyncio

                result = asyncio.run(result)
        except BaseException as error:
            return frames.ERROR, _report("raised", error)
        try:
            parts = encode(result)
            size = sum(map(len, parts))
            if size > self.max_result:
                raise Unsendable(f"takes {size} bytes; the limit is {self.max_result} (max_result of the provider)")
        except BaseException as error:
            return frames.ERROR, _report("result", error)
        return frames.RESULT, parts

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, no other call imports anything, unless it takes very long. Modules that know each other can't be
        imported by two threads at once: dataclasses, for one, looks into a typing that is only half there."""
        acquired = self._loading.acquire(timeout=_LOADING_S)
        try:
            yield
        finally:
            if acquired:
                self._loading.release()

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # Closed or replaced by the function: its own affair.
            with contextlib.suppress(Exception):
                stream.flush()

    def forked(self) -> None:
        """In a fork of this process: the frames are not for it, and it must not hold them open."""
        self.is_fork = True
        if self.listeners is not None:
            self.listeners.forked()
        for number in (self.inlet, self.outlet):
            with contextlib.suppress(OSError):
                os.close(number)


def open_tunnel(number: int, max_concurrent: int) -> int:
    """Listen for tunnel `number`, and return the port on 127.0.0.1. Called by the host, as any function is."""
    return _listeners().open(number, max_concurrent)


def close_tunnel(number: int) -> None:
    """Close the listener of a tunnel, and every connection to it. Called by the host."""
    _listeners().close(number)


def _listeners() -> TunnelListeners:
    if current is None:
        raise RuntimeError("this is not a sandbox's worker")
    if current.listeners is None:
        from .inlet import TunnelListeners

        current.listeners = TunnelListeners(current.outbox.put)
    return current.listeners


async def _nothing() -> None: ...


_probe = _nothing()
_COROUTINE = type(_probe)
_probe.close()


def load_call(message: bytes | bytearray | memoryview) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function and arguments of a call: see `agentix_runner.remote.host.calls`, which makes it."""
    view = memoryview(message)
    by_name, size = view[0], int.from_bytes(view[1:5], "big")
    target, arguments = view[5 : 5 + size], view[5 + size :]
    if by_name:
        module, _, path = str(target, "utf-8").partition(":")
        __import__(module)
        function: Any = sys.modules[module]
        for part in path.split("."):
            function = getattr(function, part)
    else:
        function = pickle.loads(target)
    args, kwargs = pickle.loads(arguments)
    return function, args, kwargs


def _report(stage: str, error: BaseException) -> list[bytes | memoryview]:
    """Why there is no result: text only, and no exception of its own, however odd `error` is."""
    report = {"stage": stage, "type": _text(lambda: type(error).__qualname__), "message": _text(lambda: str(error))}
    module = _text(lambda: type(error).__module__)
    if module not in ("builtins", "__main__"):
        report["type"] = f"{module}.{report['type']}"
    report["traceback"] = _text(lambda: _format(error))
    return encode(report)


def _format(error: BaseException) -> str:
    import traceback

    # Without this module's own frames.
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, inner))


def _text(make: Callable[[], Any]) -> str:
    try:
        text = make()
        text = str.__str__(text).encode("utf-8", "backslashreplace").decode()
    except BaseException as error:
        text = f"<its text can't be had: {type(error).__name__}>"
    if len(text) > _TEXT_LIMIT:
        half = _TEXT_LIMIT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return text


def _top_level_modules() -> list[str]:
    """What can be imported here besides the standard library, so that the host can send the rest by value."""
    names = set()
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            name = entry.partition(".")[0]
            if name.isidentifier() and name not in sys.stdlib_module_names and name != "__pycache__":
                names.add(name)
    return sorted(names)
