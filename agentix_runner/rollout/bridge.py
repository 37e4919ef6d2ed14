"""Between sync and async: the only module that imports asyncio.

A rollout is one coroutine function. Where nothing is async it is driven right here, with no loop at all (`drive`);
otherwise it is one task of the event loop that belongs to its slot's thread (`SlotLoop`). Adapters and providers of
either kind meet through two views of a sandbox: `BlockingSandbox` and `AwaitableSandbox`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import BadAdapter, SandboxDied
from ..threads import DaemonExecutor

logger = logging.getLogger("agentix_runner")

T = TypeVar("T")

LEFT_OVER_S = 2.0
"""How long (seconds) cancelled left-overs of a rollout, tasks or threads, may take to end before it goes on without."""


def is_async(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine: an `async def`, also as a partial or as an object's `__call__`."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


_remote_is_async: dict[type, bool] = {}


def is_async_sandbox(sandbox: Any) -> bool:
    """Whether `sandbox.remote` is an `async def`. Remembered by class: it is asked twice a rollout."""
    kind = type(sandbox)
    known = _remote_is_async.get(kind)
    if known is None:
        known = is_async(getattr(sandbox, "remote", None))
        if hasattr(kind, "remote"):
            _remote_is_async[kind] = known
    return known


def is_async_provider(provider: Any) -> bool:
    """Whether `provider.session` is known to make async context managers without calling it."""
    return inspect.isasyncgenfunction(inspect.unwrap(provider.session))


def drive(coro: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine in which nothing is async, so that it never suspends."""
    try:
        coro.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coro.close()
    raise RuntimeError("a rollout without async adapters was suspended")


def in_loop() -> bool:
    return asyncio._get_running_loop() is not None


# ---------------------------------------------------------------- the two views of a sandbox


class _View:
    """Somebody's sandbox or tunnel, of which a subclass shows something else; the rest shows through."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class AwaitableSandbox(_View):
    """A blocking sandbox as an async method sees it: `remote` is awaitable, everything else is the sandbox's own."""

    async def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        submit = getattr(self._inner, "submit", None)
        if submit is not None:
            return await asyncio.wrap_future(submit(fn, *args, **kwargs))
        call = functools.partial(contextvars.copy_context().run, self._inner.remote, fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(None, call)

    def tunnel(self, upstream: str, **options: Any) -> Any:
        """The sandbox's own tunnel, for `async with`."""
        tunnel = self._inner.tunnel(upstream, **options)
        return AwaitableTunnel(tunnel) if hasattr(type(tunnel), "__enter__") else tunnel


class BlockingSandbox(_View):
    """An async sandbox as a plain method sees it: `remote` blocks. For use from any thread but the loop's own."""

    def __init__(self, sandbox: Any) -> None:
        super().__init__(sandbox)
        self._loop = asyncio.get_running_loop()
        self._calls: set[Future[Any]] = set()
        self._over = False

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            return await self._inner.remote(fn, *args, **kwargs)

        if self._over:
            raise SandboxDied("the sandbox's session is over: don't call remote() after the method has ended")
        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        self._calls.add(future)
        try:
            if self._over:
                future.cancel()
            return future.result()
        except FutureCancelled as exc:
            raise SandboxDied("the sandbox was ended while a call was running in it") from exc
        finally:
            self._calls.discard(future)

    def tunnel(self, upstream: str, **options: Any) -> Any:
        """The sandbox's own tunnel, for `with`."""
        tunnel = self._inner.tunnel(upstream, **options)
        return BlockingTunnel(tunnel, self._loop) if hasattr(type(tunnel), "__aenter__") else tunnel

    def end(self) -> None:
        """Wake whoever waits in `remote`; further calls are refused."""
        self._over = True
        for future in list(self._calls):
            future.cancel()


# ---------------------------------------------------------------- the two views of a tunnel


class AwaitableTunnel(_View):
    """A blocking tunnel as an async method sees it: `async with`, and everything else is the tunnel's own."""

    async def __aenter__(self) -> str:
        opening = asyncio.get_running_loop().run_in_executor(None, self._inner.__enter__)
        try:
            url: str = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # It goes on in its thread, and nobody else will close what it opens.
            opening.add_done_callback(lambda done: done.exception() or self._leave(None, None, None))
            raise
        return url

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self._leave(*exc))

    def _leave(self, *exc: object) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(None, self._inner.__exit__, *exc)


class BlockingTunnel(_View):
    """An async tunnel as a plain method sees it: `with`, and everything else is the tunnel's own."""

    def __init__(self, tunnel: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(tunnel)
        self._loop = loop

    def __enter__(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self._inner.__aenter__(), self._loop).result()

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._inner.__aexit__(*exc), self._loop).result()


# ---------------------------------------------------------------- calling an adapter's method


