"""The host's requests to a tunnel's one upstream, with urllib3: HTTP/1.1, certificates checked, no redirect followed.

No proxy of the environment is used, and nothing is tried twice: whether a request may be repeated, its client knows.
Every wait can be cut short from another thread (`Line.cut`).
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from http.client import responses
from importlib.metadata import version
from typing import Any

from ..errors import BadArgument
from ..remote.sandbox.http1 import Refusal
from ..remote.wire.streams import Reset
from .policy import Address, Headers, incoming

_CHUNK = 64 * 1024
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
# The line of the exchange that this thread works on: a connection is made deep inside urllib3.
_now = threading.local()

THREAD = "agentix-tunnel"
"""The name of the threads that ask."""


def _tells_nothing(record: logging.LogRecord) -> bool:
    """urllib3 warns of a header that it can't read, and shows it: the upstream may have repeated the key in it."""
    return record.threadName != THREAD


logging.getLogger("urllib3.connection").addFilter(_tells_nothing)


class Line:
    """The connection that one exchange has upstream, so that others can cut it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._cut = False

    def hold(self, connection: socket.socket) -> None:
        """This is the connection now. Raises Reset where it has been cut before."""
        # A descriptor of its own: TLS takes the first one away, and the pool may give it to another exchange.
        handle = socket.socket(fileno=os.dup(connection.fileno()))
        with self._lock:
            old, self._handle = self._handle, handle
            cut = self._cut
        if old is not None:
            old.close()
        if cut:
            raise Reset("cut")

    def cut(self) -> None:
        """Break the connection, now or when there is one. From any thread; waits for nothing."""
        with self._lock:
            self._cut = True
            if self._handle is not None:
                with contextlib.suppress(OSError):
                    self._handle.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """The exchange is over: its connection is another's now."""
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None


class Answer:
    """An upstream's answer. `length`: bytes of its body, None where it doesn't say."""

    def __init__(self, response: Any, upstream: Upstream) -> None:
        self._response = response
        self._upstream = upstream
        self.status: int = response.status
        # Not the upstream's own words for it: they may repeat what was asked, the key too.
        self.reason = responses.get(response.status, "")
        self.headers = incoming(response.headers.items())
        said = response.headers.get("content-length", "")
        chunked = "transfer-encoding" in response.headers
        self.length = int(said) if said.isascii() and said.isdigit() and len(said) < 16 and not chunked else None

    def header(self, name: str) -> str:
        """The value of a header, "" where there is none."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def read(self) -> bytes:
        """What has come of the body, as soon as something has; b"" at its end. Raises Refusal where it breaks off."""
        try:
            return bytes(self._response.read1(_CHUNK))
        except Exception as error:
            raise self._upstream.refusal(error) from None

    def close(self, *, whole: bool) -> None:
        """Give the connection back; or close it, unless all of the answer was read."""
        if whole:
            self._response.release_conn()
        else:
            self._response.close()


class Upstream:
    """Asks `address`. Timeouts are in seconds, `read_timeout` between any two parts of an answer."""

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float,
        read_timeout: float,
        max_connections: int,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        from urllib3 import HTTPResponse, Timeout

        if not hasattr(HTTPResponse, "read1"):
            raise BadArgument(
                f"a tunnel needs a newer urllib3 than {version('urllib3')}, to pass answers on as they come: "
                "pip install -U urllib3"
            )
        self.address = address
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._timeout = Timeout(connect=connect_timeout, read=read_timeout)
        self._pool = _pool(address, max_connections, read_timeout, ca_file)

    def ask(
        self, line: Line, method: str, target: str, headers: Headers, body: Iterator[bytes] | None, length: int | None
    ) -> Answer:
        """Send a request, and return when the head of the answer is there.

        Raises:
            Refusal: there is no answer, and why.
            Whatever `body` raises.
        """
        from urllib3 import HTTPHeaderDict
        from urllib3.util import SKIP_HEADER

        fields = HTTPHeaderDict()
        for name, value in headers:
            fields.add(name, value)
        # Text is readable in records, and a key in it can be hidden.
        fields["accept-encoding"] = "identity"
        if "user-agent" not in fields:
            fields["user-agent"] = SKIP_HEADER
        if body is not None and length is not None:
            fields["content-length"] = str(length)
        _now.line = line
        try:
            response = self._pool.urlopen(
                method,
                self.address.prefix + target,
                body=body,
                headers=fields,
                retries=False,
                redirect=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
                chunked=body is not None and length is None,
            )
        except (Refusal, Reset):
            raise
        except Exception as error:
            raise self.refusal(error) from None
        finally:
            _now.line = None
        if response.status < 200:
            response.close()
            raise Refusal(502, f"{self.address} answered with status {response.status}, which is none to end with")
        return Answer(response, self)

    def refusal(self, error: Exception) -> Refusal:
        """What the sandbox is told of an error."""
        from urllib3 import exceptions

        where = str(self.address)
        if isinstance(error, exceptions.ConnectTimeoutError):
            return Refusal(504, f"no connection to {where} in {self._connect_timeout:g} s")
        if isinstance(error, exceptions.ReadTimeoutError):
            return Refusal(504, f"{where} sent nothing for {self._read_timeout:g} s")
        inner = _innermost(error)
        if isinstance(inner, OSError) and (inner.errno in _TOO_MANY or _too_many_open()):
            return Refusal(503, "the tunnel's host has too many open files: raise `ulimit -n` there")
        if isinstance(inner, socket.gaierror):
            return Refusal(502, f"the name of {where} can't be resolved: {inner.strerror}")
        if isinstance(inner, ssl.SSLCertVerificationError):
            return Refusal(502, f"the certificate of {where} is not trusted: {inner.verify_message}")
        if isinstance(inner, TimeoutError):
            return Refusal(504, f"{where} took nothing for {self._read_timeout:g} s")
        if isinstance(inner, http.client.RemoteDisconnected):
            return Refusal(502, f"{where} closed the connection without an answer")
        if isinstance(inner, http.client.IncompleteRead) or "IncompleteRead" in type(inner).__name__:
            return Refusal(502, f"{where} closed the connection inside its answer")
        if isinstance(inner, OSError):
            return Refusal(502, f"the connection to {where} failed: {inner.strerror or type(inner).__name__}")
        return Refusal(502, f"what {where} answered is no HTTP: {type(inner).__name__}")

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()


def _too_many_open() -> bool:
    """Whether this process can open nothing more: looking a name up tells something else then."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in _TOO_MANY
    return False


