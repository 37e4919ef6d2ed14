"""What the engine tells of the ends of containers: their exit codes, and where memory ran out.

A container that removes itself is gone before anybody could ask. So one stream of events, for all containers of one
provider, is open while there are any; a daemon thread reads it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

_log = logging.getLogger("agentix_runner.providers.docker")

_JOIN_S = 10.0
# docker's words, and podman's own, which it filters by and partly tells.
_ENDS = ("die", "died")
_REMOVALS = ("destroy", "remove")


class Watch:
    """What is known of one container's end."""

    def __init__(self, name: str, events: Events) -> None:
        self.name = name
        self.exit_code: int | None = None
        self.ended = False
        self.gone = False
        self.out_of_memory = False
        self._events = events

    def exit_of(self, timeout: float) -> tuple[int | None, bool]:
        """Wait up to `timeout` seconds for the end: the exit code, None where it isn't known; did memory run out."""
        self._events.wait(lambda: self.ended, timeout)
        return self.exit_code, self.out_of_memory

    def is_gone(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until it has removed itself. False where it has not, or nobody tells."""
        self._events.wait(lambda: self.gone, timeout)
        return self.gone


class Events:
    """The stream. `open` and `close` are called by one thread at a time."""

    def __init__(self, api: Any, label: str) -> None:
        self._api = api
        self._label = label
        self._told = threading.Condition()
        self._watches: dict[str, Watch] = {}
        self._stream: Any = None
        self._thread: threading.Thread | None = None
        self._alive = False

    @property
    def alive(self) -> bool:
        """Whether the stream is open. It ends with the engine."""
        return self._alive

    def open(self) -> None:
        """Listen from now on. Raises what docker-py raises."""
        self.close()
        filters = {"type": "container", "event": [*_ENDS, *_REMOVALS, "oom"], "label": self._label}
        self._stream = self._api.events(filters=filters, decode=True)
        with contextlib.suppress(AttributeError):
            # The limit was for the answer to begin; there may be nothing to tell for hours.
            self._stream._response.raw._fp.fp.raw._sock.settimeout(None)
        self._alive = True
        thread = threading.Thread(target=self._listen, args=(self._stream,), name="agentix-events", daemon=True)
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """Hang up, and wait for the thread."""
        stream, self._stream = self._stream, None
        if stream is not None:
            # docker-py raises whatever its layers below make of a stream that has ended by itself.
            with contextlib.suppress(Exception):
                stream.close()
            with contextlib.suppress(Exception):
                stream._response.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_S)

    def watch(self, container: str, name: str) -> Watch:
        """Remember what is told of the container with this id, until `forget`."""
        watch = Watch(name, self)
        with self._told:
            self._watches[container] = watch
        return watch

    def forget(self, container: str) -> None:
        with self._told:
            self._watches.pop(container, None)

    def wait(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait until `condition()` holds, for at most `timeout` seconds, and no longer than anything is told."""
        with self._told:
            self._told.wait_for(lambda: condition() or not self._alive, timeout)

    def _listen(self, stream: Any) -> None:
        try:
            for event in stream:
                self._take(event)
        except Exception as error:
            if stream is self._stream:
                _log.debug("the stream of events ended: %s", error)
        finally:
            with self._told:
                self._alive = False
                self._told.notify_all()

    def _take(self, event: Mapping[str, Any]) -> None:
        action, actor = event.get("Action"), event.get("Actor") or {}
        with self._told:
            watch = self._watches.get(actor.get("ID", ""))
            if watch is None:
                return
            if action == "oom":
                watch.out_of_memory = True
            else:
                code = (actor.get("Attributes") or {}).get("exitCode")
                if action in _ENDS and code is not None:
                    watch.exit_code = int(code)
                watch.ended = True
                watch.gone = watch.gone or action in _REMOVALS
            self._told.notify_all()
        if action == "oom":
            _log.warning("memory ran out in sandbox %s: the system killed a process there", watch.name)
