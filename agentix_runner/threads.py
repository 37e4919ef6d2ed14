"""Threads that don't keep the process from exiting, and calls that can't keep their caller."""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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
