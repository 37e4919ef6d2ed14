"""The sending side of a connection, shared by threads and fair to streams. Used by both ends; standard library only.

A stream that has used up its window waits until the receiver has granted more, so a long message or a flood of output
can't keep the others from being sent. Frames are written whole, one at a time.
"""

from __future__ import annotations

import threading

from .frames import WINDOW, Frame, frames_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Closed(Exception):
    """Nothing more can be sent: the connection is at its end."""


class Outbox:
    """Sends messages through `write(data)`, which must write all of it or raise OSError."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        # Held for one frame at a time; nothing but the write happens under it.
        self._writing = threading.Lock()
        # Guards what follows. Never held while writing, so a grant is never kept waiting by a blocked writer.
        self._granted = threading.Condition()
        self._windows: dict[int, int] = {}
        self._closed = False

    def send(self, kind: int, stream: int, parts: Sequence[bytes | memoryview]) -> None:
        """Send a message at once, without regard to any window. Raises Closed."""
        for frame in frames_of(kind, stream, parts):
            self.put(frame)

    def send_within_window(
        self, kind: int, stream: int, parts: Sequence[bytes | memoryview], *, last: bool = True
    ) -> None:
        """Send a message as the receiver's credit allows. With `last` the stream ends with it. Raises Closed."""
        for frame in frames_of(kind, stream, parts):
            self._take(stream, len(frame.payload))
            self.put(frame)
        if last:
            with self._granted:
                self._windows.pop(stream, None)

    def put(self, frame: Frame) -> None:
        """Write one frame. Raises Closed."""
        data = frame.to_bytes()
        with self._writing:
            if self._closed:
                raise Closed("the connection is closed")
            try:
                self._write(data)
            except OSError as error:
                # Half a frame may be out: whatever came after it would be read as garbage.
                self.close()
                raise Closed(f"the connection is broken: {error}") from error

    def grant(self, stream: int, size: int) -> None:
        """The receiver takes `size` more bytes on `stream`. Unknown and finished streams are ignored."""
        with self._granted:
            if stream in self._windows:
                self._windows[stream] = min(self._windows[stream] + size, WINDOW)
                self._granted.notify_all()

    def close(self) -> None:
        """Every send from now on raises Closed, and so does every one that waits for credit."""
        with self._granted:
            self._closed = True
            self._granted.notify_all()

    def is_quiet(self, timeout: float) -> bool:
        """After `close`: wait up to `timeout` seconds until the last write has returned. True: there won't be any."""
        if not self._writing.acquire(timeout=timeout):
            return False
        self._writing.release()
        return True

    def _take(self, stream: int, size: int) -> None:
        with self._granted:
            window = self._windows.setdefault(stream, WINDOW)
            while window < size:
                if self._closed:
                    raise Closed("the connection is closed")
                self._granted.wait()
                window = self._windows.get(stream, 0)
            self._windows[stream] = window - size