def _innermost(error: BaseException) -> BaseException:
    """urllib3 wraps what happened, once or more."""
    from urllib3.exceptions import HTTPError

    for _ in range(8):
        if not isinstance(error, HTTPError):
            break
        inside = [getattr(error, "reason", None), *error.args, error.__cause__]
        inner = next((one for one in inside if isinstance(one, BaseException)), None)
        if inner is None:
            break
        error = inner
    return error


def _ready(connection: Any, timeout: float) -> None:
    """Before a request: the connection is there, and its sending may take as long as its answer."""
    if connection.sock is None:
        connection.connect()
    else:
        _now.line.hold(connection.sock)
    connection.timeout = timeout


def _pool(address: Address, size: int, read_timeout: float, ca_file: str | os.PathLike[str] | None) -> Any:
    """A pool of connections, each of which tells the line it is used on."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.exceptions import ConnectTimeoutError

    def connect(connection: Any) -> socket.socket:
        line: Line = _now.line
        failed: OSError = OSError("no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            new = socket.socket(family, kind, protocol)
            try:
                line.hold(new)
                new.settimeout(connection.timeout)
                new.connect(where)
                new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return new
            except OSError as error:
                new.close()
                failed = error
            except BaseException:
                new.close()
                raise
        if isinstance(failed, TimeoutError):
            raise ConnectTimeoutError(str(failed)) from failed
        raise failed

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self)

        def request(self, *args: Any, **kwargs: Any) -> None:
            _ready(self, read_timeout)
            super().request(*args, **kwargs)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self)

        def request(self, *args: Any, **kwargs: Any) -> None:
            _ready(self, read_timeout)
            super().request(*args, **kwargs)

    pool: HTTPConnectionPool
    if address.scheme == "http":
        pool = HTTPConnectionPool(address.host, address.port, maxsize=size, block=False)
        pool.ConnectionCls = Plain
    else:
        context = _trust(ca_file)
        pool = HTTPSConnectionPool(
            address.host, address.port, maxsize=size, block=False, ssl_context=context, cert_reqs="CERT_REQUIRED"
        )
        pool.ConnectionCls = Secure
    return pool


def _trust(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Certificates are checked against `ca_file`, else against the system's authorities, else against certifi's."""
    try:
        context = ssl.create_default_context(cafile=os.fspath(ca_file) if ca_file is not None else None)
    except (OSError, TypeError, ValueError) as error:
        raise BadArgument(f"the tunnel's ca_file {ca_file!r} can't be used: {error}") from None
    paths = ssl.get_default_verify_paths()
    if ca_file is None and paths.cafile is None and paths.capath is None:
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
