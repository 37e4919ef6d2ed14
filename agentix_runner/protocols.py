"""What plugs into a run: datasets, agents, sandbox providers. `typing.Protocol` only; nothing has to inherit.

`setup`, `score` and `solve` may each be `async def` or plain `def`, mixed freely. An async method gets a sandbox whose
`remote` is awaitable, a plain one a sandbox whose `remote` blocks, whichever kind the provider makes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from .records import AgentResult, SandboxConfig


@runtime_checkable
class Sandbox(Protocol):
    """A sandbox as a plain method sees it."""

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in the sandbox, wait, and return its value.

        Raises:
            RemoteError: `fn` raised there.
            SandboxDied: the sandbox ended meanwhile.
            CallError: `fn` or its arguments can't be sent.
            BadResult: what came back is no valid result.
        """
        ...


@runtime_checkable
class AsyncSandbox(Protocol):
    """A sandbox as an async method sees it: the same, awaitable."""

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


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
    """Makes sandboxes. A sandbox may offer `kill()`, callable from any thread, which ends it and wakes whoever waits
    for it; one of an async provider that doesn't is cancelled instead.

    Optional: `expect_image(image, platform) -> over` is told of each rollout to come, in order, so that images can be
    pulled ahead; `over()` is called, from any thread, when that rollout is over, and may not block.
    `check_run(bundle=..., platform=...)` raises BadArgument, before anything is run, for what can't work.
    """

    def session(
        self, config: SandboxConfig
    ) -> AbstractContextManager[Sandbox] | AbstractAsyncContextManager[AsyncSandbox]:
        """A context manager, sync or async, that makes a sandbox and removes it at its end."""
        ...
