"""Threads that don't keep the process from exiting, bounded calls, and room for file descriptors."""

from __future__ import annotations

import functools
import logging
import os
import queue
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .errors import BadArgument

logger = logging.getLogger("agentix_runner")


class DaemonExecutor(ThreadPoolExecutor):
    """A loop's default executor whose threads don't keep the process from exiting.

    The standard one joins its threads at exit: one `asyncio.to_thread` that never returns, in a rollout that was
    abandoned, would block the exit for good. (Loops insist on a subclass of ThreadPoolExecutor.)
    """

    IDLE_S = 10.0
    """How long (seconds) a thread without work stays."""

    def __init__(self, max_threads: int = 32) -> None:
        super().__init__(max_workers=1)  # never used: `submit` is our own
        self._max_threads = max_threads
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._unclaimed = 0  # threads that wait, less the work that waits for them
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._work.put((future, functools.partial(fn, *args, **kwargs)))
            self._unclaimed -= 1
            if self._unclaimed < 0 and self._count < self._max_threads:
                self._count += 1
                self._unclaimed += 1
                threading.Thread(target=self._serve, name="agentix-to-thread", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            try:
                item = self._work.get(timeout=self.IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._unclaimed <= 0:
                        continue  # work came in at this very moment
                    self._count -= 1
                    self._unclaimed -= 1
                    return
            if item is None:
                return
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as exc:
                    future.set_exception(exc)
            del item, future, call
            with self._lock:
                self._unclaimed += 1

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the idle threads go. Busy ones end after their work; nobody waits for them."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._count):
                self._work.put(None)


def bounded(what: str, fn: Callable[[], Any], limit_s: float) -> bool:
    """Run `fn` in a daemon thread, for at most `limit_s` seconds. Whether it came to its end.

    For calls into a provider from a thread that must not get stuck in them. Its errors are logged.
    """

    def run() -> None:
        try:
            fn()
        except Exception:
            logger.warning("%s failed", what, exc_info=True)

    thread = threading.Thread(target=run, name="agentix-bounded", daemon=True)
    thread.start()
    started = time.monotonic()
    thread.join(limit_s)
    if thread.is_alive():
        logger.warning("%s did not return within %.1f s", what, time.monotonic() - started)
        return False
    return True


# ---------------------------------------------------------------- file descriptors

FDS_PER_LOOP = 3
"""File descriptors of one event loop: its selector and the two ends of its wake-up socket."""

SPARE_FDS = 64
"""File descriptors left for everything else: the journal, logs, the adapters' own connections."""


def make_room(*, n_loops: int, n_sessions: int, per_session: int) -> None:
    """Raise the soft limit on open files to what the run needs, as far as the hard limit allows.

    Raises: BadArgument where not even the event loops fit; sandboxes that don't fit fail one by one, and may be
    retried when others have ended.
    """
    used = _open_files() + SPARE_FDS
    must = used + n_loops * FDS_PER_LOOP
    wish = must + n_sessions * per_session
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wish <= soft:
        return
    target = wish if hard == resource.RLIM_INFINITY else min(wish, hard)
    if target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):  # macOS: a hard limit of "infinity" that the kernel does not grant
            target = soft
    if n_loops and must > soft:
        raise BadArgument(
            f"n_concurrent={n_loops} with async adapters needs {must} file descriptors and {soft} are allowed: "
            f"lower n_concurrent to {max((soft - used) // FDS_PER_LOOP, 1)}, or raise the limit (ulimit -n {must})"
        )


def _open_files() -> int:
    """How many file descriptors this process has open; a guess where the system does not tell."""
    for path in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(path))
        except OSError:
            continue
    return 32
