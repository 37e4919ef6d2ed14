"""Claude Code, the real CLI: it runs in the sandbox and asks its model through a tunnel, without a network and without
the key, which stays on this machine.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen
from testbed import DIFF, WORKDIR, patch_of

from agentix_runner import AgentResult
from agentix_runner.errors import BadArgument
from agentix_runner.remote.tools import BashResult, bash, write_file
from agentix_runner.remote.wire.codec import Malformed, check_depth

HOME = "/tmp/agentix-claude"  # not the repository's, and not the image's own user's
TASK = """\
The repository in the working directory has this issue. Change its source files so that the issue is resolved; leave \
the tests as they are, and don't commit.

{problem_statement}
"""
# The bundle's folder first. Where an image has no glibc, the bundle's own loader starts it; it can't be patched, as it
# carries data behind its end.
COMMAND = """\
claude=/agentix/claude/claude
[ -x "$claude" ] || claude=$(command -v claude) || { echo "there is no claude: build a bundle with it" >&2; exit 127; }
loader=$(echo /agentix/lib/ld-linux-*)
if [ -e "/lib64/${loader##*/}" ] || [ -e "/lib/${loader##*/}" ]; then set -- "$claude" "$@"
else set -- "$loader" --library-path /agentix/lib "$claude" "$@"; fi
exec "$@" < "$HOME/task.txt"
"""


def _environment_key() -> str:
    return os.environ.get("ANTHROPIC_API_KEY", "").strip()


@frozen(kw_only=True)
class ClaudeCodeAgent:
    """Gives the issue to `claude -p` in /testbed, and takes the changes that it leaves as the patch.

    Args:
        upstream: the Messages API. Default: ANTHROPIC_BASE_URL, else Anthropic's.
        api_key: default: ANTHROPIC_API_KEY.
        max_turns: most turns; the edits that were made until then are the patch.
        timeout: most seconds, likewise.
        api_timeout: how long the API may take for one answer, in seconds.
        api_retries: how often the CLI asks again while the API refuses, is overloaded or out of reach; 10 times take
            three minutes. Default: CLAUDE_CODE_MAX_RETRIES, else 10.
    """

    upstream: str = field(factory=lambda: os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com")
    api_key: str = field(factory=_environment_key, repr=False, eq=False)
    max_turns: int = 100
    timeout: float = 3300
    api_timeout: float = 600
    api_retries: int = field(factory=lambda: int(os.environ.get("CLAUDE_CODE_MAX_RETRIES") or 10))

    def __attrs_post_init__(self) -> None:
        if not self.api_key:
            raise BadArgument("ClaudeCodeAgent has no key: set ANTHROPIC_API_KEY")

    async def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        await sandbox.remote(
            write_file, f"{HOME}/task.txt", TASK.format(problem_statement=instance["problem_statement"])
        )
        arguments = [
            "-p",
            "--output-format",
            "json",
            "--dangerously-skip-permissions",
            "--max-turns",
            str(self.max_turns),
        ]
        arguments += ["--model", model] if model else []
        with tempfile.TemporaryDirectory(prefix="agentix-claude-") as folder:
            record = Path(folder, "exchanges.jsonl")
            tunnel = sandbox.tunnel(
                self.upstream, headers={"x-api-key": self.api_key}, record=record, read_timeout=self.api_timeout
            )
            async with tunnel as url:
                ran = await sandbox.remote(
                    bash, _command(arguments), cwd=WORKDIR, env=self.environment(url), timeout=self.timeout
                )
            exchanges = record.read_bytes()
        usage = asdict(tunnel.usage)
        told = outcome(ran)
        raise_if_api_failed(ran, told, usage)
        patch = patch_of(await sandbox.remote(bash, **DIFF))
        cost = told.get("total_cost_usd")
        info = {
            "ended": "timed_out" if ran.timed_out else str(told.get("subtype"))[:100],
            "turns": told["num_turns"] if isinstance(told.get("num_turns"), int) else None,
            "cost_usd": cost if isinstance(cost, float | int) else None,
            "usage": usage,
        }
        files = {"claude.json": ran.stdout, "exchanges.jsonl": exchanges}
        return AgentResult(patch=patch, exit_code=ran.exit_code, info=info, files=files)

    def environment(self, url: str) -> dict[str, str]:
        """The CLI's environment in the sandbox."""
        return {
            "HOME": HOME,
            "IS_SANDBOX": "1",  # it won't run as root otherwise
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "the-key-is-on-the-host",
            "API_TIMEOUT_MS": str(int(self.api_timeout * 1000)),
            "CLAUDE_CODE_MAX_RETRIES": str(self.api_retries),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }


def _command(arguments: list[str]) -> str:
    from shlex import join

    return f"set -- {join(arguments)}\n{COMMAND}"


def outcome(ran: BashResult) -> dict[str, Any]:
    """What the CLI says of its run, in the last line of its output that is an object; {} where there is none."""
    for line in reversed(ran.stdout.splitlines()):
        if line.startswith("{"):
            try:
                check_depth(line.encode("utf-8", "surrogateescape"))
                told = json.loads(line)
            except (ValueError, Malformed, RecursionError):
                return {}
            return told if isinstance(told, dict) else {}
    return {}


def raise_if_api_failed(ran: BashResult, told: dict[str, Any], usage: dict[str, int]) -> None:
    """Raise where the CLI could not do its work: that is no failure of the model's.

    Raises:
        RuntimeError: the API refused, was overloaded or never answered; or the CLI did not start, or crashed.
    """
    answered = usage.get("output_tokens", 0) > 0
    if ran.timed_out and answered:
        return
    if ran.timed_out:
        raise RuntimeError("claude ran out of time without one answer from its API: is it there?")
    if not told:
        said = " ".join((ran.stderr or ran.stdout)[-500:].split())
        raise RuntimeError(f"claude ended with {ran.exit_code} and told no result: {said}")
    # In 2.1 an error of the API is called a success.
    if told.get("is_error") and (told.get("terminal_reason") == "api_error" or told.get("subtype") == "success"):
        raise RuntimeError(f"claude's API failed: {' '.join(str(told.get('result'))[:500].split())}")
