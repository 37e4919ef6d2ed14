"""The host's end of the connection to a sandbox, as the client needs it; and the one that `local` uses."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess
import threading
import time
import weakref
from typing import Protocol

from attrs import frozen

from ..sandbox.guard import LAST_WORDS

_TEXT_LIMIT = 16 * 1024
_LAST_WORDS = re.compile(rf"^{LAST_WORDS} exit=(-?\d{{1,9}}) oom=([01])\n\Z", re.MULTILINE)


@frozen
class Ended:
    """How a sandbox's first process ended: `exit_code` (negative: a signal; None: not known), whether memory is known
    to have run out, and the `text` that it left on stderr."""

    exit_code: int | None = None
    oom: bool = False
    text: str = ""


class Transport(Protocol):
    """A connection to one sandbox. `read` is called from one thread, `write` from many, but never at the same time."""

    def read(self, size: int) -> bytes:
        """Wait for data, and return up to `size` bytes of it; b"" when there won't be any more. Raises OSError."""
        ...

    def write(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError where the connection is closed, by either end, also meanwhile."""
        ...

    def close(self) -> None:
        """Hang up, which ends the sandbox, and wake whoever reads or writes. From any thread, any number of times;
        waits for nothing."""
        ...

    def ended(self, timeout: float) -> Ended:
        """How the sandbox's first process ended, after at most `timeout` seconds. For the thread that reads."""
        ...

    def release(self, timeout: float) -> bool:
        """After `close`, when nobody reads or writes any more: wait up to `timeout` seconds for the sandbox's end, and
        free what the connection holds. False where it had not ended by itself in time, or was killed."""
        ...


_open: weakref.WeakSet[ProcessTransport] = weakref.WeakSet()


def _forget_all() -> None:
    for transport in list(_open):
        transport.forget()


os.register_at_fork(after_in_child=_forget_all)


class ProcessTransport:
    """A guard that is a child of this process, on a pair of sockets.

    Sockets, not pipes: shutting one down wakes a reader, and reaches the guard even when a fork of this process still
    holds a copy of the host's end. Nobody can open a socket a second time through /proc.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._socket = connection
        assert process.stderr is not None
        self._stderr = process.stderr.fileno()
        # Several threads may want to know how it ended; the pipe can be read once.
        self._reading = threading.Lock()
        self._text = b""
        self._at_end = False
        os.set_blocking(self._stderr, False)
        _open.add(self)

    @classmethod
    def start(cls, command: list[str], *, cwd: str, env: dict[str, str]) -> ProcessTransport:
        """Start `command` in a session of its own, with one socket as its stdin and stdout. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=env,
                # No signal of the terminal reaches it, and no descriptor of ours.
                start_new_session=True,
                close_fds=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self._process.pid

    def read(self, size: int) -> bytes:
        return self._socket.recv(size)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ended(self, timeout: float) -> Ended:
        end = time.monotonic() + timeout
        # Where the connection ended by itself, the guard has spoken already.
        patience = end - timeout * 0.9
        while not (said := _LAST_WORDS.search(self._said())) and not self._at_end:
            now = time.monotonic()
            if now >= end:
                break
            if now >= patience:
                self.close()
                patience = end
            self._wait_for_stderr(patience - now)
        text = self._said()
        if said:
            return Ended(int(said[1]), said[2] == "1", text[: said.start()].strip("\n"))
        return Ended(self._wait(max(0.1, end - time.monotonic())), False, text.strip("\n"))

    def release(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        # The guard alone holds the other end of its stderr, until it exits: no need to ask again and again.
        while not self._at_end and (left := end - time.monotonic()) > 0:
            self._wait_for_stderr(left)
            self._said()
        code = self._wait(1.0 if self._at_end else 0.0)
        clean = code is not None and code >= 0
        if code is None:
            self._process.kill()
            self._wait(5.0)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._socket.close()
        return clean

    def forget(self) -> None:
        """In a fork of this process: hold nothing open, so that the sandbox still ends with the process it belongs
        to."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.close(self._stderr)

    def _said(self) -> str:
        with self._reading:
            while not self._at_end:
                try:
                    data = os.read(self._stderr, 4096)
                except BlockingIOError:
                    break
                self._at_end = not data
                self._text = (self._text + data)[-_TEXT_LIMIT:]
        return self._text.decode("utf-8", "replace")

    def _wait_for_stderr(self, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._stderr, select.POLLIN)
        poll.poll(max(0.0, timeout) * 1000)

    def _wait(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
