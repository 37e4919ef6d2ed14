"""Waiting for rollouts that were handed to somebody's executor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import describe
from ..rollout.job import Stop

logger = logging.getLogger("agentix_runner")

T = TypeVar("T")

QUIET_S = 30.0
"""How long (seconds) a rollout may go on before whoever waits looks whether something is wrong."""


class Handover:
    """Rollouts that were handed to somebody's executor, each waited for by the thread that did so.

    An executor may be shut down, or may never come to an end: what it drops stops the run, and `release` lets go the
    threads that wait, which would hold up the exit of the process.
    """

    def __init__(
        self,
        stop: Stop,
        *,
        dropped: str = "the executor was shut down, or has dropped what it was to run",
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`dropped` is told of what is cancelled, `look` called now and then by who waits."""
        self._stop = stop
        self._dropped = dropped
        self._look = look
        self._out: dict[Future[Any], tuple[int, threading.Event]] = {}

    def wait(self, number: int, submit: Callable[[], Future[T]]) -> Future[T] | None:
        """The future that `submit` gives, once there is an outcome; None where the rollout has not run. `number` is
        the job's."""
        if self._stop.is_set():
            return None
        try:
            future = submit()
        except RuntimeError as exc:  # shut down, or broken
            self.stop_run(f"the executor takes no more work ({describe(exc)})")
            return None
        ended = threading.Event()
        self._out[future] = number, ended
        future.add_done_callback(lambda _: ended.set())
        if self._stop.is_set():
            future.cancel()  # `cancel` may have looked before it was there
        while not ended.wait(QUIET_S):
            self._look()
        del self._out[future]
        if future.cancelled():
            self.stop_run(self._dropped)
            return None
        return future if future.done() else None

    def stop_run(self, reason: str) -> None:
        """Stop the run, unless it is stopping."""
        if not self._stop.is_set():
            logger.error("the run is stopped: %s", reason)
            self._stop.set(reason)

    def cancel(self, *, but: Collection[int] = ()) -> None:
        """Take back what has not begun, `but` for the jobs of these numbers."""
        for future, (number, _) in list(self._out.items()):
            if number not in but:
                future.cancel()

    def release(self) -> None:
        """Let go who waits."""
        for _, ended in list(self._out.values()):
            ended.set()
