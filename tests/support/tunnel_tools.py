"""What the tunnel's tests share: an HTTP server that does what it is told, and clients that run in the sandbox.

The clients are standard library only, and travel by value where the sandbox has no such module.
"""

from __future__ import annotations

import copy
import http.client
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

KEY = 'sk-ant-"very"/secret+0123456789'


class Handler(http.server.BaseHTTPRequestHandler):
    """One request, answered by the function that `Api.on` named for its path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Api

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.body = b""
        # As it is now: the next request of this connection has the same handler.
        self.asked = copy.copy(self)
        self.server.asked.append(self.asked)
        answer = self.server.answers.get(self.path.partition("?")[0], echo)
        answer(self)

    def read_body(self) -> bytes:
        """All of the request's body, however it is framed."""
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.asked.body = self.body
        return self.body

    def all(self, name: str) -> list[str]:
        """The values of all headers of a name."""
        return self.headers.get_all(name, [])

    def reply(self, body: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        """Answer with a body of a known length."""
        self.head(status=status, kind=kind, content_length=str(len(body)), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, *, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        """Begin an answer."""
        lines = [f"HTTP/1.1 {status} Fine", f"content-type: {kind}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        """A chunk of a chunked body; the last one is empty."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def drop(self) -> None:
        """Close the connection here and now."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait_for_hangup(self) -> None:
        """Return when the other end has closed the connection."""
        self.connection.settimeout(30)
        try:
            while self.rfile.read1(65536):
                pass
        except ConnectionError:
            pass
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


def echo(handler: Handler) -> None:
    """Answer with what was asked."""
    body = handler.read_body()
    said = {"method": handler.command, "path": handler.path, "size": len(body), "text": body[:1000].decode("latin-1")}
    handler.reply(json.dumps(said).encode())


class Api(http.server.ThreadingHTTPServer):
    """The upstream. `asked` are the requests that came, in order."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Handler] = []
        self.answers: dict[str, Callable[[Handler], None]] = {}
        self._open: set[Any] = set()
        self.errors: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def on(self, path: str) -> Callable[[Callable[[Handler], None]], Callable[[Handler], None]]:
        """Decorates the function that answers requests for a path."""

        def add(answer: Callable[[Handler], None]) -> Callable[[Handler], None]:
            self.answers[path] = answer
            return answer

        return add

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests are about."""

    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def end(self) -> None:
        self.shutdown()
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        self.server_close()


@contextmanager
def serving() -> Iterator[Api]:
    """A server, for the time of the block."""
    api = Api()
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.02}, name="test-api", daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.end()
        thread.join(10)


# --- in the sandbox ---


def connect(url: str, timeout: float = 30) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.split("//")[1], timeout=timeout)


def ask(
    url: str, path: str = "/v1/messages", method: str = "GET", body: Any = None, headers: Any = ()
) -> tuple[int, list[tuple[str, str]], bytes]:
    """One request, on a connection of its own. A list as the body goes chunked."""
    connection = connect(url)
    try:
        connection.request(method, path, body=iter(body) if isinstance(body, list) else body, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


def raw(url: str, data: bytes, *, hang_up: bool = False) -> bytes:
    """Send bytes as they are, and return all that comes until the other end closes."""
    host, port = url.split("//")[1].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data)
        if hang_up:
            connection.shutdown(socket.SHUT_WR)
        got = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                return got + b" RESET"
            if not piece:
                return got
            got += piece
