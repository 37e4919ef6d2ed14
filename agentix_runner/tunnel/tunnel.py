"""A tunnel from a sandbox to one model API, over the wire that is there: the sandbox needs no network, and no key.

On the host. `Tunnel` is what users hold: it gives each request a thread, a limited number of them. `Tunnels` are those
of one sandbox, and are handed its frames.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from attrs import fields

from ..errors import BadArgument, SandboxError
from ..remote.host.connection import Connection
from ..remote.sandbox import worker
from ..remote.wire import frames
from ..remote.wire.frames import Frame
from ..remote.wire.streams import Stream, unpack_head
from ..threads import bounded, make_room
from .exchange import Account, Exchange
from .policy import Address, Limits, check_headers
from .record import Record
from .upstream import Upstream
from .usage import Usage

_log = logging.getLogger("agentix_runner.tunnel")

# How long (seconds) the sandbox's end may take to close, and the requests under way to end.
_CLOSE_S = 5.0


class Tunnel:
    """A way from a sandbox to one upstream. `with tunnel as url:` opens it, once; `url` is to be used in the sandbox.

    Use `sandbox.tunnel(...)` to make one.

    Args:
        upstream: `https://host`, with a port or the beginning of a path if need be. A path asked for in the sandbox is
            put behind it.
        headers: sent with each request, in place of the sandbox's own of that name. None as a value: a header of that
            name is never sent.
        record: a file to which each exchange is appended as a line of JSON. Many tunnels may share one.
        ca_file: trust the authorities in this file, and no others.
        limits: fields of `Limits`.

    Raises:
        BadArgument: one of these won't do.
    """

    def __init__(
        self,
        connection: Connection,
        tunnels: Tunnels,
        upstream: str,
        *,
        headers: Mapping[str, str | None] | None = None,
        record: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        **limits: Any,
    ) -> None:
        known = [one.name for one in fields(Limits)]
        for name in limits:
            if name not in known:
                raise BadArgument(f"tunnel() has no argument {name!r}: there are headers, record, ca_file, {known}")
        self.address = Address.of(upstream)
        self.limits = Limits(**limits)
        self._record = None if record is None else Record(record)
        self._account = Account(self.limits, check_headers(headers), connection.labels, self._record)
        self._upstream = Upstream(self.address, self.limits, ca_file)
        self._connection = connection
        self._tunnels = tunnels
        self._number = 0
        # Guards what follows.
        self._changed = threading.Condition()
        self._entered = False
        self._closed = False
        self._running: set[Exchange] = set()
        self._waiting: deque[Exchange] = deque()

    def __repr__(self) -> str:
        return f"<Tunnel to {self.address}>"

    @property
    def usage(self) -> Usage:
        """What went through so far, also after the tunnel is closed. An answer that was read to its end is in it."""
        return self._account.usage

    @property
    def unrecorded(self) -> int:
        """How many exchanges could not be written to the record (each is logged)."""
        return self._account.unrecorded

    # --- opening and closing ---

    def __enter__(self) -> str:
        """Open it. The URL is `http://127.0.0.1:PORT`.

        Raises:
            BadArgument: the record can't be written, or the tunnel has been opened before.
            SandboxDied: the sandbox has ended.
        """
        with self._changed:
            if self._entered:
                raise BadArgument("this tunnel has been opened before: make another one with sandbox.tunnel()")
            self._entered = True
        # A record, and for each request a connection and what looking a name up takes.
        make_room(n_loops=0, n_sessions=1, per_session=1 + 2 * self.limits.max_concurrent)
        if self._record is not None:
            self._record.open()
        try:
            self._number = self._tunnels.add(self)
            port = self._connection.remote(worker.open_tunnel, self._number, self.limits.max_concurrent)
        except BaseException:
            self.close()
            raise
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it: what is under way ends, on both sides. Bounded; raises nothing; does nothing the second time."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        if self._number and not self._tunnels.over:
            bounded("closing a tunnel in its sandbox", self._close_listener, _CLOSE_S)
        self._tunnels.remove(self._number)
        self.cancel("the tunnel is closed")
        with self._changed:
            self._changed.wait_for(lambda: not self._running, _CLOSE_S)
            busy = len(self._running)
        self._upstream.close()
        if busy:
            _log.warning("%d requests through the tunnel to %s do not end; they are left behind", busy, self.address)
        elif self._record is not None:
            self._record.close()

    def _close_listener(self) -> None:
        try:
            self._connection.remote(worker.close_tunnel, self._number)
        except SandboxError as error:
            _log.debug("the sandbox of a tunnel is gone already: %s", error)

    # --- its requests ---

    def exchange(self, stream: Stream, lines: list[str]) -> Exchange:
        """A request, which `begin` begins."""
        return Exchange(self._upstream, self._account, stream, lines)

    def begin(self, exchange: Exchange) -> bool:
        """Give a request a thread, now or when one is free. False: there are far too many. For the reader."""
        with self._changed:
            if self._closed or len(self._waiting) >= self.limits.max_concurrent:
                return False
            if len(self._running) >= self.limits.max_concurrent:
                self._waiting.append(exchange)
                return True
            self._running.add(exchange)
        try:
            threading.Thread(target=self._work, args=(exchange,), name="agentix-tunnel", daemon=True).start()
        except RuntimeError as error:
            _log.error("no thread for a request through a tunnel: %s", error)
            with self._changed:
                self._running.discard(exchange)
            return False
        return True

    def withdraw(self, exchange: Exchange) -> None:
        """The sandbox has given this request up, or broken the rules. For the reader."""
        exchange.cancel("the client is gone")
        with self._changed:
            waited = exchange in self._waiting
            if waited:
                self._waiting.remove(exchange)
        if waited:
            self._tunnels.forget(exchange)

    def cancel(self, why: str) -> None:
        """End all requests under way. From any thread; waits for nothing."""
        with self._changed:
            running, waiting = list(self._running), list(self._waiting)
            self._waiting.clear()
        for exchange in running:
            exchange.cancel(why)
        for exchange in waiting:
            self._tunnels.forget(exchange)

    def _work(self, first: Exchange) -> None:
        exchange: Exchange | None = first
        while exchange is not None:
            try:
                exchange.run()
            finally:
                self._tunnels.forget(exchange)
                with self._changed:
                    self._running.discard(exchange)
                    exchange = self._waiting.popleft() if self._waiting else None
                    if exchange is not None:
                        self._running.add(exchange)
                    self._changed.notify_all()


class Tunnels:
    """The tunnels of one sandbox, which handle its connection's frames of other streams. `put` sends it a frame."""

    def __init__(self, put: Callable[[Frame], None]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._last = 0
        self._tunnels: dict[int, Tunnel] = {}
        self._exchanges: dict[int, tuple[Tunnel, Exchange]] = {}
        self.over = False
        """Whether the sandbox has ended."""

    def add(self, tunnel: Tunnel) -> int:
        """Take frames for this one from now on. Returns its number."""
        with self._lock:
            self._last += 1
            self._tunnels[self._last] = tunnel
            return self._last

    def remove(self, number: int) -> None:
        """Take no new requests for a tunnel."""
        with self._lock:
            self._tunnels.pop(number, None)

    def forget(self, exchange: Exchange) -> None:
        """An exchange is over."""
        with self._lock:
            self._exchanges.pop(exchange.stream.number, None)

    def take(self, frame: Frame) -> None:
        """Take a frame from the sandbox, which may be anything. Never waits. For the reader."""
        with self._lock:
            found = self._exchanges.get(frame.stream)
        if found is None:
            if frame.kind == frames.HEAD:
                self._open(frame)
            return
        tunnel, exchange = found
        if not exchange.stream.take(frame):
            tunnel.withdraw(exchange)

    def _open(self, frame: Frame) -> None:
        number, *lines = unpack_head(frame.payload)
        with self._lock:
            tunnel = self._tunnels.get(int(number)) if re.fullmatch(r"[0-9]{1,9}", number) else None
            if tunnel is None or self.over:
                return
            exchange = tunnel.exchange(Stream(frame.stream, self._put), lines)
            self._exchanges[frame.stream] = tunnel, exchange
        if not tunnel.begin(exchange):
            self.forget(exchange)

    def cancel(self) -> None:
        """The sandbox has ended. From any thread; waits for nothing."""
        with self._lock:
            self.over = True
            tunnels = list(self._tunnels.values())
        for tunnel in tunnels:
            tunnel.cancel("the sandbox is gone")

    def close(self) -> None:
        """Close those that are still open, when the sandbox has ended."""
        for tunnel in list(self._tunnels.values()):
            tunnel.close()
