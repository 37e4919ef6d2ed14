"""HTTP/1.1 as the sandbox's clients speak it to a tunnel: requests read strictly, answers framed.

Standard library only. Whatever could be read in two ways is refused, not repaired: bare CR or LF, folded headers, space
before a colon, several lengths, a length beside a transfer coding. `Refusal` is what the client gets instead; the host
uses it too.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

HEAD_LIMIT = 32 * 1024
"""Most bytes of a request's line and headers."""
HEADERS_LIMIT = 100
"""Most headers of a request."""
_CHUNK = 64 * 1024
_LINE_LIMIT = 1024

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
"""What a method or a header's name is made of."""
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""What a header's value is made of."""
_REQUEST_LINE = re.compile(r"([!-~]+) ([!-~]+) HTTP/1\.([01])")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[\t\x20-\xff]*)?\Z")
_LENGTH = re.compile(r"[0-9]{1,15}")

_KINDS = {
    400: ("Bad Request", "invalid_request_error"),
    403: ("Forbidden", "permission_error"),
    405: ("Method Not Allowed", "invalid_request_error"),
    408: ("Request Timeout", "timeout_error"),
    413: ("Content Too Large", "request_too_large"),
    429: ("Too Many Requests", "rate_limit_error"),
    431: ("Request Header Fields Too Large", "invalid_request_error"),
    501: ("Not Implemented", "invalid_request_error"),
    502: ("Bad Gateway", "api_error"),
    503: ("Service Unavailable", "overloaded_error"),
    504: ("Gateway Timeout", "timeout_error"),
}


class Refusal(Exception):
    """The answer to a request that the tunnel does not let through: `status`, and a message for who reads it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def reason(self) -> str:
        """The words beside the status."""
        return _KINDS[self.status][0]

    def headers(self) -> list[tuple[str, str]]:
        """The answer's headers, without those of its framing."""
        more = [("retry-after", "1")] if self.status == 429 else []
        return [("content-type", "application/json"), *more]

    def body(self) -> bytes:
        """JSON, in the shape that the SDKs of Anthropic and OpenAI show."""
        error = {"type": _KINDS[self.status][1], "message": f"agentix tunnel: {self.message}"}
        return json.dumps({"type": "error", "error": error}).encode()


class Request:
    """A request's head. `length` is that of its body in bytes, None where it is chunked."""

    __slots__ = ("expects", "headers", "keeps", "length", "method", "minor", "target")

    def __init__(self, method: str, target: str, minor: int, headers: list[tuple[str, str]]) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.headers = headers
        self.length = self._length()
        connection = ",".join(self.all("connection")).lower()
        options = {option.strip() for option in connection.split(",")}
        self.keeps = "close" not in options if minor else "keep-alive" in options
        self.expects = self._expects()

    def all(self, name: str) -> list[str]:
        """The values of all headers of this name, given in small letters."""
        return [value for key, value in self.headers if key.lower() == name]

    def _length(self) -> int | None:
        lengths, codings = self.all("content-length"), self.all("transfer-encoding")
        if lengths and codings:
            raise Refusal(400, "a request has both Content-Length and Transfer-Encoding")
        if codings:
            if len(codings) > 1 or codings[0].lower() != "chunked" or not self.minor:
                raise Refusal(501, "a request has a Transfer-Encoding other than chunked")
            return None
        if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
            raise Refusal(400, "a request's Content-Length is not a number, or there are several")
        return int(lengths[0]) if lengths else 0

    def _expects(self) -> bool:
        wants = self.all("expect")
        if wants and [want.lower() for want in wants] != ["100-continue"]:
            raise Refusal(400, "a request expects other than 100-continue")
        return bool(wants) and self.minor == 1