class Method:
    """One method of an adapter, plain or async."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn
        self.is_async = is_async(fn)

    async def __call__(self, sandbox: Any, sandbox_is_async: bool, *args: Any, **kwargs: Any) -> Any:
        """Call it with the view of `sandbox` that it expects."""
        if self.is_async:
            view = sandbox if sandbox_is_async else AwaitableSandbox(sandbox)
            return await self.fn(view, *args, **kwargs)
        if sandbox_is_async:
            value = await _in_thread(self.name, self.fn, BlockingSandbox(sandbox), args, kwargs)
        else:
            value = self.fn(sandbox, *args, **kwargs)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise BadAdapter(f"{self.name} is a plain def but returned an awaitable: make it `async def {self.name}`")
        return value


async def _in_thread(
    name: str, fn: Callable[..., Any], sandbox: BlockingSandbox, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a plain method in a thread of its own, so that an async provider's heartbeats go on meanwhile."""
    call = functools.partial(contextvars.copy_context().run, _boxed, fn, sandbox, args, kwargs)
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        value, error = await asyncio.shield(running)
    except asyncio.CancelledError:
        sandbox.end()
        await asyncio.wait([running], timeout=LEFT_OVER_S)
        if not running.done():
            logger.warning("%s() did not return after its sandbox was ended; its thread is left behind", name)
        raise
    finally:
        sandbox.end()
    if error is not None:
        raise error
    return value


def _boxed(
    fn: Callable[..., Any], sandbox: BlockingSandbox, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    """The outcome as a value: a future can't carry StopIteration, and SystemExit would end the executor's thread."""
    try:
        return fn(sandbox, *args, **kwargs), None
    except BaseException as exc:
        return None, exc


async def sleep(seconds: float, wait: Callable[[float], object]) -> None:
    """Wait `seconds`. With no loop `wait` does it, which may end early; a task's cancellation does on one."""
    if in_loop():
        await asyncio.sleep(seconds)
    else:
        wait(seconds)


# ---------------------------------------------------------------- the loop of a slot


class SlotLoop:
    """The event loop of one slot: made, used and closed on that slot's thread, one rollout at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._executor = DaemonExecutor()
        self._loop.set_default_executor(self._executor)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop.set_task_factory(self._new_task)
        self._main: asyncio.Task[Any] | None = None
        asyncio.set_event_loop(self._loop)

    # The loop's own record of tasks: asyncio.all_tasks() walks those of every loop in the process.
    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **kwargs)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run(self, coro: Coroutine[Any, Any, None], escaped: Callable[[BaseException], None]) -> None:
        """Run `coro` as one task to its end, then cancel the tasks it left over.

        A SystemExit or KeyboardInterrupt of some other task comes out of the loop itself: it is given to `escaped`,
        and the rollout goes on.
        """
        main = self._main = self._loop.create_task(coro)
        try:
            self._until_done(main, escaped)
            left = [task for task in self._tasks if not task.done()]
            if left:
                self._until_done(self._loop.create_task(_end(left)), escaped)
            main.result()
        finally:
            self._main = None

    def _until_done(self, task: asyncio.Task[Any], escaped: Callable[[BaseException], None]) -> None:
        while not task.done():
            try:
                self._loop.run_until_complete(task)
            except BaseException as exc:
                if not task.done():
                    escaped(exc)

    def cancel(self, still_wanted: Callable[[], bool]) -> None:
        """From any thread: cancel the rollout's task, if `still_wanted()` when the loop gets to it."""

        def cancel() -> None:
            if self._main is not None and still_wanted():
                self._main.cancel()

        try:
            self._loop.call_soon_threadsafe(cancel)
        except RuntimeError:  # closed: the rollout is over
            logger.debug("nothing left to cancel")

    def call(self, coro_fn: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """From any thread: run `coro_fn()` on the loop."""

        async def call() -> Any:
            return await coro_fn()

        return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def close(self) -> None:
        try:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()
            self._executor.shutdown()


def cancelled(exc: BaseException) -> bool:
    """Whether `exc` is a task's cancellation."""
    return isinstance(exc, asyncio.CancelledError)


def uncancel() -> None:
    """Tell the running task that its cancellation was dealt with (Python >= 3.11): timeouts in it work again."""
    task = asyncio.current_task() if in_loop() else None
    if task is not None and sys.version_info >= (3, 11):
        while task.cancelling():
            task.uncancel()


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    done, pending = await asyncio.wait(tasks, timeout=LEFT_OVER_S)
    for task in done:
        if not task.cancelled() and task.exception() is not None:
            logger.warning("a task left over by a rollout failed: %r", task.exception())
    if pending:
        logger.warning("%d tasks left over by a rollout ignore their cancellation", len(pending))
