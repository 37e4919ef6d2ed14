"""The connection to a sandbox's first process through the engine: the socket of an attached container.

The engine sends what the process writes in chunks, each behind 8 bytes that tell whether it was stdout (the frames) or
stderr (the guard's last words). Hanging up closes the process's stdin, and with it ends the sandbox.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ...remote.host.transport import Ended
from ...remote.sandbox.guard import LAST_WORDS

_log = logging.getLogger("agentix_runner.providers.docker")

_HEADER = struct.Struct(">BxxxL")
_STDOUT, _STDERR, _ENGINE = 1, 2, 3
_CHUNK = 64 * 1024
_TEXT_LIMIT = 16 * 1024
_LAST_WORDS = re.compile(rf"^{LAST_WORDS} exit=(-?\d{{1,9}}) oom=([01])\n\Z", re.MULTILINE)
# How long (seconds) a sandbox may stay connected after its guard has said that this is the end.
_AFTER_LAST_WORDS_S = 15.0

_open: weakref.WeakSet[AttachTransport] = weakref.WeakSet()


def _forget_all() -> None:
    for transport in list(_open):
        transport.forget()


# A fork that kept such a socket open would keep the sandbox alive when this process has died.
os.register_at_fork(after_in_child=_forget_all)


class AttachTransport:
    """The host's end of an attached container.

    `attached` is what docker-py's `attach_socket` returned. `exit_of(timeout)` waits for what the engine tells of the
    container's end: its exit code (None: not known) and whether memory ran out in it.
    """

    def __init__(self, attached: Any, exit_of: Callable[[float], tuple[int | None, bool]]) -> None:
        self._attached = attached
        inner: Any = getattr(attached, "_sock", attached)
        self._socket: Any = TlsLine(inner) if isinstance(inner, ssl.SSLSocket) else inner
        # The client's limit on an answer is not one on a sandbox's silence.
        self._socket.settimeout(None)
        self._exit_of = exit_of
        self._buffer = b""
        self._at = 0
        self._stream = 0
        self._left = 0
        self._text = b""
        _open.add(self)

    def read(self, size: int) -> bytes:
        while True:
            if self._left == 0:
                if not self._next_chunk():
                    return b""
                # It may be an empty one.
                continue
            if self._at == len(self._buffer) and not self._fill():
                return b""
            end = min(self._at + min(size, self._left), len(self._buffer))
            data = self._buffer[self._at : end]
            self._left -= end - self._at
            self._at = end
            if self._stream == _STDOUT:
                return data
            self._take_text(data)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        # Closing alone would not wake the reader.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ended(self, timeout: float) -> Ended:
        text = self._text.decode("utf-8", "replace")
        said = _LAST_WORDS.search(text)
        if said:
            # The guard knows how the worker ended; the engine, only how the guard did. Of an end for lack of memory
            # it has told before, if at all.
            told = int(said[1])
            oom = told == -9 and (said[2] == "1" or self._exit_of(0.2)[1])
            return Ended(told, oom, text[: said.start()].strip("\n"))
        # Whatever it is, it is the end: if the guard still runs, it must not keep the engine from telling.
        self.close()
        code, oom = self._exit_of(timeout)
        if code is not None and code > 128:
            code = 128 - code
        return Ended(code, oom and code == -9, text.strip("\n"))

    def release(self, timeout: float) -> bool:
        """The container itself is removed elsewhere: this only frees the socket."""
        # With TLS the answer holds on to the socket, too.
        for held in (getattr(self._attached, "_response", None), self._attached, self._socket):
            if held is not None:
                with contextlib.suppress(OSError):
                    held.close()
        return True

    def forget(self) -> None:
        """In a fork of this process: hold nothing open."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    def _next_chunk(self) -> bool:
        while len(self._buffer) - self._at < _HEADER.size:
            if not self._fill():
                return False
        self._stream, self._left = _HEADER.unpack_from(self._buffer, self._at)
        self._at += _HEADER.size
        if self._stream not in (_STDOUT, _STDERR, _ENGINE):
            raise OSError(f"the engine sent a chunk of an unknown stream, {self._stream}")
        return True

    def _fill(self) -> bool:
        data = self._socket.recv(_CHUNK)
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        return bool(data)

    def _take_text(self, data: bytes) -> None:
        self._text = (self._text + data)[-_TEXT_LIMIT:]
        if LAST_WORDS.encode() in self._text:
            # Frames that it sent before may still be on their way here, but not for ever.
            self._socket.settimeout(_AFTER_LAST_WORDS_S)


class TlsLine:
    """A TLS socket that one thread reads while others write, as with any socket: OpenSSL's part of it is not made for
    two threads at once."""

    def __init__(self, inner: ssl.SSLSocket) -> None:
        self._inner = inner
        self._limit: float | None = None
        # Held for one step of OpenSSL's, which never waits.
        self._lock = threading.Lock()
        inner.setblocking(False)

    def settimeout(self, limit_s: float | None) -> None:
        self._limit = limit_s

    def recv(self, size: int) -> bytes:
        return bytes(self._step(partial(self._inner.recv, size)))

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._step(partial(self._inner.send, view)) :]

    def shutdown(self, how: int) -> None:
        # The plain socket's: SSLSocket's own forgets the TLS part, which another thread may be using.
        socket.socket.shutdown(self._inner, how)

    def close(self) -> None:
        self._inner.close()

    def detach(self) -> int:
        return self._inner.detach()

    def _step(self, action: Callable[[], Any]) -> Any:
        while True:
            with self._lock:
                try:
                    return action()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            poll = select.poll()
            poll.register(self._inner, event)
            if not poll.poll(None if self._limit is None else self._limit * 1000):
                raise TimeoutError("nothing came in time")