def parse_head(data: bytes) -> Request:
    """A request's head, without the empty line at its end. Raises Refusal."""
    first, *lines = data.decode("latin-1").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if not line:
        raise Refusal(400, "a request's first line is not of HTTP/1.0 or HTTP/1.1")
    if len(lines) > HEADERS_LIMIT:
        raise Refusal(431, f"a request has more than {HEADERS_LIMIT} headers")
    headers = []
    for text in lines:
        name, colon, value = text.partition(":")
        value = value.strip(" \t")
        if not colon or not TOKEN.fullmatch(name) or not VALUE.fullmatch(value):
            raise Refusal(400, "a request has a header that is not valid")
        headers.append((name, value))
    return Request(line[1], line[2], int(line[3]), headers)


class RequestReader:
    """What a client sends on its connection. Each method raises OSError (also of the socket's timeout) and Refusal."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def begun(self) -> bool:
        """Wait for the first byte of a request. False: the client has hung up."""
        return bool(self._buffer) or self._fill()

    def request(self) -> Request:
        """The head of the next request, after `begun`."""
        skipped = 0
        while True:
            # An empty line before a request is what old clients send after a body.
            while self._buffer[:2] == b"\r\n" and skipped < 4:
                del self._buffer[:2]
                skipped += 1
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 and len(self._buffer) <= HEAD_LIMIT:
                if not self._fill():
                    raise ConnectionError("the client hung up inside a request")
                continue
            if end < 0 or end > HEAD_LIMIT:
                raise Refusal(431, f"a request's headers are larger than {HEAD_LIMIT} bytes")
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            return parse_head(head)

    def body(self, length: int | None) -> Iterator[bytes]:
        """The pieces of a body as they come."""
        return self._chunked() if length is None else self._counted(length)

    def _counted(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._some(left)
            left -= len(piece)
            yield piece

    def _chunked(self) -> Iterator[bytes]:
        while True:
            size = _SIZE.match(self._line(_LINE_LIMIT))
            if not size:
                raise Refusal(400, "a chunk's size is not a number")
            left = int(size[1], 16)
            if left == 0:
                break
            yield from self._counted(left)
            if self._line(2):
                raise Refusal(400, "a chunk is not of the size that it says")
        room = HEAD_LIMIT
        # What is said behind a body is not passed on.
        while line := self._line(room):
            room -= len(line) + 2

    def _some(self, most: int) -> bytes:
        if not self._buffer and not self._fill():
            raise ConnectionError("the client hung up inside a body")
        size = min(most, len(self._buffer))
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece

    def _line(self, limit: int) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0 and len(self._buffer) <= limit:
            if not self._fill():
                raise ConnectionError("the client hung up inside a body")
        if end < 0 or end > limit:
            raise Refusal(400, "a chunked body is not of the form it must have")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _fill(self) -> bool:
        data = self._connection.recv(_CHUNK)
        self._buffer += data
        return bool(data)


class ResponseWriter:
    """An answer on its way to a client that sent `request`. `keeps`: another request may follow on this connection.

    `length` is what the answer's head says of its body; None: not known.
    """

    def __init__(self, connection: socket.socket, request: Request | None, *, keeps: bool) -> None:
        self._connection = connection
        self._is_head = request is not None and request.method == "HEAD"
        self._minor = 1 if request is None else request.minor
        self._chunked = False
        self.bodyless = False
        self.keeps = keeps

    def start(self, status: int, reason: str, headers: list[tuple[str, str]], length: int | None) -> None:
        """Send the head."""
        self.bodyless = self._is_head or status in (204, 304)
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
        if length is not None and status != 204:
            lines.append(f"content-length: {length}")
        elif not self.bodyless and self._minor:
            self._chunked = True
            lines.append("transfer-encoding: chunked")
        elif not self.bodyless:
            self.keeps = False
        lines.append("connection: keep-alive" if self.keeps else "connection: close")
        self._connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if data and not self.bodyless:
            self._connection.sendall(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        """The body is whole."""
        if self._chunked:
            self._connection.sendall(b"0\r\n\r\n")

    def refuse(self, refusal: Refusal) -> None:
        """Send a refusal, all of it."""
        body = refusal.body()
        self.start(refusal.status, refusal.reason, refusal.headers(), len(body))
        self.write(body)
