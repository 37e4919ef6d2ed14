"""The table at the end of a run."""

from __future__ import annotations

from agentix_runner.records import NOT_RUN, Failure, Rollout
from agentix_runner.report.terminal import table, unstyled
from agentix_runner.rundir.summary import summarize
from agentix_runner.text import clean, cut_to, printable, seconds


def shown(*rollouts: Rollout, run_dir: str | None = None) -> str:
    return unstyled(table(summarize(rollouts), run_dir=run_dir))


def timed(rollout: Rollout, *phases: tuple[str, float, float]) -> Rollout:
    rollout.started_at = 1000.0
    rollout.phases = list(phases)
    rollout.duration_s = max(end for _, _, end in phases)
    return rollout


def failed(name: str, phase: str, kind: str, message: str) -> Rollout:
    return Rollout(name, error=f"{kind}: {message}", failure=Failure(phase, kind, message))


def test_everything() -> None:
    """It shows counts, rates, times, errors with an example, where the results are, and how to go on."""
    rollouts = [
        timed(
            Rollout("a", score={"resolved": True}, info={"cost": 0.25}),
            ("session", 0.0, 0.5),
            ("setup", 0.5, 1.0),
            ("agent", 1.0, 91.0),
            ("session", 91.0, 91.5),
            ("score", 92.0, 94.5),
        ),
        Rollout("b", score={"resolved": False}, info={"cost": 1.5}),
        Rollout("c", skipped="empty_patch"),
        Rollout("d", skipped="setup_failed"),
        failed("e", "agent", "PhaseTimeout", "the agent ran past its 3600 s"),
        failed("f", "session", "SandboxStartError", "no image \x1b]0;title\x07"),
        failed("g", "setup", "PhaseTimeout", "the setup ran past its 10 s"),
        Rollout("h", error=f"{NOT_RUN}the run was stopped"),
    ]
    assert (
        shown(*rollouts, run_dir="runs/x")
        == """\
8 rollouts
  resolved      1  12.5%
  unresolved    1  12.5%
  empty patch   1  12.5%
  setup failed  1  12.5%
  error         3  37.5%
  not run       1  12.5%

  resolved rate  12.5%
  cost            1.75

  time by phase   mean  longest    sum
  session        0.50s    0.50s   1.0s
  setup          0.50s    0.50s  0.50s
  agent          1m30s    1m30s  1m30s
  score           2.5s     2.5s   2.5s
  1m35s from start to end

errors
  2 x PhaseTimeout in agent, setup, for example
    e: PhaseTimeout: the agent ran past its 3600 s
  1 x SandboxStartError in session, for example
    f: SandboxStartError: no image \\x1b]0;title\\x07

results: runs/x
run the 1 that did not run: the same command with --out runs/x
run the 3 with an error again: the same command with --out runs/x --retry-errors"""
    )


def test_nothing_but_resolved() -> None:
    """A clean run is short."""
    assert shown(Rollout("a", score={"resolved": True})) == (
        "1 rollout\n  resolved  1  100.0%\n\n  resolved rate  100.0%"
    )


def test_attempts_and_rewards() -> None:
    """With several attempts it shows pass@k; with rewards other than 0 and 1 their mean."""
    rollouts = [Rollout("a", score={"resolved": i == 0, "reward": 0.75}, attempt=i) for i in range(2)]
    assert shown(*rollouts).splitlines() == [
        "2 rollouts (1 instance, up to 2 attempts)",
        "  resolved    1  50.0%",
        "  unresolved  1  50.0%",
        "",
        "  resolved rate   50.0%",
        "  pass@1          50.0%",
        "  pass@2         100.0%",
        "  mean reward     0.750",
    ]


def test_not_scored() -> None:
    """A run without scoring does not claim that nothing was resolved."""
    assert shown(Rollout("a", patch="x")) == "1 rollout\n  not scored  1  100.0%"


def test_many_errors() -> None:
    """Of many types of errors the most frequent are shown."""
    text = shown(*(failed(f"i{n}", "agent", f"E{n:02}", "x") for n in range(15)))
    assert text.count(" in agent, for example") == 10
    assert text.endswith("  and 5 other types")


def test_clean() -> None:
    """Text becomes one line without anything that steers a terminal, and is cut where it is long."""
    assert clean("a\nb\t\x1b[31m\x00\x9b\u202e\u2028c\ud800") == "a b \\x1b[31m\\x00\\x9b\\u202e c\\ud800"
    assert clean("naïve 日本") == "naïve 日本"
    assert clean("x" * 600) == "x" * 499 + "…"
    assert len(clean("\x1b" * 10_000_000, 50)) == 50
    assert printable("two\r\nlines\tand \x07") == "two\nlines\tand \\x07"


def test_cut_to() -> None:
    """A line is cut to the columns that a terminal has, where some characters take two and some none."""
    assert [cut_to("日本語", width) for width in (6, 5, 1, 0)] == ["日本語", "日本", "", ""]
    assert cut_to("e\u0301e\u0301e", 2) == "e\u0301e\u0301"
    assert cut_to("abc", 2) == "ab"


def test_seconds() -> None:
    """Durations have the precision that people look for."""
    assert [seconds(s) for s in (0.001, 0.999, 1, 59.9, 59.97, 3599.4, 3600, 90000)] == [
        "0.00s",
        "1.00s",
        "1.0s",
        "59.9s",
        "1m00s",
        "59m59s",
        "1h00m",
        "25h00m",
    ]
