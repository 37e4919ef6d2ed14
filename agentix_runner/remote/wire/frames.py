"""Frames: how messages become bytes on the one connection between host and sandbox, and bytes messages.

Runs on both ends, so: standard library only. `FrameReader` takes frames in; `Outbox` sends them, for any number of
threads. The numbers below are the protocol; a test spells out their bytes.

    kind: 1 byte | flags: 1 byte | stream: 4 bytes | length: 4 bytes | payload

All numbers are unsigned and big-endian. A message longer than `MAX_PAYLOAD` is sent as several frames of the same kind
and stream, the last of which has the flag `END`; so large messages of different streams take turns.
"""

from __future__ import annotations

import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WIRE = 1
"""The protocol's version, compared in the first frame."""

HELLO = 1
"""First frame of each end: JSON, who it is. Stream 0."""
CALL = 2
"""Host to sandbox: run this. The stream is the call's id."""
RESULT = 3
"""Sandbox to host: what the call returned."""
ERROR = 4
"""Sandbox to host: why the call returned nothing."""
LOG = 5
"""Sandbox to host: what was printed. Stream 0."""
CREDIT = 6
"""Receiver to sender: so many more bytes may be sent on this stream (4 bytes)."""
HEAD = 7
"""Either way: the head of a request through a tunnel (to the host), or of its answer. In one frame."""
BODY = 8
"""Either way: a part of the body of such a request or answer. `END` ends it."""
RESET = 9
"""Either way: such a request comes to no good end. The payload is the reason, as text."""

KINDS = frozenset((HELLO, CALL, RESULT, ERROR, LOG, CREDIT, HEAD, BODY, RESET))

TUNNEL_STREAMS = 1 << 31
"""Streams of this number and above are requests through a tunnel, and numbered by the sandbox."""

END = 1
"""Flag: the message ends with this frame."""

MAX_PAYLOAD = 64 * 1024
"""Most payload bytes in one frame. Anything longer is refused unread."""

WINDOW = 1024 * 1024
"""Bytes that a stream may have under way before the receiver has granted more."""

HEADER = struct.Struct(">BBII")
_CREDIT = struct.Struct(">I")


class FrameError(Exception):
    """What came is no frame of this protocol. The connection can't be used any further."""


class Truncated(FrameError):
    """The connection ended inside a frame: `wanted` bytes were due and `got` came."""

    def __init__(self, what: str, wanted: int, got: int) -> None:
        super().__init__(f"the connection ended inside a {what}: {wanted} bytes wanted, {got} came")
        self.wanted = wanted
        self.got = got


class Frame:
    """One frame: its `kind`, the `stream` it belongs to, its `payload`, and whether the message ends with it."""

    __slots__ = ("end", "kind", "payload", "stream")

    def __init__(self, kind: int, stream: int, payload: bytes | memoryview = b"", *, end: bool = True) -> None:
        self.kind = kind
        self.stream = stream
        self.payload = payload
        self.end = end

    def to_bytes(self) -> bytes:
        """The frame as it travels. Raises FrameError where it breaks the protocol's limits."""
        if self.kind not in KINDS:
            raise FrameError(f"{self.kind} is no kind of frame")
        if len(self.payload) > MAX_PAYLOAD:
            raise FrameError(f"a payload of {len(self.payload)} bytes is over the limit of {MAX_PAYLOAD}")
        return b"".join((HEADER.pack(self.kind, END if self.end else 0, self.stream, len(self.payload)), self.payload))


class FrameReader:
    """Takes frames from `read(n)`, which returns up to n bytes, and b"" at the end of the connection."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()

    def next(self) -> Frame | None:
        """The next frame, or None where the connection ends between two frames.

        Raises:
            Truncated: it ended inside one.
            FrameError: what came is no frame.
        """
        if not self._fill(HEADER.size):
            if self._buffer:
                raise Truncated("frame's header", HEADER.size, len(self._buffer))
            return None
        kind, flags, stream, length = HEADER.unpack_from(self._buffer)
        if kind not in KINDS:
            raise FrameError(f"{kind} is no kind of frame")
        if flags & ~END:
            raise FrameError(f"a frame has unknown flags: {flags:#x}")
        if length > MAX_PAYLOAD:
            raise FrameError(f"a frame says it has {length} bytes; the limit is {MAX_PAYLOAD}")
        end = HEADER.size + length
        if not self._fill(end):
            raise Truncated("frame's payload", length, len(self._buffer) - HEADER.size)
        payload = bytes(memoryview(self._buffer)[HEADER.size : end])
        del self._buffer[:end]
        return Frame(kind, stream, payload, end=bool(flags & END))

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            chunk = self._read(MAX_PAYLOAD)
            if not chunk:
                return False
            self._buffer += chunk
        return True


def frames_of(kind: int, stream: int, parts: Sequence[bytes | memoryview]) -> Iterator[Frame]:
    """The message made of `parts`, one after the other, as frames. Nothing large is copied."""
    size = sum(map(len, parts))
    if size <= MAX_PAYLOAD:
        yield Frame(kind, stream, b"".join(parts))
        return
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), MAX_PAYLOAD):
            piece = view[start : start + MAX_PAYLOAD]
            size -= len(piece)
            yield Frame(kind, stream, piece, end=size == 0)


def credit(stream: int, size: int) -> Frame:
    """A frame that lets the other end send `size` more bytes on `stream`."""
    return Frame(CREDIT, stream, _CREDIT.pack(size))


def credit_of(frame: Frame) -> int:
    """How many bytes a credit frame grants."""
    if len(frame.payload) != _CREDIT.size:
        raise FrameError(f"a credit frame of {len(frame.payload)} bytes")
    return int(_CREDIT.unpack(frame.payload)[0])


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
