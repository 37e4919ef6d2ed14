"""Small providers, datasets and agents for the runner's tests: sync and async, and wrong in chosen ways.

Their sandboxes run `remote(fn)` in this process. Each records what happened to it in a `Ledger`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from agentix_runner import AgentResult, SandboxConfig


class Ledger:
    """What happened, in order, and how many sandboxes are open."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.open = 0
        self.most = 0
        self.lock = threading.Lock()

    def note(self, *event: Any) -> None:
        with self.lock:
            self.events.append(event if len(event) > 1 else event[0])

    def opened(self) -> None:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)

    def closed(self) -> None:
        with self.lock:
            self.open -= 1


class SyncSandbox:
    """Runs functions here; `kill` wakes those that wait on `gone`."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self.gone = threading.Event()

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def wait(self) -> None:
        """What a call looks like whose function never returns: it ends when the sandbox does."""
        if not self.gone.wait(30):
            raise AssertionError("nobody killed the sandbox")
        raise ConnectionError("the sandbox is gone")

    def kill(self) -> None:
        self.gone.set()


class AsyncSandbox:
    """The same as an async Agentix provider makes it, without `kill`."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config

    async def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        value = fn(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value


class SyncProvider:
    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()

    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
        self.ledger.opened()
        self.ledger.note("open", config.image)
        try:
            yield SyncSandbox(config)
        finally:
            self.ledger.note("close", config.image)
            self.ledger.closed()


class AsyncProvider:
    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()

    @asynccontextmanager
    async def session(self, config: SandboxConfig) -> AsyncIterator[AsyncSandbox]:
        self.ledger.opened()
        self.ledger.note("open", config.image)
        await asyncio.sleep(0)
        try:
            yield AsyncSandbox(config)
        finally:
            await asyncio.sleep(0)
            self.ledger.note("close", config.image)
            self.ledger.closed()


class PlainDataset:
    def __init__(self, n: int = 1, ids: list[str] | None = None) -> None:
        self.ids = ids or [f"i{k}" for k in range(n)]

    def instances(self) -> list[dict[str, Any]]:
        return [{"instance_id": i} for i in self.ids]

    def image(self, instance: dict[str, Any]) -> str:
        return f"image-{instance['instance_id']}"

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        return sandbox.remote(int, "1") == 1

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        return {"resolved": sandbox.remote(len, patch) == len(patch), "patch": patch}


class AsyncDataset(PlainDataset):
    async def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:  # type: ignore[override]
        return await sandbox.remote(int, "1") == 1

    async def score(  # type: ignore[override]
        self, sandbox: Any, instance: dict[str, Any], patch: str
    ) -> dict[str, Any]:
        return {"resolved": await sandbox.remote(len, patch) == len(patch), "patch": patch}


class PlainAgent:
    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        patch = sandbox.remote(str.upper, f"patch of {instance['instance_id']}")
        return AgentResult(patch=patch, exit_code=0, info={"model": model})


class AsyncAgent:
    async def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        patch = await sandbox.remote(str.upper, f"patch of {instance['instance_id']}")
        return AgentResult(patch=patch, exit_code=0, info={"model": model})


class Solver:
    """An agent whose `solve` is the function given: plain or async."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(fn):

            async def solve(sandbox: Any, instance: dict[str, Any], *, model: str | None) -> Any:
                return await fn(sandbox, instance)

        else:

            def solve(sandbox: Any, instance: dict[str, Any], *, model: str | None) -> Any:  # type: ignore[misc]
                return fn(sandbox, instance)

        self.solve = solve
