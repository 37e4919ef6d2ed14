"""What is printed in the sandbox, on its way to the host as log frames. Runs in the worker; standard library only."""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
import threading
import time

from ..wire import frames
from ..wire.frames import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..wire.frames import Outbox

# What a pipe holds on Linux; more than that can't be waiting.
_PIPE = 64 * 1024
_GATHER_S = 0.002


class OutputSender:
    """Reads the pipe that is everybody's stdout and stderr in the sandbox. At most `limit` bytes of it are sent; the
    rest is read and dropped, so that nobody who prints is ever stuck.

    `transit` is a file that the guard has open too. What leaves the pipe is moved there in one step, and stays until it
    was sent: a worker that dies in between loses nothing. None: there is no such thing on this system.
    """

    def __init__(self, pipe: int, outbox: Outbox, transit: int | None = None) -> None:
        os.set_blocking(pipe, False)
        self.limit = 1 << 62
        self._pipe = pipe
        self._transit = transit
        self._outbox = outbox
        self._sent = 0
        self._cut = False
        # Held from reading to sending: what was printed first is sent first, and before the result that follows it.
        self._moving = threading.Lock()

    def run(self) -> None:
        """Send what comes, for ever. For a thread of its own."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        try:
            while True:
                poll.poll()
                if self._waiting() < _PIPE // 2:
                    # Few and large frames; and what was printed just before a crash is still in the pipe, where the
                    # guard finds it.
                    time.sleep(_GATHER_S)
                if not self.send_rest():
                    return
        except (Closed, OSError):
            pass

    def _waiting(self) -> int:
        """Bytes in the pipe."""
        return int.from_bytes(fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

    def send_rest(self) -> bool:
        """Send what has been printed so far. False at the end of the pipe: nobody can print any more."""
        with self._moving:
            for _ in range(2):
                try:
                    data = self._take()
                except BlockingIOError:
                    return True
                if not data:
                    return False
                self._send(data)
                if self._transit is not None:
                    os.ftruncate(self._transit, 0)
                if len(data) < _PIPE:
                    return True
        return True

    def _take(self) -> bytes:
        """What is in the pipe: in transit too, until it is sent. Raises BlockingIOError where there is nothing."""
        if sys.platform == "linux" and self._transit is not None:
            try:
                size = os.splice(self._pipe, self._transit, _PIPE, offset_dst=0, flags=os.SPLICE_F_NONBLOCK)
                return os.pread(self._transit, size, 0)
            except BlockingIOError:
                raise
            except OSError:
                # Some kernels can't, and code here may have set a limit on the size of files.
                self._transit = None
        return os.read(self._pipe, _PIPE)

    def _send(self, data: bytes) -> None:
        if self._cut:
            return
        left = self.limit - self._sent
        if len(data) > left:
            self._cut = True
            notice = f"\n[agentix: more than {self.limit} bytes were printed; the rest is dropped]\n"
            data = data[:left] + notice.encode()
        self._sent += len(data)
        self._outbox.send_within_window(frames.LOG, 0, [data], last=False)
