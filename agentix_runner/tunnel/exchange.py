"""One request through a tunnel and its answer, on the host: checked, sent upstream, relayed as it comes, accounted for.

Runs in a thread of its own. What the sandbox sees of an answer's end, it sees after usage and record have been
written: whoever has read an answer finds them there.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attrs import asdict

from ..remote.sandbox.http1 import Refusal
from ..remote.wire.frames import FrameError
from ..remote.wire.outbox import Closed
from ..remote.wire.streams import Reset, Stalled, Stream
from .policy import Asked, Headers, check_request, outgoing
from .record import Copy, Inflater
from .secrets import is_secret
from .upstream import Answer, Line
from .usage import Meter, Usage

if TYPE_CHECKING:
    from .tunnel import Tunnel

_log = logging.getLogger("agentix_runner.tunnel")

_PIECE = 64 * 1024
_INFLATED_LIMIT = 64 * 1024 * 1024


class Exchange:
    """The exchange of `tunnel` on `stream`, which begins with a head of these `lines`."""

    def __init__(self, tunnel: Tunnel, stream: Stream, lines: list[str]) -> None:
        self.stream = stream
        self._tunnel = tunnel
        self._lines = lines
        self._line = Line()
        self._entry: dict[str, Any] = {}
        self._sent = Copy(tunnel.limits.max_record_bytes if tunnel.records else 0)
        self._got = Copy(tunnel.limits.max_record_bytes if tunnel.records else 0)
        self._meter: Meter | None = None
        self._sending: Iterator[bytes] | None = None
        self._began = 0.0
        self._settled = False

    def cancel(self, why: str) -> None:
        """End it, wherever it is. From any thread; waits for nothing."""
        self.stream.give_up(why)
        self._line.cut()

    def run(self) -> None:
        """All of it. Raises nothing."""
        self._began = time.perf_counter()
        self._entry = {"time": time.time(), **self._tunnel.about, "method": None, "path": None, "status": None}
        try:
            self._run()
        except Closed:
            self._settle("the sandbox is gone")
        except Reset as reset:
            self._settle(str(reset))
            with contextlib.suppress(Closed):
                self.stream.send_reset(str(reset))
        except Exception as error:
            _log.exception("a request through the tunnel to %s failed", self._tunnel.address)
            self._settle(f"internal: {type(error).__name__}")
            with contextlib.suppress(Closed):
                self.stream.send_reset("internal error of the tunnel")
        finally:
            self._line.let_go()

    def _run(self) -> None:
        try:
            asked = check_request(self._lines)
            self._entry |= {"method": asked.method, "path": asked.target}
            answer = self._ask(asked)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        whole = False
        try:
            # A connection with something unread, or unsent, is no good for another request.
            whole = self._relay(asked, answer) and self.stream.is_whole()
        finally:
            answer.close(whole=whole)

    def _refuse(self, refusal: Refusal) -> None:
        """The tunnel's own answer. Raises Reset where nobody waits for it: then the cause may be just that."""
        self.stream.check()
        refusal = Refusal(refusal.status, self._tunnel.mask.hide_text(refusal.message))
        self._settle(refusal.message, status=refusal.status)
        self._send_head(refusal.status, refusal.reason, len(body := refusal.body()), refusal.headers())
        self._send(body, end=True)

    # --- the request ---

    def _ask(self, asked: Asked) -> Answer:
        tunnel, limits = self._tunnel, self._tunnel.limits
        tunnel.spend(0)
        if asked.length is not None and asked.length > limits.max_request_bytes:
            raise Refusal(413, f"a request of {asked.length} bytes; max_request_bytes is {limits.max_request_bytes}")
        headers = outgoing(asked.headers, tunnel.headers)
        if tunnel.records:
            own = {name.lower() for name in tunnel.headers}
            self._entry["request_headers"] = self._shown([h for h in asked.headers if h[0].lower() not in own])
        # Anything else would be read as a request without a body, and the rest as another request.
        self._sending = None if asked.length == 0 else self._body(asked)
        return tunnel.upstream.ask(self._line, asked.method, asked.target, headers, self._sending, asked.length)

    def _body(self, asked: Asked) -> Iterator[bytes]:
        limits = self._tunnel.limits
        while True:
            try:
                data = self.stream.read(limits.read_timeout)
            except Stalled:
                raise Refusal(408, f"nothing came of a request's body for {limits.read_timeout:g} s") from None
            if not data:
                break
            self._sent.feed(data)
            self._tunnel.spend(len(data))
            if asked.length is not None and self._sent.size > asked.length:
                raise Reset("a request's body is longer than it says")
            if self._sent.size > limits.max_request_bytes:
                raise Refusal(413, f"a request's body is over max_request_bytes, {limits.max_request_bytes}")
            # In small pieces: what is sent at once must be taken within the timeout.
            yield from (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        if asked.length is not None and self._sent.size < asked.length:
            raise Reset("a request's body is shorter than it says")

    # --- the answer ---

    def _relay(self, asked: Asked, answer: Answer) -> bool:
        """Send the answer on. Whether all of it was read."""
        tunnel, limits = self._tunnel, self._tunnel.limits
        self._entry |= {"status": answer.status, "first_byte_s": self._elapsed()}
        if tunnel.records:
            self._entry["response_headers"] = self._shown(answer.headers)
        if answer.length is not None and answer.length > limits.max_response_bytes and asked.method != "HEAD":
            text = f"an answer of {answer.length} bytes; max_response_bytes is {limits.max_response_bytes}"
            self._refuse(Refusal(502, text))
            return False
        headers = [(name, tunnel.mask.hide_text(value)) for name, value in answer.headers]
        try:
            self._send_head(answer.status, answer.reason, answer.length, headers)
        except FrameError:
            self._refuse(Refusal(502, f"{tunnel.address} answered with headers that are too large"))
            return False
        try:
            self._relay_body(asked, answer)
        except Refusal as refusal:
            self.stream.check()
            # The head is out: all that is left is to break off.
            raise Reset(tunnel.mask.hide_text(refusal.message)) from None
        return True

    def _relay_body(self, asked: Asked, answer: Answer) -> None:
        tunnel, limits = self._tunnel, self._tunnel.limits
        coding = Inflater(answer.header("content-encoding"), _INFLATED_LIMIT)
        self._meter = Meter(answer.header("content-type"))
        masked = tunnel.mask.stream() if coding.plain else None
        left = 0 if asked.method == "HEAD" or answer.status in (204, 304) else answer.length
        received = 0
        data = b""
        while left != 0 and (data := answer.read()):
            received += len(data)
            tunnel.spend(len(data))
            if received > limits.max_response_bytes:
                raise Refusal(502, f"an answer is over max_response_bytes, {limits.max_response_bytes}")
            for piece in coding.feed(data) if coding.known else ():
                self._meter.feed(piece)
                self._got.feed(piece)
            if not coding.known:
                self._got.feed(data)
            if left is not None:
                left -= len(data)
            if masked is not None:
                data = masked.feed(data)
            if data and left != 0:
                self._send(data)
        rest = (data if left == 0 else b"") + (masked.feed(b"", last=True) if masked is not None else b"")
        if left:
            raise Refusal(502, f"{tunnel.address} closed the connection inside its answer")
        self._settle()
        self._send(rest, end=True)

    # --- both ---

    def _send_head(self, status: int, reason: str, length: int | None, headers: Headers) -> None:
        lines = [str(status), reason, "" if length is None else str(length)]
        for name, value in headers:
            lines += (name, value)
        self.stream.send_head(lines)

    def _send(self, data: bytes, *, end: bool = False) -> None:
        try:
            self.stream.send(data, end=end, timeout=self._tunnel.limits.read_timeout)
        except Stalled:
            raise Reset("the client does not read its answer") from None

    def _elapsed(self) -> float:
        return round(time.perf_counter() - self._began, 6)

    def _shown(self, headers: Headers) -> Headers:
        """Headers as a record may show them."""
        hide = self._tunnel.mask.hide_text
        return [(name, hide(value)) for name, value in headers if not is_secret(name)]

    def _settle(self, error: str | None = None, *, status: int | None = None) -> None:
        """Account for it, once. `status` is that of the tunnel's own answer."""
        if self._settled:
            return
        self._settled = True
        usage = self._meter.usage() if self._meter is not None else None
        if usage is not None:
            self._tunnel.add(usage)
        if error is not None:
            _log.debug("tunnel to %s: %s", self._tunnel.address, error)
        if not self._tunnel.records:
            return
        hide = self._tunnel.mask.hide
        entry = {**self._entry, "latency_s": self._elapsed()}
        if status is not None:
            entry["status"] = status
        if entry["path"]:
            entry["path"] = self._tunnel.mask.hide_text(entry["path"])
        entry |= self._sent.entry("request", hide)
        entry |= self._got.entry("response", hide)
        if usage is not None and usage != Usage(requests=1):
            entry["usage"] = asdict(usage, filter=lambda attribute, value: attribute.name != "requests")
        if error is not None:
            entry["error"] = self._tunnel.mask.hide_text(error)
        self._tunnel.note(entry)
