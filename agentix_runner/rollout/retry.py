"""Making a sandbox: a provider's session, sync or async, and when entering it is tried again.

Only entering a session is ever retried, never what runs in it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import tenacity

from ..errors import BadAdapter, is_transient
from ..records import RetryPolicy
from .bridge import in_loop

logger = logging.getLogger("agentix_runner")

T = TypeVar("T")


class NeedsLoop(BaseException):
    """Raised where a provider turns out to be async and no loop is running: run the rollout on one."""


class Session:
    """A provider's session, sync or async, entered once and exited once, by whoever comes first."""

    def __init__(self, manager: Any) -> None:
        kind = type(manager)
        can_sync, can_async = hasattr(kind, "__enter__"), hasattr(kind, "__aenter__")
        if not can_sync and not can_async:
            raise BadAdapter(
                f"provider.session() returned {kind.__name__}, which is no context manager: "
                "decorate it with contextlib.contextmanager or asynccontextmanager"
            )
        self.is_async = can_async and (in_loop() or not can_sync)
        self.is_async_only = not can_sync
        if self.is_async and not in_loop():
            raise NeedsLoop
        self._manager = manager
        self._exiting = threading.Lock()  # never released: taken by whoever exits

    async def enter(self) -> Any:
        if self.is_async:
            return await self._manager.__aenter__()
        return self._manager.__enter__()

    async def exit(self) -> None:
        """Leave the session. Does nothing if that has been done or is being done elsewhere."""
        if not self.is_async:
            self.exit_from_elsewhere()
        elif self._exiting.acquire(blocking=False):
            await self._manager.__aexit__(None, None, None)

    def exit_from_elsewhere(self) -> None:
        """The same from any thread, for a sync session whose own may be stuck in code that does not return."""
        if not self.is_async and self._exiting.acquire(blocking=False):
            self._manager.__exit__(None, None, None)


async def retrying(
    enter: Callable[[], Awaitable[T]], policy: RetryPolicy, *, sleep: Callable[[float], Awaitable[None]]
) -> T:
    """What `enter()` returns, tried as `policy` says.

    `sleep` waits, and raises when the run stops: that ends the retrying at once. (tenacity's `sleep_using_event`
    only returns early, and the attempts that are left would follow without a pause.)

    Raises: the last attempt's error.
    """
    try:
        return await enter()
    except Exception as exc:
        transient = policy.is_transient or is_transient
        if policy.attempts == 1 or not transient(exc):
            raise
        first: Exception | None = exc

    # The usual case has cost nothing but a `try`. From here on tenacity rules; its first attempt is the one above.
    async def attempt() -> T:
        nonlocal first
        if first is not None:
            again, first = first, None
            raise again
        return await enter()

    rule = tenacity.AsyncRetrying(
        sleep=sleep,
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=tenacity.wait_exponential(multiplier=policy.wait_initial, max=policy.wait_max)
        + tenacity.wait_random(0, policy.wait_jitter),
        retry=tenacity.retry_if_exception(transient),
        before_sleep=_log_retry,
        reraise=True,
    )
    return await rule(attempt)


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.info(
        "making a sandbox failed (attempt %d), trying again in %.1f s: %s: %s",
        state.attempt_number,
        state.next_action.sleep if state.next_action else 0.0,
        type(error).__name__,
        error,
    )
