"""One request through a tunnel and its answer, on the host: checked, sent upstream, relayed as it comes, accounted for.

Runs in a thread of its own. What the sandbox sees of an answer's end, it sees after usage and record have been
written: whoever has read an answer finds them there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import asdict

from ..remote.sandbox.http1 import Refusal
from ..remote.wire.frames import Closed, FrameError
from ..remote.wire.streams import Reset, Stalled, Stream
from ..text import is_secret_header
from .policy import Headers, Limits, RequestHead, check_request, outgoing
from .record import BodyCopy, Inflater, Record
from .secrets import SecretFilter
from .upstream import Upstream, UpstreamConnection, UpstreamResponse
from .usage import Usage, UsageReader

_log = logging.getLogger("agentix_runner.tunnel")

_PIECE = 64 * 1024


class Account:
    """What the exchanges of a tunnel share: its limits and own headers, what was used of it, and its record."""

    def __init__(
        self,
        limits: Limits,
        headers: Mapping[str, str | None],
        labels: Mapping[str, str] | None,
        record: Record | None,
    ) -> None:
        self.limits = limits
        self.headers = headers
        self.secrets = SecretFilter(headers)
        self.labels = {"labels": dict(labels)} if labels else {}
        self.record = record
        # Guards what follows.
        self._lock = threading.Lock()
        self._body_bytes = 0
        self.usage = Usage()
        self.unrecorded = 0

    def spend(self, size: int) -> None:
        """Count bytes of a body. Raises Refusal where there are too many."""
        with self._lock:
            self._body_bytes += size
            if self._body_bytes > self.limits.max_total_bytes:
                raise Refusal(403, f"max_total_bytes, {self.limits.max_total_bytes}, are used up")

    def add(self, usage: Usage) -> None:
        """Count what an answer has reported."""
        with self._lock:
            self.usage += usage

    def append(self, record: Record, entry: dict[str, Any]) -> None:
        """Append an exchange to the record."""
        try:
            record.append(entry)
        except OSError as error:
            with self._lock:
                self.unrecorded += 1
            _log.error("an exchange could not be appended to %s: %s", record.path, error)

    def shown(self, headers: Headers) -> Headers:
        """Headers as a record may show them."""
        return [(name, self.secrets.hide_text(value)) for name, value in headers if not is_secret_header(name)]


class Exchange:
    """The exchange with `upstream` on `stream`, which begins with a head of these `lines`."""

    def __init__(self, upstream: Upstream, account: Account, stream: Stream, lines: list[str]) -> None:
        self.stream = stream
        self._upstream = upstream
        self._account = account
        self._limits = account.limits
        self._lines = lines
        self._connection = UpstreamConnection()
        self._answering = False
        self._recorded = False
        self._began = 0.0
        # What is known of it so far, as it goes into the record.
        self._entry: dict[str, Any] = {}
        copied = account.limits.max_record_bytes if account.record is not None else 0
        self._sent = BodyCopy(copied)
        self._received = BodyCopy(copied)
        self._usage: UsageReader | None = None

    def cancel(self, why: str) -> None:
        """End it, wherever it is. From any thread; waits for nothing."""
        self.stream.give_up(why)
        self._connection.cut()

    def run(self) -> None:
        """All of it. Raises nothing."""
        self._began = time.perf_counter()
        self._entry = {"time": time.time(), **self._account.labels, "method": None, "path": None, "status": None}
        try:
            try:
                self._run()
            except Refusal as refusal:
                self._refuse(refusal)
        except Closed:
            self._record("the sandbox is gone")
        except Reset as reset:
            self._reset(str(reset), str(reset))
        except Exception as error:
            _log.exception("a request through the tunnel to %s failed", self._upstream.address)
            self._reset(f"internal: {type(error).__name__}", "internal error of the tunnel")

    def _run(self) -> None:
        request = check_request(self._lines)
        self._entry |= {"method": request.method, "path": request.target}
        response = self._ask(request)
        whole = False
        try:
            rest = self._relay(request, response)
            # A connection with something unsent is not good for another request.
            whole = request.length == 0 or self.stream.is_whole()
        finally:
            response.close(whole=whole)
        # Last: whoever has read an answer finds it accounted for, and its connection free.
        self._record()
        self._send(rest, end=True)

    def _refuse(self, refusal: Refusal) -> None:
        """The tunnel's own answer. Raises Reset where nobody waits for it: then the cause may be just that."""
        self.stream.check()
        refusal = Refusal(refusal.status, self._account.secrets.hide_text(refusal.message))
        if self._answering:
            # A head is out: all that is left is to break off.
            raise Reset(refusal.message)
        self._entry["status"] = refusal.status
        self._record(refusal.message)
        body = refusal.body()
        self._send_head(refusal.status, refusal.reason, len(body), refusal.headers())
        self._send(body, end=True)

    def _reset(self, error: str, told: str) -> None:
        self._record(error)
        with contextlib.suppress(Closed):
            self.stream.send_reset(told)

    # --- the request ---

    def _ask(self, request: RequestHead) -> UpstreamResponse:
        account, limit = self._account, self._limits.max_request_bytes
        account.spend(0)
        if request.length is not None and request.length > limit:
            raise Refusal(413, f"a request of {request.length} bytes; max_request_bytes is {limit}")
        if account.record is not None:
            own = {name.lower() for name in account.headers}
            theirs = [header for header in request.headers if header[0].lower() not in own]
            self._entry["request_headers"] = account.shown(theirs)
        headers = outgoing(request.headers, account.headers)
        return self._upstream.ask(
            self._connection, request.method, request.target, headers, self._body(request), request.length
        )

    def _body(self, request: RequestHead) -> Iterator[bytes]:
        length, limit = request.length, self._limits.max_request_bytes
        # A body of no length is sent in no frame.
        while length != 0:
            try:
                data = self.stream.read(self._limits.read_timeout)
            except Stalled:
                timeout = self._limits.read_timeout
                raise Refusal(408, f"nothing came of a request's body for {timeout:g} s") from None
            if not data:
                break
            self._sent.feed(data)
            self._account.spend(len(data))
            if length is not None and self._sent.size > length:
                raise Reset("a request's body is longer than it says")
            if self._sent.size > limit:
                raise Refusal(413, f"a request's body is over max_request_bytes, {limit}")
            # In small pieces: what is sent at once must be taken within the timeout.
            yield from (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        if length is not None and self._sent.size < length:
            raise Reset("a request's body is shorter than it says")

    # --- the answer ---

    def _relay(self, request: RequestHead, response: UpstreamResponse) -> bytes:
        """Send the answer on, all but its last part, which is returned."""
        account, limit = self._account, self._limits.max_response_bytes
        self._entry |= {"status": response.status, "first_byte_s": self._elapsed()}
        if account.record is not None:
            self._entry["response_headers"] = account.shown(response.headers)
        if response.length is not None and response.length > limit and request.method != "HEAD":
            raise Refusal(502, f"an answer of {response.length} bytes; max_response_bytes is {limit}")
        headers = [(name, account.secrets.hide_text(value)) for name, value in response.headers]
        try:
            self._send_head(response.status, response.reason, response.length, headers)
        except FrameError:
            raise Refusal(502, f"{self._upstream.address} answered with headers that are too large") from None
        bodyless = request.method == "HEAD" or response.status in (204, 304)
        return self._relay_body(response, 0 if bodyless else response.length)

    def _relay_body(self, response: UpstreamResponse, length: int | None) -> bytes:
        limit = self._limits.max_response_bytes
        inflater = Inflater(response.header("content-encoding"))
        # What is compressed can't be searched; it can only be said that it was not asked for.
        secrets = self._account.secrets.stream() if inflater.plain else None
        self._usage = UsageReader(response.header("content-type"))
        received = 0
        rest = b""
        while received != length and (data := response.read()):
            received += len(data)
            self._account.spend(len(data))
            if received > limit:
                raise Refusal(502, f"an answer is over max_response_bytes, {limit}")
            for piece in inflater.feed(data):
                self._usage.feed(piece)
                self._received.feed(piece)
            if secrets is not None:
                data = secrets.feed(data)
            if received == length:
                rest = data
            elif data:
                self._send(data)
        if length is not None and received < length:
            raise Refusal(502, f"{self._upstream.address} closed the connection inside its answer")
        if secrets is not None:
            rest += secrets.feed(b"", last=True)
        return rest

    # --- both ---

    def _send_head(self, status: int, reason: str, length: int | None, headers: Headers) -> None:
        lines = [str(status), reason, "" if length is None else str(length)]
        for name, value in headers:
            lines += (name, value)
        self.stream.send_head(lines)
        self._answering = True

    def _send(self, data: bytes, *, end: bool = False) -> None:
        try:
            self.stream.send(data, end=end, timeout=self._limits.read_timeout)
        except Stalled:
            raise Reset("the client does not read its answer") from None

    def _elapsed(self) -> float:
        return round(time.perf_counter() - self._began, 6)

    def _record(self, error: str | None = None) -> None:
        """Account for it, once: the first to come knows how it ended."""
        if self._recorded:
            return
        self._recorded = True
        account, entry = self._account, self._entry
        usage = self._usage.usage() if self._usage is not None else None
        if usage is not None:
            account.add(usage)
        if error is not None:
            _log.debug("tunnel to %s: %s", self._upstream.address, error)
        if account.record is None:
            return
        entry["latency_s"] = self._elapsed()
        if entry["path"]:
            entry["path"] = account.secrets.hide_text(entry["path"])
        entry |= self._sent.entry("request", account.secrets.hide)
        entry |= self._received.entry("response", account.secrets.hide)
        if usage is not None and usage != Usage(requests=1):
            entry["usage"] = asdict(usage, filter=lambda attribute, value: attribute.name != "requests")
        if error is not None:
            entry["error"] = account.secrets.hide_text(error)
        account.append(account.record, entry)
