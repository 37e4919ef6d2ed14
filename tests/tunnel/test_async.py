"""The tunnel as adapters of either kind see it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict

from agentix_runner import AgentResult, LocalProvider, SandboxConfig, Timeouts, run_rollouts
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.rollout.bridge import AwaitableSandbox
from agentix_runner.tunnel.tunnel import Tunnels
from agentix_runner.tunnel.usage import Usage

from ..conftest import eventually
from ..support.fakes import AsyncSandbox, Solver
from ..support.tunnel_tools import Api, Handler, ask, serving


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as api:
        body = json.dumps({"usage": {"input_tokens": 3, "output_tokens": 4}}).encode()
        api.on("/v1/messages")(lambda handler: handler.reply(body))
        yield api


class Dataset:
    """One instance without an image."""

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def instances(self) -> list[dict[str, Any]]:
        return [{"instance_id": f"i{number}"} for number in range(self.count)]

    def image(self, instance: dict[str, Any]) -> str:
        return ""

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        return True

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        return {"resolved": True}


USED = {"requests": 1, "input_tokens": 3, "output_tokens": 4, "cache_read_tokens": 0, "cache_write_tokens": 0}


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_agent_of_either_kind_uses_a_tunnel(api: Api, tmp_path: Path, kind: str) -> None:
    """`with` in a plain method, `async with` in an async one; the record says whose exchange it was."""
    record = tmp_path / "record.jsonl"

    def plain(sandbox: Any, instance: Any) -> AgentResult:
        tunnel = sandbox.tunnel(api.url, record=record)
        with tunnel as url:
            status = sandbox.remote(ask, url)[0]
        return AgentResult(patch=str(status), info=asdict(tunnel.usage))

    async def later(sandbox: Any, instance: Any) -> AgentResult:
        tunnel = sandbox.tunnel(api.url, record=record)
        assert repr(tunnel) == f"<Tunnel to {api.url}>"
        async with tunnel as url:
            status = (await sandbox.remote(ask, url))[0]
        return AgentResult(patch=str(status), info=asdict(tunnel.usage))

    agent = Solver(plain if kind == "plain" else later)
    rollouts = run_rollouts(dataset=Dataset(3), agent=agent, provider=LocalProvider(), n_concurrent=3)
    assert [(r.error, r.patch, r.info) for r in rollouts] == [(None, "200", USED)] * 3
    labels = [json.loads(line)["labels"] for line in record.read_text().splitlines()]
    assert sorted(label["instance_id"] for label in labels) == ["i0", "i1", "i2"]


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_deadline_ends_an_agent_inside_its_tunnel(api: Api, kind: str, short_grace: None) -> None:
    """The upstream's connection is closed, and the rollout is a timeout in time."""
    gone = threading.Event()

    @api.on("/endless")
    def endless(handler: Handler) -> None:
        handler.wait_for_hangup()
        gone.set()

    def plain(sandbox: Any, instance: Any) -> AgentResult:
        with sandbox.tunnel(api.url) as url:
            sandbox.remote(ask, url, "/endless")
        return AgentResult(patch="never")

    async def later(sandbox: Any, instance: Any) -> AgentResult:
        async with sandbox.tunnel(api.url) as url:
            await sandbox.remote(ask, url, "/endless")
        return AgentResult(patch="never")

    [rollout] = run_rollouts(
        dataset=Dataset(),
        agent=Solver(plain if kind == "plain" else later),
        provider=LocalProvider(),
        timeouts=Timeouts(agent=1.0),
    )
    assert rollout.failure is not None
    assert (rollout.failure.type, rollout.failure.phase) == ("PhaseTimeout", "agent")
    assert gone.wait(30)


@pytest.mark.usefixtures("no_threads_left")
def test_a_cancelled_opening_leaves_nothing_open(api: Api) -> None:
    """The tunnel that is opened in the background all the same is closed again."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        entering, leave = threading.Event(), threading.Event()
        tunnel = sandbox.tunnel(api.url)
        real = tunnel.__class__.__enter__

        class Slow:
            def __enter__(self) -> str:
                entering.set()
                assert leave.wait(30)
                return real(tunnel)

            def __exit__(self, *exc: object) -> None:
                tunnel.close()

        class Box:
            def tunnel(self, upstream: str) -> Slow:
                return Slow()

        async def main() -> None:
            async def use() -> None:
                async with AwaitableSandbox(Box()).tunnel(api.url):
                    raise AssertionError("it was cancelled")

            task = asyncio.create_task(use())
            await asyncio.to_thread(entering.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            leave.set()
            while not tunnel._closed:
                await asyncio.sleep(0.005)

        asyncio.run(main())
        eventually(lambda: sandbox.handler(Tunnels)._tunnels == {})


def test_a_plain_agent_uses_the_tunnel_of_an_async_sandbox() -> None:
    """A foreign provider's `async with sandbox.tunnel(...)` is a `with` for plain methods."""
    seen: list[Any] = []

    class Tunnelled(AsyncSandbox):
        @asynccontextmanager
        async def tunnel(self, upstream: str, **options: Any) -> AsyncIterator[str]:
            seen.append((upstream, options))
            yield "http://127.0.0.1:1"
            await asyncio.sleep(0)
            seen.append("closed")

    class Provider:
        @asynccontextmanager
        async def session(self, config: SandboxConfig) -> AsyncIterator[Tunnelled]:
            yield Tunnelled(config)

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        with sandbox.tunnel("https://host", headers={"a": "b"}) as url:
            return AgentResult(patch=url)

    [rollout] = run_rollouts(dataset=Dataset(), agent=Solver(solve), provider=Provider())
    assert (rollout.error, rollout.patch) == (None, "http://127.0.0.1:1")
    assert seen == [("https://host", {"headers": {"a": "b"}}), "closed"]


def test_a_sandbox_without_tunnels_says_so() -> None:
    """An attribute error, as for anything that a provider's own sandbox lacks."""
    sandbox: Any = AwaitableSandbox(object())
    with pytest.raises(AttributeError, match="tunnel"):
        sandbox.tunnel("https://host")


def test_usage_adds_up() -> None:
    """Usages are values: of several tunnels, say."""
    assert Usage(1, 2, 3, 4, 5) + Usage(1, 1, 1, 1, 1) == Usage(2, 3, 4, 5, 6)
    assert RemoteSandbox.tunnel.__doc__ is not None
