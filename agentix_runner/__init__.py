"""Run an agent over a dataset of instances, each in a sandbox of its own, and score every patch in a fresh one.

The names below are imported on first use (PEP 562): `import agentix_runner` itself loads neither docker nor click.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .errors import AgentixError
    from .protocols import Agent, AsyncSandbox, Dataset, Sandbox, SandboxProvider
    from .providers.docker import DockerProvider
    from .providers.local import LocalProvider
    from .records import (
        AgentResult,
        Failure,
        Resource,
        RetryPolicy,
        Rollout,
        SandboxConfig,
        Timeouts,
    )
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
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
