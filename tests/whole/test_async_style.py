"""Adapters and a provider written for the async `await run_rollouts(...)` run here unchanged."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentix_runner import run_rollouts


@dataclass
class TheirResult:
    """An agent's result as their own package defines it."""

    patch: str = ""
    exit_code: int | None = None
    info: dict[str, Any] = field(default_factory=dict)


class TheirSandbox:
    def __init__(self) -> None:
        self.namespaces: list[str] = []
        self.client = asyncio.get_running_loop()

    async def remote(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        assert asyncio.get_running_loop() is self.client  # as a client bound to its loop would insist
        value = fn(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    def register_namespace(self, name: str) -> None:
        self.namespaces.append(name)


class TheirProvider:
    """`async with provider.session(config) as sandbox`, reading image, bundle, platform, env, resource."""

    def __init__(self) -> None:
        self.configs: list[tuple[Any, ...]] = []
        self.live = 0

    async def create(self, config: Any) -> TheirSandbox:
        self.configs.append((config.image, config.bundle, config.platform, config.env, config.resource))
        await asyncio.sleep(0)
        self.live += 1
        return TheirSandbox()

    async def delete(self, sandbox: TheirSandbox) -> None:
        await asyncio.sleep(0)
        self.live -= 1

    @asynccontextmanager
    async def session(self, config: Any) -> AsyncIterator[TheirSandbox]:
        sandbox = await self.create(config)
        try:
            yield sandbox
        finally:
            await self.delete(sandbox)


async def prepare(instance_id: str) -> bool:
    await asyncio.sleep(0)
    return not instance_id.endswith("unprepared")


class TheirDataset:
    def instances(self) -> list[dict[str, Any]]:
        return [{"instance_id": i} for i in ("good", "bad", "unprepared", "silent", "broken")]

    def image(self, instance: dict[str, Any]) -> str:
        return f"task:{instance['instance_id']}"

    async def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        sandbox.register_namespace("task")
        return bool(await sandbox.remote(prepare, instance["instance_id"]))

    async def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        assert sandbox.namespaces == []  # a fresh one
        return {"resolved": await sandbox.remote(str.startswith, patch, "good")}


class TheirAgent:
    async def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> TheirResult:
        if instance["instance_id"] == "broken":
            raise RuntimeError("boom")
        await asyncio.sleep(0)
        return TheirResult(patch="" if instance["instance_id"] == "silent" else instance["instance_id"], exit_code=0)


@pytest.mark.usefixtures("no_threads_left")
def test_their_code_runs_unchanged() -> None:
    """Every outcome that their runner knows comes out the same; the call just blocks."""
    provider = TheirProvider()
    rollouts = run_rollouts(
        dataset=TheirDataset(), agent=TheirAgent(), provider=provider, bundle="b:1", model="m", n_concurrent=3
    )
    assert [r.instance_id for r in rollouts] == ["good", "bad", "unprepared", "silent", "broken"]
    assert [r.resolved for r in rollouts] == [True, False, False, False, False]
    assert [r.skipped for r in rollouts] == [None, None, "setup_failed", "empty_patch", None]
    assert [r.error for r in rollouts] == [None] * 4 + ["RuntimeError: boom"]
    assert [r.agent_exit for r in rollouts] == [0, 0, None, 0, None]
    assert provider.live == 0
    assert provider.configs[0] in {(f"task:{r.instance_id}", "b:1", None, None, None) for r in rollouts}
