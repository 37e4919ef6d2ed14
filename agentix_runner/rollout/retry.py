"""When the making of a sandbox is tried again: what is transient, how long to wait, how the wait ends early.

Only entering a session is ever retried, never what runs in it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import tenacity

from ..records import RetryPolicy

logger = logging.getLogger("agentix_runner")

T = TypeVar("T")

TRANSIENT_STATUS = frozenset({429, 502, 503, 504})
PERMANENT_STATUS = frozenset({400, 401, 403, 404})

# What a container engine says, with status 500, when it could not reach an image registry (moby's and Go's net texts).
REGISTRY_TROUBLE = (
    "tls handshake timeout",
    "i/o timeout",
    "connection refused",
    "connection reset",
    "no such host",
    "temporary failure in name resolution",
    "request canceled while waiting",
    "context deadline exceeded",
    "unexpected eof",
    "toomanyrequests",
    "bad gateway",
    "service unavailable",
    "gateway timeout",
)

# Connection trouble in HTTP libraries that does not derive from the built-in errors: known by name, so that none of
# them has to be imported.
CONNECTION_TROUBLE = frozenset(
    {
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "urllib3.exceptions.HTTPError",
        "httpx.TransportError",
        "httpcore.TimeoutException",
        "httpcore.NetworkError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "asyncio.exceptions.TimeoutError",
        "concurrent.futures._base.TimeoutError",
    }
)


def is_transient(exc: BaseException) -> bool:
    """Whether making the sandbox may well work if it is tried again.

    Yes: an error that says so itself (`transient`), connection errors, timeouts, HTTP 429, 502, 503, 504, and a 500
    whose text is an unreachable registry. No: everything else; HTTP 400, 401, 403 and 404 (no such image) whatever
    their class, and what is not an `Exception` (KeyboardInterrupt, a cancelled task).
    """
    return isinstance(exc, Exception) and any(_says_transient(e) for e in _chain(exc)) and not _refused(exc)


def _says_transient(exc: BaseException) -> bool:
    if getattr(exc, "transient", False) is True:
        return True
    status = _status(exc)
    if status is not None:
        return status in TRANSIENT_STATUS or (status == 500 and _has_registry_trouble(exc))
    if isinstance(exc, (ConnectionError, TimeoutError)):
        return True
    return any(f"{c.__module__}.{c.__qualname__}" in CONNECTION_TROUBLE for c in type(exc).__mro__)


def _refused(exc: BaseException) -> bool:
    return _status(exc) in PERMANENT_STATUS


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what it was explicitly raised from; a cycle or an endless chain ends after ten."""
    link: BaseException | None = exc
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__


def _status(exc: BaseException) -> int | None:
    """The HTTP status that an error carries, where the usual libraries put it."""
    for holder in (exc, getattr(exc, "response", None)):
        for name in ("status_code", "status"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _has_registry_trouble(exc: BaseException) -> bool:
    text = str(exc).lower()
    return any(words in text for words in REGISTRY_TROUBLE)


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
        before_sleep=_tell,
        reraise=True,
    )
    return await rule(attempt)


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.info(
        "making a sandbox failed (attempt %d), trying again in %.1f s: %s: %s",
        state.attempt_number,
        state.next_action.sleep if state.next_action else 0.0,
        type(error).__name__,
        error,
    )
