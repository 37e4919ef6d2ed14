"""The host's requests to a tunnel's one upstream: HTTP/1.1, certificates checked, no redirect followed.

No proxy of the environment is used, and nothing is tried twice: whether a request may be repeated, its client knows.
Every wait but for a name can be cut short from another thread (`UpstreamConnection.cut`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPResponse, IncompleteRead, RemoteDisconnected, responses

from ..errors import BadArgument
from ..remote.sandbox.http1 import Refusal
from ..remote.wire.streams import Reset
from .policy import Address, Headers, Limits, incoming

_CHUNK = 64 * 1024
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
# Without a body, these are sent with a length of 0.
_WITH_BODY = ("POST", "PUT", "PATCH")


class UpstreamConnection:
    """The connection that one exchange has upstream, so that others can cut it."""

    def __init__(self) -> None:
        # Held while the socket is shut down, so that it isn't closed meanwhile and its number another's.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cut = False

    def hold(self, connection: socket.socket) -> None:
        """This is the connection now. Raises Reset where it has been cut before."""
        with self._lock:
            self._socket = connection
            if self._cut:
                raise Reset("cut")

    def cut(self) -> None:
        """Break the connection, now or when there is one. From any thread; waits for nothing."""
        with self._lock:
            self._cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Not TLS's own shutdown, which takes the encryption from under whoever reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def release(self) -> None:
        """The exchange is over, or its connection about to be closed."""
        with self._lock:
            self._socket = None


class UpstreamResponse:
    """An upstream's answer. `length`: bytes of its body, None where it doesn't say."""

    def __init__(
        self, upstream: Upstream, connection: HTTPConnection, held: UpstreamConnection, response: HTTPResponse
    ) -> None:
        self._upstream = upstream
        self._connection = connection
        self._held = held
        self._response = response
        self.status = response.status
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
            return self._response.read1(_CHUNK)
        except Exception as error:
            raise self._upstream.refusal(error) from None

    def close(self, *, whole: bool) -> None:
        """Keep the connection for another request; or close it, unless all of the answer was read."""
        self._held.release()
        if whole and not self._response.will_close:
            # Nothing comes any more: this is how the connection learns that it is free.
            self._response.read()
            self._upstream.keep(self._connection)
        else:
            self._response.close()
            self._connection.close()


class Upstream:
    """Asks `address`, within the timeouts of `limits`: its `read_timeout` is between any two parts of an answer."""

    def __init__(self, address: Address, limits: Limits, ca_file: str | os.PathLike[str] | None) -> None:
        self.address = address
        self._limits = limits
        self._tls = _trust(ca_file) if address.scheme == "https" else None
        # Guards what follows.
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._closed = False

    def ask(
        self,
        held: UpstreamConnection,
        method: str,
        target: str,
        headers: Headers,
        body: Iterable[bytes],
        length: int | None,
    ) -> UpstreamResponse:
        """Send a request, and return when the head of the answer is there. `length`: None for a chunked body.

        Raises:
            Refusal: there is no answer, and why.
            Whatever `body` raises.
        """
        connection = self._idle_connection() or HTTPConnection(self.address.host, self.address.port)
        try:
            if connection.sock is None:
                connection.sock = self._connected(held)
            else:
                held.hold(connection.sock)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # An upstream may hang up on a request that it has answered already.
                self._send(connection, method, target, headers, body, length)
            response = connection.getresponse()
            if response.status < 200:
                raise Refusal(502, f"{self.address} answered with status {response.status}, which ends no request")
        except BaseException as error:
            held.release()
            connection.close()
            if isinstance(error, Exception) and not isinstance(error, (Refusal, Reset)):
                raise self.refusal(error) from None
            raise
        return UpstreamResponse(self, connection, held, response)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        headers: Headers,
        body: Iterable[bytes],
        length: int | None,
    ) -> None:
        connection.putrequest(method, self.address.prefix + target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("host", self.address.authority)
        for name, value in headers:
            connection.putheader(name, value)
        # Text is readable in records, and a key in it can be hidden.
        connection.putheader("accept-encoding", "identity")
        if length is None:
            connection.putheader("transfer-encoding", "chunked")
        elif length or method in _WITH_BODY:
            connection.putheader("content-length", str(length))
        try:
            connection.endheaders()
            for piece in body:
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if length is None else piece)
            if length is None:
                connection.send(b"0\r\n\r\n")
        except TimeoutError:
            raise Refusal(504, f"{self.address} took nothing for {self._limits.read_timeout:g} s") from None

    def refusal(self, error: Exception) -> Refusal:
        """What the sandbox is told of an error."""
        where = str(self.address)
        if isinstance(error, OSError) and (error.errno in _TOO_MANY or _too_many_open()):
            return Refusal(503, "the tunnel's host has too many open files: raise `ulimit -n` there")
        if isinstance(error, TimeoutError):
            return Refusal(504, f"{where} sent nothing for {self._limits.read_timeout:g} s")
        if isinstance(error, socket.gaierror):
            return Refusal(502, f"the name of {where} can't be resolved: {error.strerror}")
        if isinstance(error, ssl.SSLCertVerificationError):
            return Refusal(502, f"the certificate of {where} is not trusted: {error.verify_message}")
        if isinstance(error, RemoteDisconnected):
            return Refusal(502, f"{where} closed the connection without an answer")
        if isinstance(error, IncompleteRead):
            return Refusal(502, f"{where} closed the connection inside its answer")
        if isinstance(error, OSError):
            return Refusal(502, f"the connection to {where} failed: {error.strerror or type(error).__name__}")
        return Refusal(502, f"what {where} answered is not valid HTTP: {type(error).__name__}")

    # --- connections ---

    def _idle_connection(self) -> HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                return connection
            # The upstream has hung up, or says something that it was not asked.
            connection.close()

    def keep(self, connection: HTTPConnection) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._idle.append(connection)
        if closed:
            connection.close()

    def close(self) -> None:
        """Close the idle connections, and keep no more."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connected(self, held: UpstreamConnection) -> socket.socket:
        """A new connection, TLS and all."""
        failed: OSError = OSError("no address")
        address = self.address
        for family, kind, protocol, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            new = socket.socket(family, kind, protocol)
            try:
                held.hold(new)
                new.settimeout(self._limits.connect_timeout)
                new.connect(where)
                new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    # Held before it waits: TLS takes the first socket's descriptor away.
                    new = self._tls.wrap_socket(
                        new, server_hostname=address.host.rstrip("."), do_handshake_on_connect=False
                    )
                    held.hold(new)
                    new.do_handshake()
                new.settimeout(self._limits.read_timeout)
                return new
            except BaseException as error:
                held.release()
                new.close()
                if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
                    raise
                failed = error
        if isinstance(failed, TimeoutError):
            raise Refusal(504, f"no connection to {address} in {self._limits.connect_timeout:g} s")
        raise failed


def _too_many_open() -> bool:
    """Whether this process can open nothing more: looking a name up tells something else then."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in _TOO_MANY
    return False


def _trust(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Certificates are checked against `ca_file`, else against the system's authorities, else against certifi's."""
    try:
        context = ssl.create_default_context(cafile=os.fspath(ca_file) if ca_file is not None else None)
    except (OSError, TypeError, ValueError) as error:
        raise BadArgument(f"the tunnel's ca_file {ca_file!r} can't be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    paths = ssl.get_default_verify_paths()
    if ca_file is None and paths.cafile is None and paths.capath is None:
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
