"""The sandbox's end of a tunnel: an HTTP/1.1 listener on loopback. Runs in the worker; standard library only, `-I -S`.

What a client asks for goes to the host, one stream of frames for each request, and the answer comes back the same way.
Nothing is decided here that matters to the host: it checks everything again. One thread accepts, and watches the
clients that wait for an answer, so that a request whose client has gone is given up; each connection has one more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import socket
import struct
import threading
import time

from ..wire import frames
from ..wire.frames import Closed, FrameError
from ..wire.streams import Reset, Stream
from .http1 import Refusal, Request, RequestReader, ResponseWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Seconds: between two requests of one connection, within one, and for a client that doesn't read.
_IDLE_S = 600.0
_STALL_S = 300.0
_SEND_S = 600.0
# For the threads of a tunnel that is closed, and for a client to read its last answer.
_CLOSE_S = 2.0
# Connections beyond those that may be busy at once.
_SPARE = 128
_GONE = getattr(select, "POLLRDHUP", 0)
_LOOPBACK = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?\Z", re.IGNORECASE)


class TunnelListeners:
    """All listeners of a worker, and the requests under way. `put` sends a frame to the host."""

    def __init__(self, put: Callable[[frames.Frame], None]) -> None:
        self._put = put
        self._listeners: dict[int, TunnelListener] = {}
        self._streams: dict[int, Stream] = {}
        self._numbers = itertools.count(frames.TUNNEL_STREAMS)

    def open(self, number: int, max_concurrent: int) -> int:
        """Listen for tunnel `number`. Returns the port."""
        listener = self._listeners[number] = TunnelListener(self, number, max_concurrent)
        return listener.port

    def close(self, number: int) -> None:
        """Close the listener of a tunnel, and every connection to it."""
        listener = self._listeners.pop(number, None)
        if listener is not None:
            listener.close()

    def take(self, frame: frames.Frame) -> None:
        """Take a frame from the host. Never waits."""
        stream = self._streams.get(frame.stream)
        if stream is not None:
            stream.take(frame)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """A new stream, for the time of one request."""
        stream = Stream(next(self._numbers), self._put, asks=True)
        self._streams[stream.number] = stream
        try:
            yield stream
        finally:
            del self._streams[stream.number]

    def forked(self) -> None:
        """In a fork of this process: hold nothing open."""
        for listener in list(self._listeners.values()):
            listener.forked()


class TunnelListener:
    """The listener of one tunnel, its connections, and the watch over them."""

    def __init__(self, listeners: TunnelListeners, number: int, max_concurrent: int) -> None:
        self._listeners = listeners
        self._number = number
        self._max_concurrent = max_concurrent
        self._room = threading.Semaphore(max_concurrent)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._socket.getsockname()[1]
        self._socket.setblocking(False)
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        # Guards what follows.
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._watched: dict[int, tuple[socket.socket, Stream]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="agentix-inlet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more, and hang up on everyone. Waits a moment for the threads."""
        with self._lock:
            self._closed = True
            threads = [self._thread, *self._connections.values()]
            for connection in self._connections:
                _hang_up(connection)
            for _, stream in self._watched.values():
                stream.give_up("the tunnel is closed")
        self._wake()
        end = time.monotonic() + _CLOSE_S
        for thread in threads:
            # One that is just about to start can't be joined; it finds its connection hung up.
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))

    def forked(self) -> None:
        """In a fork of this process: hold nothing open. Other threads' locks may be held for ever."""
        sockets = [one.detach() for one in (self._socket, *self._connections)]
        for number in (*sockets, self._wake_reader, self._wake_writer):
            with contextlib.suppress(OSError):
                os.close(number)

    # --- the listener's own thread ---

    def _run(self) -> None:
        try:
            while True:
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                poll.register(self._wake_reader, select.POLLIN)
                with self._lock:
                    if self._closed:
                        return
                    for number in self._watched:
                        poll.register(number, _GONE or select.POLLIN)
                for number, _ in poll.poll():
                    if number == self._socket.fileno():
                        self._accept()
                    elif number == self._wake_reader:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake_reader, 4096)
                    else:
                        self._check_client(number)
        finally:
            # Forks may hold the listener: without this, clients could still connect, and wait for ever.
            _hang_up(self._socket)
            self._socket.close()
            with self._lock:
                os.close(self._wake_reader)
                os.close(self._wake_writer)
                self._wake_writer = -1

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"\0")

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # No more descriptors: the client waits until there are.
            time.sleep(0.05)
            return
        with self._lock:
            full = len(self._connections) >= self._max_concurrent + _SPARE
            thread = threading.Thread(target=self._serve, args=(connection, full), name="agentix-inlet", daemon=True)
            self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError:
            # No more threads or memory.
            self._drop(connection)

    def _check_client(self, number: int) -> None:
        """A client that waits for its answer may have gone."""
        with self._lock:
            connection, stream = self._watched.pop(number, (None, None))
            if connection is None or stream is None:
                return
            if not _GONE:
                with contextlib.suppress(OSError):
                    if connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                        # The next request, sent early: what comes behind it can't be seen.
                        return
        stream.give_up("the client is gone")

    @contextlib.contextmanager
    def _watching(self, connection: socket.socket, stream: Stream) -> Iterator[None]:
        number = connection.fileno()
        with self._lock:
            closed = self._closed
            self._watched[number] = connection, stream
        if closed:
            stream.give_up("the tunnel is closed")
        self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(number, None)

    # --- a connection's thread ---

    def _serve(self, connection: socket.socket, full: bool) -> None:
        request = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = RequestReader(connection)
            if full:
                raise Refusal(503, "too many connections at once")
            keeps = True
            while keeps and not self._closed:
                request = None
                connection.settimeout(_IDLE_S)
                if not reader.begun():
                    return
                connection.settimeout(_STALL_S)
                request = reader.request()
                keeps = self._answer(connection, reader, request)
        except Refusal as refusal:
            with contextlib.suppress(OSError):
                connection.settimeout(_STALL_S)
                ResponseWriter(connection, request, keeps=False).refuse(refusal)
                _close_after_read(connection)
        except (OSError, Closed):
            pass
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)
            # A client whose connection a fork holds, too, must see its end.
            _hang_up(connection)
            connection.close()

    def _answer(self, connection: socket.socket, reader: RequestReader, request: Request) -> bool:
        """Have a request answered by the host. Whether the connection is good for another one."""
        hosts = request.all("host")
        # A web page that got here by a name of its own making is none of the sandbox's.
        if len(hosts) > 1 or (request.minor and not hosts) or not all(_LOOPBACK.match(host) for host in hosts):
            raise Refusal(400, "a request's Host is not the tunnel's own (127.0.0.1 or localhost)")
        if not self._room.acquire(blocking=False):
            raise Refusal(429, f"more than {self._max_concurrent} requests at once (max_concurrent)")
        try:
            with self._listeners.stream() as stream:
                return self._forward(connection, reader, request, stream)
        finally:
            self._room.release()

    def _forward(self, connection: socket.socket, reader: RequestReader, request: Request, stream: Stream) -> bool:
        try:
            self._send_head(request, stream)
            whole = self._send_body(connection, reader, request, stream)
            out = ResponseWriter(connection, request, keeps=request.keeps and whole)
            if whole:
                with self._watching(connection, stream):
                    self._relay(connection, out, stream)
            else:
                self._relay(connection, out, stream)
                _close_after_read(connection)
            return out.keeps
        except Reset as reset:
            # Where it was this end that gave up, the host doesn't know yet.
            stream.send_reset(str(reset))
            if not request.minor:
                # The end of the connection may be the end of a good answer. This one is to be an error.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                # While the listener's thread waits for news of it, it isn't closed in truth.
                self._wake()
            raise ConnectionError(str(reset)) from None
        except (OSError, Refusal):
            stream.send_reset("the client is gone")
            raise

    def _send_head(self, request: Request, stream: Stream) -> None:
        length = "chunked" if request.length is None else str(request.length)
        lines = [str(self._number), request.method, request.target, length]
        for name, value in request.headers:
            lines += (name, value)
        try:
            stream.send_head(lines)
        except FrameError:
            raise Refusal(431, "a request's headers are too large") from None

    def _send_body(self, connection: socket.socket, reader: RequestReader, request: Request, stream: Stream) -> bool:
        """Send the request's body to the host. False where that has answered before it had all of it."""
        if request.length == 0:
            return True
        if request.expects:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        sent = 0
        for piece in reader.body(request.length):
            sent += len(piece)
            if not stream.send(piece, end=sent == request.length, timeout=_SEND_S):
                return False
        return request.length is not None or stream.send(b"", end=True, timeout=_SEND_S)

    def _relay(self, connection: socket.socket, out: ResponseWriter, stream: Stream) -> None:
        try:
            status, reason, length, *rest = stream.answer()
        except Reset as reset:
            raise Refusal(502, str(reset)) from None
        connection.settimeout(_SEND_S)
        headers = list(zip(rest[::2], rest[1::2], strict=True))
        out.start(int(status), reason, headers, int(length) if length else None)
        while data := stream.read():
            out.write(data)
        out.finish()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _close_after_read(connection: socket.socket) -> None:
    """Let the client read its answer: a connection that is closed with something unread takes the answer with it."""
    end = time.monotonic() + _CLOSE_S
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(64 * 1024):
                return
