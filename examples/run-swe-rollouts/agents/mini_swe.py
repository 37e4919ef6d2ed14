"""mini-swe-agent, the package itself: its loop and its prompts run here, its commands in the sandbox."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

from attrs import field, frozen
from testbed import DIFF, WORKDIR, patch_of

from agentix_runner import AgentResult
from agentix_runner.errors import BadArgument, RemoteError
from agentix_runner.remote.tools import MIB, bash

INSTALL = "pip install 'agentix-runner[mini]'"
MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@frozen(kw_only=True)
class MiniSweAgent:
    """Runs mini-swe-agent with its own configuration for SWE-bench.

    Args:
        config: the name of its configuration, or a path: what `mini-extra swebench --config` takes.
        settings: changes to it, as in `{"agent": {"step_limit": 50}, "model": {"cost_tracking": "ignore_errors"}}`.
        make_model: makes a model of mini-swe-agent from a model's name. Default: what the package makes of it, which
            asks the model from here; keys stay on this machine.
    """

    config: str = "swebench.yaml"
    settings: dict[str, Any] = field(factory=dict)
    make_model: Callable[[str | None], Any] | None = field(default=None, repr=False)

    def check(self, model: str | None) -> None:
        """Raise BadArgument where the package or its configuration is not there, or makes no such model. Asks none."""
        try:
            self._loaded(model)
        except Exception as exc:
            raise BadArgument(f"the agent mini can't start: {without_keys(str(exc))}") from exc

    def _loaded(self, model: str | None) -> tuple[Package, dict[str, Any], Any]:
        mini = Package()
        settings = mini.merge(mini.config(self.config), self.settings)
        chosen = self.make_model(model) if self.make_model else mini.get_model(model, settings.get("model", {}))
        return mini, settings, chosen

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        mini, settings, chosen = self._loaded(model)
        environment = SandboxEnvironment(sandbox, settings.get("environment", {}), mini.Submitted)
        agent = mini.DefaultAgent(chosen, environment, **settings.get("agent", {}))
        try:
            outcome = agent.run(instance["problem_statement"])
        except Exception as exc:
            if environment.broken is not None:
                raise environment.broken from None
            raise RuntimeError(f"mini-swe-agent: {type(exc).__name__}: {without_keys(str(exc))}") from None
        status, submission = outcome.get("exit_status", ""), outcome.get("submission", "")
        # At a limit there is no submission, but there are edits.
        patch = submission if submission.strip() else patch_of(sandbox.remote(bash, **DIFF))
        info = {"exit_status": status, "calls": agent.n_calls, "cost_usd": agent.cost, **usage(agent.messages)}
        trajectory = without_keys(
            json.dumps(agent.serialize({"instance_id": instance["instance_id"]}), indent=1, default=str)
        )
        return AgentResult(
            patch=patch,
            exit_code=0 if status == "Submitted" else 1,
            info={**info, "patch_from": "submission" if submission.strip() else "worktree"},
            files={"trajectory.json": trajectory},
        )


class SandboxEnvironment:
    """An environment of mini-swe-agent: each command is run in the sandbox, in a shell of its own."""

    def __init__(self, sandbox: Any, settings: dict[str, Any], submitted: type[Exception]) -> None:
        self.config = settings
        self.broken: Exception | None = None
        self._sandbox = sandbox
        self._submitted = submitted
        self._cwd, self._timeout = settings.get("cwd") or WORKDIR, settings.get("timeout") or 60
        self._env = {str(name): str(value) for name, value in (settings.get("env") or {}).items()}

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        command = f"exec 2>&1\n{action.get('command', '')}"
        try:
            ran = self._sandbox.remote(
                bash, command, cwd=cwd or self._cwd, env=self._env, timeout=self._timeout, max_output=64 * MIB
            )
        except RemoteError as exc:  # the command's own fault: it holds a NUL, or there is no such directory
            return {"output": "", "returncode": -1, "exception_info": f"{exc.type_name}: {exc.remote_message}"}
        except Exception as exc:  # the sandbox's end is not something that a model should read
            self.broken = exc
            raise
        first, _, rest = ran.stdout.lstrip().partition("\n")
        if first.strip() == MARK and ran.exit_code == 0 and not ran.timed_out:
            if ran.truncated:
                self.broken = RuntimeError("what mini-swe-agent submitted is larger than 64 MiB: it can't be kept")
                raise self.broken
            outcome = {"exit_status": "Submitted", "submission": rest}
            raise self._submitted({"role": "exit", "content": readable(rest), "extra": outcome})
        late = f"the command took longer than {self._timeout} s, and was ended" if ran.timed_out else ""
        code = -1 if ran.timed_out else ran.exit_code
        return {"output": readable(ran.stdout), "returncode": code, "exception_info": late}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {**self.config, "system": "Linux", "release": "", "version": "", "machine": "", **kwargs}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": self.config, "environment_type": "agentix_runner"}}}


def readable(text: str) -> str:
    """Text that a model's API takes: bytes that are no UTF-8 are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def usage(messages: list[dict[str, Any]]) -> dict[str, int]:
    """The tokens that the model's answers report."""
    total = {"input_tokens": 0, "output_tokens": 0}
    for message in messages:
        response = (message.get("extra") or {}).get("response")
        used = (response.get("usage") if isinstance(response, dict) else None) or {}
        for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            value = used.get(name, used.get(other))
            total[name] += value if isinstance(value, int) else 0
    return total


def without_keys(text: str) -> str:
    """`text` without the keys that this process has in its environment: some services repeat them in their errors."""
    for name, value in os.environ.items():
        if re.search(r"KEY|TOKEN|SECRET|PASSWORD", name.upper()) and len(value) >= 8:
            text = text.replace(value, f"[{name}]").replace(json.dumps(value)[1:-1], f"[{name}]")
    return text


class Package:
    """mini-swe-agent, imported when it is needed: it prints at its import unless it is told not to."""

    def __init__(self) -> None:
        os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
        try:
            from minisweagent.agents.default import DefaultAgent
            from minisweagent.config import get_config_from_spec
            from minisweagent.exceptions import Submitted
            from minisweagent.models import get_model
            from minisweagent.utils.serialize import recursive_merge
        except ImportError as exc:
            raise RuntimeError(f"mini-swe-agent can't be imported ({exc}): {INSTALL}") from exc
        self.DefaultAgent, self.Submitted = DefaultAgent, Submitted
        self.config, self.get_model, self.merge = get_config_from_spec, get_model, recursive_merge
