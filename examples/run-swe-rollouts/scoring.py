"""A patch's way to a verdict: applied, tested, graded; and where there is none because the machine failed."""

from __future__ import annotations

from typing import Any

from harness import Harness
from testbed import RESTORE, WORKDIR, raise_if_machine

from agentix_runner.remote.tools import BashResult, bash, write_file

LOG_CHARS = 20_000
"""How much of a log's end is kept in a score, in characters."""
_KILLED = 137


def apply(sandbox: Any, spec: dict[str, Any], patch: str) -> tuple[bool, str]:
    """Apply `patch` by the first of the harness' commands that does it. Whether one did, and what the last one said.

    Raises:
        RuntimeError: a command failed by the machine's fault.
    """
    sandbox.remote(write_file, spec["patch_file"], patch)
    for number, command in enumerate(spec["apply"]):
        if number:
            raise_if_machine(sandbox.remote(bash, **RESTORE), "git checkout and git clean")
        result = sandbox.remote(bash, f"{command} {spec['patch_file']}", cwd=WORKDIR, timeout=900)
        if result.exit_code == 0:
            return True, result.stdout + result.stderr
        raise_if_machine(result, command)
    # All of them may fail where all of the patch is there, already.
    reversed_ = sandbox.remote(bash, f"git apply --check --reverse {spec['patch_file']}", cwd=WORKDIR, timeout=900)
    return reversed_.exit_code == 0, result.stdout + result.stderr


def run_tests(sandbox: Any, spec: dict[str, Any], *, timeout: float, max_log: int) -> BashResult:
    """Run a row's test script. Its log, in `stdout`, is both streams in the order in which they were written.

    Raises:
        RuntimeError: the log is too long to be kept, or memory ran out.
    """
    sandbox.remote(write_file, "/eval.sh", spec["eval_script"])
    ran: BashResult = sandbox.remote(bash, "exec /bin/bash /eval.sh 2>&1", timeout=timeout, max_output=max_log)
    if ran.truncated:
        raise RuntimeError(f"the tests printed more than {max_log >> 20} MiB: give a larger max_log")
    # The kernel's own count, which nothing in the sandbox can change, of processes that were killed.
    counts = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null; true"
    for line in sandbox.remote(bash, counts, timeout=60).stdout.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip() not in ("", "0"):
            raise RuntimeError("memory ran out while the tests ran: give the sandboxes more")
    return ran


def grade(
    harness: Harness, row: dict[str, Any], patch: str, log: str, *, stage: str | None = None, exit_code: int = 0
) -> dict[str, Any]:
    """The score: swebench's own report of `log`, "failure_stage" and the log's end. `stage` is where it failed, if it
    did before there was anything to grade: "apply" or "timeout"; else it is "log" (nothing there to grade), "tests", or
    None where the patch resolves. `exit_code` is that of the test script.

    Raises:
        RuntimeError: the tests failed by the machine's fault.
    """
    readable = log.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = patch.encode("utf-8", "replace").decode()
    graded = harness.ask("grade", row=row, patch=text, log=readable, failed=stage)
    report = graded["report"]
    if report.get("infra_failure"):
        raise RuntimeError(f"the tests did not run, by the machine's fault: {report['infra_failure_reason']}")
    if not report["resolved"]:
        if stage is None and _KILLED in (graded["exit_code"], exit_code):
            raise RuntimeError("the tests were killed (SIGKILL), as happens where a machine's memory runs out")
        stage = stage or ("tests" if report["patch_successfully_applied"] else "log")
    return {**report, "failure_stage": stage, "log": readable[-LOG_CHARS:]}
