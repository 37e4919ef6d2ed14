"""When the making of a sandbox is tried again: how often, how long to wait, how the wait ends early.

Only entering a session is ever retried, never what runs in it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from ..errors import is_transient
from ..records import RetryPolicy

logger = logging.getLogger("agentix_runner")

T = TypeVar("T")


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
