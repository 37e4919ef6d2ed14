"""What a tunnel lets through, as the host decides it: which addresses, which requests, which headers each way.

The sandbox's end has read the request already, and may be an enemy: everything is checked here, and what goes on is
made anew. Only `Address` is ever connected to, whatever a request says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from attrs import field, frozen

from ..errors import BadArgument
from ..remote.sandbox.http1 import HEADERS_LIMIT, TOKEN, VALUE, Refusal

Headers = list[tuple[str, str]]

_TARGET = re.compile(r"/[!-\"$-~]*\Z")
_METHOD = re.compile(r"[A-Z]{1,20}\Z")
_LENGTH = re.compile(r"[0-9]{1,15}\Z")
_SEPARATORS = re.compile(r"[/\\]")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,=:@%-]+)*\Z")

# Of one connection, not of the request.
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("http2-settings", "proxy-authenticate", "proxy-authorization"),
    )
)
# Besides, what the host decides. Compressed answers could neither be read in a record nor searched for the key.
_OWN = _HOP | frozenset(("host", "content-length", "expect", "accept-encoding"))


def _positive(instance: Any, attribute: Any, value: Any) -> None:
    kind = int if attribute.name.startswith("max_") else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
        what = "a whole number above 0" if kind is int else "a number of seconds above 0"
        raise BadArgument(f"tunnel({attribute.name}=...) is {value!r}: give {what}")


@frozen(kw_only=True)
class Limits:
    """What a tunnel lets through. Bytes are those of bodies; timeouts are in seconds."""

    max_concurrent: int = field(default=32, validator=_positive)
    max_request_bytes: int = field(default=64 << 20, validator=_positive)
    max_response_bytes: int = field(default=256 << 20, validator=_positive)
    max_total_bytes: int = field(default=16 << 30, validator=_positive)
    max_record_bytes: int = field(default=8 << 20, validator=_positive)
    connect_timeout: float = field(default=10.0, validator=_positive)
    read_timeout: float = field(default=600.0, validator=_positive)


@frozen
class Address:
    """Where a tunnel leads: `https://host:port/prefix`."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Address:
        """The address that `url` names. Raises BadArgument."""
        what = f"the upstream {url!r:.200}" if isinstance(url, str) else "the upstream"
        if not isinstance(url, str) or not re.fullmatch(r"[!-~]+", url):
            raise BadArgument(f"{what} is not a URL: give one such as https://api.anthropic.com")
        if "@" in url:
            # Not shown: what stands before it is a secret.
            raise BadArgument("the upstream's URL holds a user or password: give them in headers=")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BadArgument(f"{what} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise BadArgument(f"{what} is not an http:// or https:// URL with a host")
        if parts.query or parts.fragment or url[-1] in "?#":
            raise BadArgument(f"{what} has a query or fragment: give only scheme, host, port and path")
        prefix = parts.path.rstrip("/")
        if not _PREFIX.match(prefix) or _climbs(prefix):
            raise BadArgument(f"{what} has a path that can't be a prefix")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), prefix)

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Without the prefix: some hold a token."""
        return f"{self.scheme}://{self.authority}"


@frozen
class RequestHead:
    """A request of the sandbox's, checked. `length`: bytes of its body, None where that is not known ahead."""

    method: str
    target: str
    length: int | None
    headers: Headers


def check_request(lines: Sequence[str]) -> RequestHead:
    """The request that a head's lines describe: method, target, length, then names and values in turn. Raises
    Refusal."""
    method, target, length, *rest = [*lines, "", "", ""][: max(3, len(lines))]
    if method in ("CONNECT", "TRACE"):
        # The answer to TRACE is the request, key and all.
        raise Refusal(405, f"{method} requests are not let through")
    if not _METHOD.match(method):
        raise Refusal(400, "a request's method is not made of capital letters")
    if not _TARGET.match(target):
        raise Refusal(400, "a request's target is not a path: it must begin with / and hold neither spaces nor #")
    if _climbs(target.partition("?")[0]):
        raise Refusal(400, 'a request\'s path has "." or ".." in it')
    if length != "chunked" and not _LENGTH.match(length):
        raise Refusal(400, "a request's length is not a number")
    headers = list(zip(rest[::2], rest[1::2], strict=False))
    if len(rest) % 2 or len(headers) > HEADERS_LIMIT:
        raise Refusal(400, "a request has too many headers")
    for name, value in headers:
        if not TOKEN.fullmatch(name) or not VALUE.fullmatch(value):
            raise Refusal(400, "a request has a header that is not valid")
        if _same(name) == "upgrade" and value.lower() != "h2c":
            raise Refusal(501, "a connection can't be upgraded (no websockets)")
    return RequestHead(method, target, None if length == "chunked" else int(length), headers)


def _climbs(path: str) -> bool:
    """Whether a path, decoded as often as anyone may decode it, has a segment that leads upwards."""
    for _ in range(8):
        # What follows a semicolon is a parameter, to some.
        if any(segment.partition(";")[0] in (".", "..") for segment in _SEPARATORS.split(path)):
            return True
        decoded = unquote(path, "latin-1")
        if decoded == path:
            return False
        path = decoded
    return True


def _same(name: str) -> str:
    """The name as a server may compare it: some take an underscore for a hyphen."""
    return name.lower().replace("_", "-")


def check_headers(headers: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """The host's own headers. Raises BadArgument, which names a header but never shows a value."""
    given = dict(headers or {})
    for name, value in given.items():
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadArgument("tunnel(headers=...) has a name that no header can have")
        if value is not None and (not isinstance(value, str) or not VALUE.fullmatch(value) or value != value.strip()):
            raise BadArgument(f"the tunnel's header {name!r} has a value that is not plain text of one line")
        if _same(name) in _OWN:
            raise BadArgument(f"the tunnel's header {name!r} is not for you to give: it is set for each request")
    if len({_same(name) for name in given}) < len(given):
        raise BadArgument("tunnel(headers=...) has the same name twice")
    return given


def outgoing(asked: Headers, given: Mapping[str, str | None]) -> Headers:
    """The headers that go upstream: the sandbox's, but for those that the host has given or decides."""
    dropped = _OWN | {_same(name) for name in given} | _named(asked)
    kept = [(name, value) for name, value in asked if _same(name) not in dropped]
    return [*kept, *((name, value) for name, value in given.items() if value is not None)]


def incoming(headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers of an answer that go to the sandbox."""
    found = [(name, re.sub(r"[\r\n]+[ \t]*", " ", value)) for name, value in headers]
    dropped = _HOP | {"content-length"} | _named(found)
    return [
        (name, value)
        for name, value in found
        if _same(name) not in dropped and TOKEN.fullmatch(name) and VALUE.fullmatch(value)
    ]


def _named(headers: Headers) -> set[str]:
    """What Connection headers name: it is of the connection, too."""
    return {_same(one.strip()) for name, value in headers if _same(name) == "connection" for one in value.split(",")}
