"""What is tried again when a sandbox is made, and how the waiting ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentix_runner import RetryPolicy, Rollout, SandboxConfig, Timeouts, run_rollouts
from agentix_runner.errors import SandboxStartError, is_transient
from agentix_runner.rollout.bridge import drive
from agentix_runner.rollout.retry import retrying
from tests.support.fakes import AsyncProvider, Ledger, PlainAgent, PlainDataset, SyncProvider, SyncSandbox

QUICK = RetryPolicy(attempts=4, wait_initial=0, wait_jitter=0)


class HttpError(Exception):
    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.response = type("Response", (), {"status_code": status})()


class AioHttpError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class NotFound(ConnectionError):
    status_code = 404


def caused(exc: Exception, cause: Exception) -> Exception:
    exc.__cause__ = cause
    return exc


@pytest.mark.parametrize(
    "exc",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        asyncio.TimeoutError(),
        HttpError(429),
        HttpError(502),
        HttpError(503),
        HttpError(504),
        AioHttpError(503),
        HttpError(500, "Get https://registry/v2/: net/http: TLS handshake timeout"),
        HttpError(500, "dial tcp: lookup registry: no such host"),
        SandboxStartError("busy", transient=True),
        caused(RuntimeError("wrapped"), ConnectionRefusedError()),
    ],
)
def test_trouble_that_may_pass_is_transient(exc: BaseException) -> None:
    """Connections, timeouts, busy or unreachable services are worth another try."""
    assert is_transient(exc)


def test_connection_trouble_of_http_libraries_is_transient_by_name() -> None:
    """docker-py's own library raises requests' ConnectionError, which is no built-in one."""
    requests = pytest.importorskip("requests")
    assert is_transient(requests.exceptions.ConnectionError())
    assert is_transient(requests.exceptions.ReadTimeout())
    assert not is_transient(requests.exceptions.InvalidURL())


@pytest.mark.parametrize(
    "exc",
    [
        HttpError(400),
        HttpError(401),
        HttpError(404, "no such image"),
        HttpError(500, "driver failed programming"),
        NotFound(),
        caused(HttpError(404), ConnectionError()),
        ValueError(),
        OSError("disk"),
        SandboxStartError("no such image"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        SystemExit(),
    ],
)
def test_what_will_not_pass_is_not_transient(exc: BaseException) -> None:
    """Bad requests, missing images, and what is no Exception are never tried again."""
    assert not is_transient(exc)


class Flaky(SyncProvider):
    """Fails to make the first `failures` sandboxes."""

    def __init__(self, failures: int, error: BaseException, ledger: Ledger | None = None) -> None:
        super().__init__(ledger)
        self.left = failures
        self.error = error

    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
        self.ledger.note("try")
        if self.left:
            self.left -= 1
            raise self.error
        with super().session(config) as sandbox:
            yield sandbox


def run(provider: Any, **kwargs: Any) -> Rollout:
    [rollout] = run_rollouts(dataset=PlainDataset(), agent=PlainAgent(), provider=provider, **kwargs)
    return rollout


def test_a_sandbox_is_made_on_a_later_try() -> None:
    """Three connection errors, then it works: the rollout knows nothing of it."""
    provider = Flaky(3, ConnectionError("engine is restarting"))
    assert run(provider, retry=QUICK).resolved
    assert provider.ledger.events.count("try") == 3 + 2


def test_attempts_are_bounded_and_the_last_error_is_told() -> None:
    """With attempts=4 the fourth error is the rollout's."""
    provider = Flaky(99, ConnectionError("engine is gone"))
    rollout = run(provider, retry=QUICK)
    assert provider.ledger.events == ["try"] * 4
    assert rollout.error == "ConnectionError: engine is gone"
    assert rollout.failure is not None
    assert (rollout.failure.phase, rollout.failure.transient) == ("session", True)


def test_what_is_not_transient_is_tried_once() -> None:
    """A missing image is not asked for again."""
    provider = Flaky(99, HttpError(404, "no such image"))
    rollout = run(provider, retry=QUICK)
    assert provider.ledger.events == ["try"]
    assert rollout.failure is not None
    assert rollout.failure.transient is False


def test_the_policys_own_rule_decides() -> None:
    """RetryPolicy(is_transient=...) replaces the default rule."""
    provider = Flaky(1, ValueError("odd"))
    policy = RetryPolicy(
        attempts=2, wait_initial=0, wait_jitter=0, is_transient=lambda exc: isinstance(exc, ValueError)
    )
    assert run(provider, retry=policy).resolved


def test_what_runs_in_a_session_is_never_retried() -> None:
    """A connection error raised by the agent is its rollout's error at once."""
    calls = []

    class Agent:
        def solve(self, sandbox: Any, instance: Any, *, model: Any) -> Any:
            calls.append(1)
            raise ConnectionError("the model's API")

    [rollout] = run_rollouts(dataset=PlainDataset(), agent=Agent(), provider=SyncProvider(), retry=QUICK)
    assert len(calls) == 1
    assert rollout.failure is not None
    assert rollout.failure.phase == "agent"


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stop_ends_the_wait_between_two_tries_at_once(kind: str) -> None:
    """The wait would be an hour; after the stop there is no further try, and the rollout did not run."""
    stop = threading.Event()
    tries = []

    class Sync:
        def session(self, config: SandboxConfig) -> Any:
            tries.append(1)
            threading.Timer(0.05, stop.set).start()
            raise ConnectionError

    provider = Sync() if kind == "sync" else AsyncProvider()
    if kind == "async":
        provider.session = Sync().session  # type: ignore[method-assign,union-attr]

    class Dataset(PlainDataset):
        if kind == "async":

            async def setup(self, sandbox: Any, instance: Any) -> bool:  # type: ignore[override]
                return True

    policy = RetryPolicy(attempts=50, wait_initial=3600, wait_max=3600)
    [rollout] = run_rollouts(
        dataset=Dataset(),
        agent=PlainAgent(),
        provider=provider,
        stop=stop,
        retry=policy,
        timeouts=Timeouts(session=None),
    )
    assert tries == [1]
    assert rollout.error == "not run: the run was stopped"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_sessions_limit_covers_its_retries(kind: str) -> None:
    """Waiting for the next try ends with the limit, without a thread left behind."""

    class Dataset(PlainDataset):
        if kind == "async":

            async def setup(self, sandbox: Any, instance: Any) -> bool:  # type: ignore[override]
                return True

    [rollout] = run_rollouts(
        dataset=Dataset(),
        agent=PlainAgent(),
        provider=Flaky(99, ConnectionError()),
        timeouts=Timeouts(session=0.1),
        retry=RetryPolicy(attempts=50, wait_initial=3600, wait_max=3600),
    )
    assert rollout.error == "PhaseTimeout: session ran past its limit of 0.1 s"


def test_waits_grow_from_the_first_to_the_longest() -> None:
    """Exponential from wait_initial, at most wait_max."""
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def enter() -> None:
        raise ConnectionError

    policy = RetryPolicy(attempts=6, wait_initial=1, wait_max=5, wait_jitter=0)
    with pytest.raises(ConnectionError):
        drive(retrying(enter, policy, sleep=sleep))
    assert waits == [1, 2, 4, 5, 5]
