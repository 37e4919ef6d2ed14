"""One request through a tunnel, as both ends hold it: heads, bodies both ways with credit, and an end, good or bad.

Runs in the sandbox too, so: standard library only. The connection's reader hands frames in and never waits; one thread
at each end sends and reads. What has not been read yet is kept in one buffer of at most a window, whatever the size of
the frames that it came in.
"""

from __future__ import annotations

import functools
import threading
import time

from . import frames
from .frames import MAX_PAYLOAD, WINDOW, Frame, FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GRANT = WINDOW // 4
_REASON_LIMIT = 300


class Reset(Exception):
    """The request comes to no good end; the message says why."""


class Stalled(TimeoutError):
    """The other end neither sent nor took anything for too long."""


def pack_head(number: int, lines: Sequence[str]) -> Frame:
    """The frame of a head: lines of text, Latin-1 as in HTTP. None of them may hold a line feed.

    Raises:
        FrameError: it is larger than a frame.
    """
    payload = "\n".join(lines).encode("latin-1")
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a head of {len(payload)} bytes; the limit is {MAX_PAYLOAD}")
    return Frame(frames.HEAD, number, payload)


def unpack_head(payload: bytes | bytearray | memoryview) -> list[str]:
    """The lines of a head."""
    return bytes(payload).decode("latin-1").split("\n")


class Stream:
    """The stream `number`. `put` writes a frame, and may wait. The end that `asks` sends nothing more once it is
    answered."""

    def __init__(self, number: int, put: Callable[[Frame], None], *, asks: bool = False) -> None:
        self.number = number
        self._put = put
        self._asks = asks
        # Guards all that follows. Nothing is written under it.
        self._changed = threading.Condition()
        self._window = WINDOW
        self._allowed = WINDOW
        self._owed = 0
        self._buffer = bytearray()
        self._head: list[str] | None = None
        self._ended = False
        self._why: str | None = None

    # --- for the connection's reader: nothing here waits ---

    def take(self, frame: Frame) -> bool:
        """Take a frame of the other end. One that breaks the rules is the stream's end, and no one else's. False: it is
        over, for that or another reason."""
        with self._changed:
            if frame.kind == frames.BODY:
                self._take_body(frame)
            elif frame.kind == frames.CREDIT:
                self._window = min(self._window + frames.credit_of(frame), WINDOW)
            elif frame.kind == frames.RESET:
                self._fail(bytes(frame.payload[:_REASON_LIMIT]).decode("ascii", "replace"))
            elif frame.kind == frames.HEAD and self._asks and self._head is None:
                self._head = unpack_head(frame.payload)
            else:
                self._fail("a frame that does not belong here")
            self._changed.notify_all()
            return self._why is None

    def _take_body(self, frame: Frame) -> None:
        size = len(frame.payload)
        if self._ended or size > self._allowed:
            self._fail("more was sent than was asked for")
            return
        self._allowed -= size
        self._buffer += frame.payload
        self._ended = frame.end

    def _fail(self, why: str) -> None:
        if self._why is None:
            self._why = why

    # --- for the one thread that works on it ---

    def send_head(self, lines: Sequence[str]) -> None:
        """Send this end's head. Raises FrameError where it is too large, and what `put` raises."""
        self._put(pack_head(self.number, lines))

    def send(self, data: bytes | memoryview, *, end: bool = False, timeout: float) -> bool:
        """Send a part of the body as the other end's credit allows. With `end` it is the last one.

        False: this end asks, and is answered already; the rest of the body is of no use.

        Raises:
            Reset: the request is over.
            Stalled: the other end took nothing for `timeout` seconds.
        """
        view = memoryview(data)
        while view or end:
            needed = min(len(view), 1)
            with self._changed:
                self._wait(functools.partial(self._may_send, needed), timeout)
                if self._why is not None:
                    raise Reset(self._why)
                if self._head is not None:
                    return False
                size = min(len(view), self._window, MAX_PAYLOAD)
                self._window -= size
            piece, view = view[:size], view[size:]
            last = end and not view
            self._put(Frame(frames.BODY, self.number, piece, end=last))
            if last:
                break
        return True

    def _may_send(self, size: int) -> bool:
        return self._window >= size or self._head is not None

    def read(self, timeout: float | None = None) -> bytes:
        """Wait for more of the other end's body; b"" at its end. What came before a bad end is returned first.

        Raises:
            Reset: the request is over.
            Stalled: nothing came for `timeout` seconds.
        """
        with self._changed:
            self._wait(lambda: bool(self._buffer) or self._ended, timeout)
            if not self._buffer:
                if self._ended:
                    return b""
                raise Reset(self._why)
            data = bytes(self._buffer)
            self._buffer = bytearray()
            self._owed += len(data)
            grant = 0
            if self._owed >= _GRANT and not self._ended and self._why is None:
                grant, self._owed = self._owed, 0
                self._allowed += grant
        if grant:
            self._put(frames.credit(self.number, grant))
        return data

    def answer(self) -> list[str]:
        """Wait for the head of the answer. Raises Reset."""
        with self._changed:
            self._wait(lambda: self._head is not None, None)
            if self._head is None:
                raise Reset(self._why)
            return self._head

    def is_whole(self) -> bool:
        """Whether all of the other end's body has been read."""
        with self._changed:
            return self._ended and not self._buffer

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not condition() and self._why is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise Stalled
            self._changed.wait(left)

    # --- for any thread ---

    def check(self) -> None:
        """Raise Reset where the request is over."""
        with self._changed:
            if self._why is not None:
                raise Reset(self._why)

    def give_up(self, why: str) -> None:
        """Wake whoever works on it with Reset. The other end is not told."""
        with self._changed:
            self._fail(why)
            self._changed.notify_all()

    def send_reset(self, why: str) -> None:
        """Tell the other end that the request is over. May wait, as `put` may."""
        self._put(Frame(frames.RESET, self.number, why.encode("ascii", "replace")[:_REASON_LIMIT]))
