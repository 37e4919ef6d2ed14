"""Between sync and async: views of a sandbox, loops, contexts."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentix_runner import AgentResult, SandboxConfig, run_rollouts
from agentix_runner.rollout.bridge import drive, is_async, is_async_provider
from agentix_runner.threads import DaemonExecutor
from tests.conftest import eventually
from tests.support.fakes import (
    AsyncAgent,
    AsyncDataset,
    AsyncProvider,
    AsyncSandbox,
    PlainAgent,
    PlainDataset,
    Solver,
    SyncProvider,
)

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Callable:
    async def __call__(self) -> None: ...


def test_async_functions_are_recognised_in_every_wrapping() -> None:
    """An async def, its partial, a bound method and an object with an async __call__ are async; the rest is not."""
    assert all(map(is_async, [AsyncAgent().solve, functools.partial(AsyncAgent().solve, None), Callable()]))
    assert not any(map(is_async, [PlainAgent().solve, functools.partial(print), print, None]))


def test_async_providers_are_recognised_by_their_decorator() -> None:
    """@asynccontextmanager tells what a session will be; @contextmanager too."""
    assert is_async_provider(AsyncProvider())
    assert not is_async_provider(SyncProvider())


def test_driving_a_coroutine_that_suspends_is_an_error_not_a_hang() -> None:
    """`drive` is for coroutines in which nothing is async."""

    class Suspends:
        def __await__(self) -> Any:
            yield

    async def coro() -> None:
        await Suspends()

    with pytest.raises(RuntimeError, match="was suspended"):
        drive(coro())


def test_without_anything_async_no_event_loop_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop costs three file descriptors: plain adapters on a sync provider make none."""
    made = []
    real = asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(1) or real())
    run_rollouts(dataset=PlainDataset(4), agent=PlainAgent(), provider=SyncProvider(), n_concurrent=2)
    assert made == []
    run_rollouts(dataset=AsyncDataset(9), agent=PlainAgent(), provider=SyncProvider(), n_concurrent=2)
    assert 1 <= len(made) <= 2  # one a slot, for all of its rollouts


def test_a_session_lives_in_one_task_of_one_loop() -> None:
    """Enter, setup, solve, exit of an async session: the same task (anyio's cancel scopes insist)."""
    tasks: dict[str, set[Any]] = {}

    class Provider(AsyncProvider):
        @asynccontextmanager
        async def session(self, config: SandboxConfig) -> AsyncIterator[AsyncSandbox]:
            mine = tasks.setdefault(config.labels["instance_id"], set())
            mine.add(asyncio.current_task())
            yield AsyncSandbox(config)
            mine.add(asyncio.current_task())

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        tasks[instance["instance_id"]].add(asyncio.current_task())
        return AgentResult(patch="p")

    run_rollouts(dataset=AsyncDataset(3), agent=Solver(solve), provider=Provider(), n_concurrent=3)
    assert [len(mine) for mine in tasks.values()] == [1, 1, 1]


def test_an_anyio_style_cancel_scope_can_span_the_session() -> None:
    """asyncio.timeout in a provider's session, as anyio's scopes do, works around the whole body."""
    if not hasattr(asyncio, "timeout"):
        pytest.skip("asyncio.timeout is of Python 3.11")

    class Provider:
        @asynccontextmanager
        async def session(self, config: SandboxConfig) -> AsyncIterator[AsyncSandbox]:
            async with asyncio.timeout(30):
                yield AsyncSandbox(config)

    [rollout] = run_rollouts(dataset=AsyncDataset(), agent=AsyncAgent(), provider=Provider())
    assert rollout.error is None


@pytest.mark.usefixtures("no_threads_left")
def test_heartbeats_of_an_async_provider_go_on_while_a_plain_method_blocks() -> None:
    """A plain def under an async provider runs in a thread of its own, so that the loop stays free."""
    beats: list[float] = []

    class Provider:
        @asynccontextmanager
        async def session(self, config: SandboxConfig) -> AsyncIterator[AsyncSandbox]:
            async def beat() -> None:
                while True:
                    beats.append(time.monotonic())
                    await asyncio.sleep(0.01)

            task = asyncio.create_task(beat())
            yield AsyncSandbox(config)
            task.cancel()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        before = len(beats)
        eventually(lambda: len(beats) > before + 3)
        return AgentResult(patch="p")

    [rollout] = run_rollouts(dataset=PlainDataset(), agent=Solver(solve), provider=Provider())
    assert rollout.error is None


