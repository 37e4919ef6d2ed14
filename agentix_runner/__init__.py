"""Run an agent over a dataset of instances, each in a sandbox of its own, and score every patch in a fresh one.

The names below are imported on first use (PEP 562): `import agentix_runner` itself loads neither docker nor click.
"""

from __future__ import annotations

from ._version import __version__

# Not from typing: the sandbox side goes through here too, and what it loads is waited for once a sandbox.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .errors import AgentixError
    from .protocols import Agent, AsyncSandbox, Dataset, Sandbox, SandboxProvider
    from .providers.docker import DockerProvider
    from .providers.local import LocalProvider
    from .records import AgentResult, Failure, Resource, RetryPolicy, Rollout, SandboxConfig, Timeouts
    from .runner import iter_rollouts, rollout_one, run_rollouts

_HOME = {
    "Agent": "protocols",
    "AgentResult": "records",
    "AgentixError": "errors",
    "AsyncSandbox": "protocols",
    "Dataset": "protocols",
    "DockerProvider": "providers.docker",
    "Failure": "records",
    "LocalProvider": "providers.local",
    "Resource": "records",
    "RetryPolicy": "records",
    "Rollout": "records",
    "Sandbox": "protocols",
    "SandboxConfig": "records",
    "SandboxProvider": "protocols",
    "Timeouts": "records",
    "iter_rollouts": "runner",
    "rollout_one": "runner",
    "run_rollouts": "runner",
}

__all__ = [
    "Agent",
    "AgentResult",
    "AgentixError",
    "AsyncSandbox",
    "Dataset",
    "DockerProvider",
    "Failure",
    "LocalProvider",
    "Resource",
    "RetryPolicy",
    "Rollout",
    "Sandbox",
    "SandboxConfig",
    "SandboxProvider",
    "Timeouts",
    "__version__",
    "iter_rollouts",
    "rollout_one",
    "run_rollouts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
