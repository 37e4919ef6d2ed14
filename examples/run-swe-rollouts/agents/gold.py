"""The agent that knows the answers."""

from __future__ import annotations

from typing import Any

from agentix_runner import AgentResult


class GoldPatchAgent:
    """Gives each row's own patch: shows that the dataset, the images and the machine work."""

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        return AgentResult(patch=instance["patch"], exit_code=0)
