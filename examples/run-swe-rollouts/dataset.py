"""SWE-bench, and what is in its row format: SweDataset."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import field, frozen
from harness import Harness
from testbed import CLEAN, MIB, RESTORE, WORKDIR, exclusions, raise_if_machine

from agentix_runner.errors import BadArgument
from agentix_runner.remote.tools import BashResult, bash, read_file, write_file

NEEDED = ("instance_id", "repo", "version", "image", "eval_script", "log_parser", "eval_type")
NEEDED_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
LOG_CHARS = 20_000
"""How much of the log's end is kept in a score, in characters."""


@frozen(kw_only=True)
class SweDataset:
    """Rows in the format of swebench 5. Each names its image, its test script and how the script's output is read.

    Args:
        rows: the rows, or the path of a file of them, one JSON object a line.
        name: the dataset's name, where there is no `rows`: swebench's alias ("verified"), a hub's name or a path.
        split: which part of it.
        eval_timeout: how long a row's test script may run, in seconds.
        max_log: most bytes of its output. A script that prints more is an error, as its log can't be graded.
    """

    rows: Any = field(default=None, repr=False)
    name: str | None = None
    split: str = "test"
    eval_timeout: float = 1800
    max_log: int = 64 * MIB
    harness: Harness = field(factory=Harness, repr=False, eq=False)

    def instances(self) -> Iterable[dict[str, Any]]:
        if self.rows is None:
            return self.harness.ask("rows", name=self.name or "SWE-bench/SWE-bench", split=self.split)
        return read_rows(self.rows) if isinstance(self.rows, (str, Path)) else self.rows

    def image(self, instance: dict[str, Any]) -> str:
        check(instance)
        return instance["image"]

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        """Put /testbed into its clean state: nothing to commit, whatever the image comes with."""
        self.harness.start()
        path, lines = exclusions(sandbox.remote(bash, **CLEAN))
        path = str(Path(WORKDIR, path))
        sandbox.remote(write_file, path, sandbox.remote(read_file, path) + lines.encode("utf-8", "surrogateescape"))
        return True

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        """The harness' own report, "resolved", where it failed ("apply", "timeout", "log", "tests", or None) and the
        end of the log. Raises where the machine failed and not the patch."""
        spec = self.harness.ask("spec", row=row_of(instance))
        applied, log = self.apply(sandbox, spec, patch)
        if not applied:
            return self.grade(instance, patch, log, "apply")
        sandbox.remote(write_file, "/eval.sh", spec["eval_script"])
        # Both streams are one, in the order in which they were written: that is how the log is read.
        script = {"command": "exec /bin/bash /eval.sh 2>&1", "timeout": self.eval_timeout, "max_output": self.max_log}
        ran = sandbox.remote(bash, **script)
        if ran.truncated:
            raise RuntimeError(f"the tests printed more than {self.max_log >> 20} MiB: give a larger max_log")
        log = ran.stdout.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        raise_if_out_of_memory(sandbox)
        return self.grade(instance, patch, log, "timeout" if ran.timed_out else None, script=ran)

    def apply(self, sandbox: Any, spec: dict[str, Any], patch: str) -> tuple[bool, str]:
        """Apply the patch by the first of the harness' commands that does it. Whether one did, and what the last
        one said."""
        sandbox.remote(write_file, spec["patch_file"], patch)
        for number, command in enumerate(spec["apply"]):
            if number:
                raise_if_machine(sandbox.remote(bash, **RESTORE), "git checkout and git clean")
            result = sandbox.remote(bash, f"{command} {spec['patch_file']}", cwd=spec["workdir"], timeout=900)
            if result.exit_code == 0:
                return True, result.stdout + result.stderr
            raise_if_machine(result, command)
        # All of them may fail where all of the patch is there, already.
        check = f"git apply --check --reverse {spec['patch_file']}"
        return sandbox.remote(
            bash, check, cwd=spec["workdir"], timeout=900
        ).exit_code == 0, result.stdout + result.stderr

    def grade(
        self, instance: dict[str, Any], patch: str, log: str, failed: str | None, script: BashResult | None = None
    ) -> dict[str, Any]:
        text = patch.encode("utf-8", "replace").decode()
        graded = self.harness.ask("grade", row=row_of(instance), patch=text, log=log, failed=failed)
        report = graded["report"]
        if report.get("infra_failure"):
            raise RuntimeError(f"the tests did not run, by the machine's fault: {report['infra_failure_reason']}")
        killed = graded["exit_code"] == 137 or (script is not None and script.exit_code == 137 and failed is None)
        if killed and not report["resolved"]:
            raise RuntimeError("the tests were killed (SIGKILL), as happens where a machine's memory runs out")
        if not report["resolved"]:
            failed = failed or ("tests" if report["patch_successfully_applied"] else "log")
        return {**report, "failure_stage": failed, "log": log[-LOG_CHARS:]}


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl (or .json) file. Raises: BadArgument."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        rows = (
            json.loads(text) if str(path).endswith(".json") else [json.loads(x) for x in text.split("\n") if x.strip()]
        )
    except (OSError, ValueError) as exc:
        raise BadArgument(f"{path} can't be read as rows, one JSON object a line: {exc}") from exc
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadArgument(f"{path} holds something else than rows: give one JSON object a line")
    return rows


def check(row: dict[str, Any]) -> None:
    """Raise BadArgument where a row is not in the format of swebench 5."""
    missing = [name for name in NEEDED if not isinstance(row.get(name), str) or not row[name]]
    missing += [name for name in NEEDED_LISTS if not isinstance(row.get(name), (str, list))]
    if missing:
        raise BadArgument(
            f"row {row.get('instance_id')!r} has no {', '.join(missing)}: it is of a revision from before swebench 5; "
            "the current revisions of SWE-bench/SWE-bench, _Lite, _Verified, _Multilingual and _Multimodal have it "
            "(those of princeton-nlp/ do not)"
        )


def row_of(instance: dict[str, Any]) -> dict[str, Any]:
    """What of a row the harness reads."""
    check(instance)
    return {name: instance[name] for name in NEEDED + NEEDED_LISTS}


def raise_if_out_of_memory(sandbox: Any) -> None:
    """The kernel's own count, which nothing in the sandbox can change, of processes killed as memory ran out."""
    files = "/sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"
    for line in sandbox.remote(bash, f"cat {files} 2>/dev/null; true", timeout=60).stdout.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip() not in ("", "0"):
            raise RuntimeError("memory ran out while the tests ran: give the sandboxes more")
