"""What plugs into a run: datasets, agents, sandbox providers. `typing.Protocol` only; nothing has to inherit.

`setup`, `score` and `solve` may each be `async def` or plain `def`, mixed freely. An async method gets a sandbox whose
`remote` is awaitable, a plain one a sandbox whose `remote` blocks, whichever kind the provider makes.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeVar, overload, runtime_checkable

from .records import AgentResult, SandboxConfig

P = ParamSpec("P")
T = TypeVar("T")


class Tunnel(AbstractContextManager[str], Protocol):
    """A way out of a sandbox to one model API. Inside `with`, its URL in the sandbox."""

    @property
    def usage(self) -> Any:
        """The tokens and requests so far: see `agentix_runner.tunnel.usage.Usage`."""


class AsyncTunnel(AbstractAsyncContextManager[str], Protocol):
    """The same for `async with`."""

    @property
    def usage(self) -> Any: ...


@runtime_checkable
class Sandbox(Protocol):
    """A sandbox as a plain method sees it. Those of this package's providers have all of this; another provider's
    must have `remote`."""

    @overload
    def remote(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def remote(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(*args, **kwargs)` in the sandbox, wait, and return its value; of an `async def`, what it returns.

        Raises:
            RemoteError: `fn` raised there.
            SandboxDied: the sandbox ended meanwhile.
            CallError: `fn` or its arguments can't be sent.
            BadResult: what came back is no valid result.
        """

    def tunnel(
        self,
        upstream: str,
        *,
        headers: Mapping[str, str | None] | None = None,
        record: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Tunnel:
        """A way for the sandbox to the API at `upstream` through this process: `with sandbox.tunnel(...) as url:`.

        `headers` are put on each request, `record` is a file that gets each exchange.
        """
        ...

    def kill(self) -> Any:
        """End the sandbox at once, and wake whoever waits for it. From any thread."""


@runtime_checkable
class AsyncSandbox(Protocol):
    """A sandbox as an async method sees it: the same, awaitable."""

    @overload
    def remote(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...
    @overload
    def remote(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...

    def tunnel(
        self,
        upstream: str,
        *,
        headers: Mapping[str, str | None] | None = None,
        record: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> AsyncTunnel: ...

    def kill(self) -> Any: ...


@runtime_checkable
class Dataset(Protocol):
    """A benchmark: which instances there are, where each runs, how it is prepared, and how a patch is scored.

    Optional: `sandbox(instance, phase) -> dict` with `resource` (a `Resource` or a dict of its fields), `env` and
    `network` for that phase, "agent" or "score".
    """

    def instances(self) -> Iterable[dict[str, Any]]:
        """The instances, each a dict whose "instance_id" (else "id") identifies it."""
        ...

    def image(self, instance: dict[str, Any]) -> str:
        """The image that the instance runs in."""
        ...

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> Awaitable[bool] | bool:
        """Prepare the instance in the agent's sandbox. False: the rollout ends as "setup_failed"."""
        ...

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> Awaitable[dict[str, Any]] | dict[str, Any]:
        """Score `patch` in a fresh sandbox: a dict with "resolved", and what else is worth keeping."""
        ...


@runtime_checkable
class Agent(Protocol):
    """An agent: makes a patch for an instance in a prepared sandbox."""

    def solve(
        self, sandbox: Any, instance: dict[str, Any], *, model: str | None
    ) -> Awaitable[AgentResult] | AgentResult: ...


@runtime_checkable
class SandboxProvider(Protocol):
    """Makes sandboxes. They are a `Sandbox` or an `AsyncSandbox`, of which only `remote` is a must: what waits for one
    of an async provider that has no `kill` is cancelled instead.

    Optional: `expect_image(image, platform) -> over` is told of each rollout to come, in order, so that images can be
    pulled ahead; `over()` is called, from any thread, when that rollout is over, and may not block.
    `check_run(bundle=..., platform=...)` raises BadArgument, before anything is run, for what can't work.
    """

    def session(self, config: SandboxConfig) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """A context manager, sync or async, that makes a sandbox and removes it at its end."""
        ...