def test_tasks_that_a_rollout_leaves_over_are_cancelled_at_its_end() -> None:
    """The next rollout of the slot finds a clean loop."""
    cancelled = []

    async def linger(name: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        asyncio.create_task(linger(instance["instance_id"]))  # noqa: RUF006
        await asyncio.sleep(0)
        assert cancelled == (["i0"] if instance["instance_id"] == "i1" else [])
        return AgentResult(patch="p")

    rollouts = run_rollouts(dataset=AsyncDataset(2), agent=Solver(solve), provider=SyncProvider())
    assert [r.error for r in rollouts] == [None, None]
    assert cancelled == ["i0", "i1"]


def test_a_future_giving_sandbox_is_awaited_without_a_thread() -> None:
    """Where a sync sandbox offers submit(), the awaitable view of it uses that."""
    submitted = []

    class Sandbox:
        def submit(self, fn: Any, /, *args: Any) -> Future[Any]:
            submitted.append(fn)
            future: Future[Any] = Future()
            threading.Timer(0.01, lambda: future.set_result(fn(*args))).start()
            return future

        def remote(self, fn: Any, /, *args: Any) -> Any:
            raise AssertionError("the blocking form was used")

    class Provider:
        def session(self, config: SandboxConfig) -> Any:
            from contextlib import nullcontext

            return nullcontext(Sandbox())

    [rollout] = run_rollouts(dataset=AsyncDataset(), agent=AsyncAgent(), provider=Provider())
    assert rollout.error is None
    assert submitted == [int, str.upper, len]


def test_attributes_of_a_providers_own_sandbox_show_through_both_views() -> None:
    """An adapter may use what its provider's sandbox offers beyond remote()."""
    seen = []

    async def later(sandbox: Any, instance: Any) -> AgentResult:
        seen.append(sandbox.config.image)
        return AgentResult(patch="p")

    def plain(sandbox: Any, instance: Any) -> AgentResult:
        seen.append(sandbox.config.image)
        return AgentResult(patch="p")

    run_rollouts(dataset=PlainDataset(), agent=Solver(later), provider=SyncProvider())
    run_rollouts(dataset=PlainDataset(), agent=Solver(plain), provider=AsyncProvider())
    assert seen == ["image-i0", "image-i0"]


def test_a_blocking_call_after_its_method_has_ended_is_refused() -> None:
    """A thread that the adapter left behind can't use the sandbox of a phase that is over."""
    kept: list[Any] = []

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        kept.append(sandbox)
        return AgentResult(patch="p")

    run_rollouts(dataset=PlainDataset(), agent=Solver(solve), provider=AsyncProvider())
    with pytest.raises(Exception, match="session is over"):
        kept[0].remote(int, "1")


@pytest.mark.parametrize("provider", [SyncProvider, AsyncProvider])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_context_variables_of_the_caller_are_seen_by_adapters(provider: Any, kind: str) -> None:
    """They are copied at submit; what an adapter sets stays in its own rollout."""
    seen = []

    def plain(sandbox: Any, instance: Any) -> AgentResult:
        seen.append(variable.get())
        variable.set(instance["instance_id"])
        return AgentResult(patch="p")

    async def later(sandbox: Any, instance: Any) -> AgentResult:
        return plain(sandbox, instance)

    token = variable.set("the caller's")
    try:
        run_rollouts(dataset=PlainDataset(3), agent=Solver(plain if kind == "plain" else later), provider=provider())
    finally:
        variable.reset(token)
    assert seen == ["the caller's"] * 3


@pytest.mark.usefixtures("no_threads_left")
def test_to_thread_works_and_its_threads_end_with_the_run() -> None:
    """asyncio.to_thread in an adapter: many at once, results right, no thread left."""

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        values = await asyncio.gather(*(asyncio.to_thread(pow, 2, k) for k in range(50)))
        return AgentResult(patch=str(sum(values)))

    rollouts = run_rollouts(dataset=AsyncDataset(2), agent=Solver(solve), provider=SyncProvider())
    assert [r.patch for r in rollouts] == [str(2**50 - 1)] * 2


@pytest.mark.usefixtures("no_threads_left")
def test_the_daemon_executor_reuses_idle_threads_and_lets_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece of work after another needs one thread; an idle one ends by itself."""
    monkeypatch.setattr(DaemonExecutor, "IDLE_S", 0.05)
    executor = DaemonExecutor()
    first = executor.submit(threading.current_thread).result(10)
    eventually(lambda: executor._unclaimed == 1)
    assert executor.submit(threading.current_thread).result(10) is first
    eventually(lambda: not first.is_alive())
    assert executor.submit(pow, 2, 3).result(10) == 8
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 / 0).result(10)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(print)
