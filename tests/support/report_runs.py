"""Run directories for the tests of what shows them: every kind of outcome, and text that would break a page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentix_runner.records import Failure, Rollout
from agentix_runner.rundir.directory import RunDir

EVIL = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>&lt;"
ODD = "\x1b[31mred\x1b[0m \u202eright to left\u202c \u2028 \udc80"
LONG = "long/" + "x" * 295

PATCH = """\
diff --git a/x.py b/x.py
index 1111111..2222222 100644
--- a/x.py
+++ b/x.py
@@ -7,3 +7,3 @@ def f():
 same
-old
+new
-- looks like a head
 end
"""


def rollout(name: str, start: float = 0.0, **fields: object) -> Rollout:
    """A rollout that started `start` seconds into its run, with plausible phases."""
    phases = [("session", 0.0, 0.5), ("setup", 0.5, 2.0), ("agent", 2.0, 10.0), ("teardown", 10.0, 10.5)]
    if fields.get("score"):
        phases += [("session", 10.5, 11.0), ("score", 11.0, 15.0), ("teardown", 15.0, 15.5)]
    defaults = {"started_at": 1_700_000_000.0 + start, "phases": phases, "duration_s": phases[-1][2]}
    return Rollout(name, **{**defaults, **fields})  # type: ignore[arg-type]


def failed(name: str, phase: str, kind: str, message: str, traceback: str = "", **fields: object) -> Rollout:
    failure = Failure(phase, kind, message, traceback)
    return rollout(name, error=f"{kind}: {message}", failure=failure, **fields)


def every_kind() -> list[Rollout]:
    """One of each outcome, several attempts, and hostile text wherever a run can have text."""
    return [
        rollout("good", 0, score={"resolved": True, "tests": {"passed": 3}}, patch=PATCH, model="m", agent_exit=0),
        rollout("bad", 1, score={"resolved": False, "n": 2**70}, patch=PATCH, info={"usage": {"input_tokens": 1200}}),
        rollout("bad", 20, attempt=1, score={"resolved": True}, patch=PATCH, info={"cost": 0.25}, duration_s=99.0),
        rollout("empty", 2, skipped="empty_patch"),
        rollout("unprepared", 3, skipped="setup_failed"),
        rollout("unscored", 4, patch=PATCH),
        failed("slow", "agent", "PhaseTimeout", "the agent ran past its 10 s"),
        failed("slow setup", "setup", "PhaseTimeout", "the setup ran past its 5 s"),
        failed("slow score", "score", "PhaseTimeout", "the score ran past its 5 s", patch=PATCH),
        failed("dead", "agent", "SandboxDied", "the sandbox ended: memory ran out"),
        failed("remote", "score", "RemoteError", "ValueError: no", 'Traceback:\n  File "x.py", line 1\nValueError: no'),
        failed(EVIL, "agent", f"Type{EVIL}", EVIL, EVIL + ODD, patch=f"@@ -1 +1 @@\n+{EVIL}\n-{ODD}\n", model=EVIL),
        rollout(ODD, 5, score={"resolved": False, EVIL: EVIL, "odd": ODD}, patch="+" + "y" * 9000, info={EVIL: [EVIL]}),
        failed(LONG, "session", "SandboxStartError", "registry " + "z" * 3000, started_at=None, phases=[]),
    ]


def make_run(
    path: Path,
    rollouts: Iterable[Rollout],
    *,
    model: str = "m",
    log: bytes | None = None,
    files: bool = False,
    planned: int | None = None,
) -> Path:
    """A run directory with these rollouts of `planned`; `log` is what each of them printed."""
    identity = {"dataset": {"adapter": "bench:tasks"}, "agent": {"adapter": "bench:Agent"}, "model": model}
    with RunDir(path, identity=identity, details={"rollouts": planned} if planned else {}) as run_dir:
        for each in rollouts:
            if log is not None:
                run_dir.log(each.instance_id, each.attempt)(log)
                run_dir.close_log(each.instance_id, each.attempt)
            if files:
                run_dir.save(each.instance_id, each.attempt, {"traj.json": "{}", EVIL: "x"})
            run_dir.record([each])
    return path
