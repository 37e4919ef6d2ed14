"""`agentix show`: the summary, lists by status, and one rollout in full, with untrusted text made printable."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from agentix_runner.cli.main import main as agentix
from agentix_runner.cli.show import describe_rollout
from agentix_runner.records import Rollout
from agentix_runner.rundir.directory import RunDir

from ..support.report_runs import EVIL, PATCH, every_kind, failed, make_run, rollout
from .test_run import CLI


def shown(path: Path, *arguments: str) -> str:
    """What `agentix show` prints, without colours."""
    done = CLI.invoke(agentix, ["show", str(path), *arguments], prog_name="agentix")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.removesuffix("\n")


def refused(path: Path, *arguments: str) -> str:
    """The one line that says why it shows nothing."""
    done = CLI.invoke(agentix, ["show", str(path), *arguments], prog_name="agentix")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("Error: ")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", every_kind(), log=b"printed\r\n\x1b[32mgreen\x1b[0m\n")


def test_summary(run: Path) -> None:
    """Without an id it is the table of the run's end."""
    text = shown(run)
    assert text.startswith("14 rollouts (13 instances, up to 2 attempts)\n  resolved      2  14.3%\n")
    assert f"results: {run}" in text


def test_one_rollout(run: Path) -> None:
    """With an id it is everything about it: times, score, patch, log."""
    assert (
        shown(run, "good")
        == f"""\
good  resolved
  15.5s, model m, agent's exit code 0
  session 0.50s, setup 1.5s, agent 8.0s, teardown 0.50s, session 0.50s, score 4.0s, teardown 0.50s

score
  {{
    "resolved": true,
    "tests": {{
      "passed": 3
    }}
  }}

patch  10 lines, {run}/good/patch.diff
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

log
  printed
  green"""
    )


def test_error(run: Path) -> None:
    """An error is shown with its phase and its traceback."""
    text = shown(run, "remote")
    assert text.startswith("remote  error\n")
    assert (
        '\nerror  in score\n  RemoteError: ValueError: no\n  Traceback:\n    File "x.py", line 1\n  ValueError: no\n'
        in text
    )


def test_attempts(run: Path) -> None:
    """All attempts are shown, or the one that is asked for."""
    text = shown(run, "bad")
    assert [line for line in text.split("\n") if line.startswith("bad")] == [
        "bad  unresolved",
        "bad  attempt 1  resolved",
    ]
    assert shown(run, "bad", "--attempt", "1").startswith("bad  attempt 1  resolved\n  1m39s\n")
    assert refused(run, "bad", "--attempt", "2") == "bad has no attempt 2: there are 0, 1\n"


def test_the_beginning_of_an_id_is_enough(run: Path) -> None:
    """Where only one id begins so; a whole id counts before ids that begin with it."""
    assert shown(run, "unsc").startswith("unscored  not scored\n")
    assert shown(run, "slow").startswith("slow  error\n")
    assert "2 ids begin with 'un': unprepared, unscored" in refused(run, "un")


def test_no_such_id(run: Path, tmp_path: Path) -> None:
    """It names the close ones, or some of those that there are."""
    assert "run has no rollout of 'remoet': close ones: remote" in refused(run, "remoet")
    assert "no rollout of '?': there are good, bad, empty and 10 more" in refused(run, "?")
    assert "empty has no rollout of 'x': nothing has finished yet" in refused(make_run(tmp_path / "empty", []), "x")


def test_lists(run: Path) -> None:
    """--status lists the rollouts of a status, one a line."""
    found = shown(run, "--status", "setup_failed", "--status", "empty_patch")
    assert found == "empty patch   empty\nsetup failed  unprepared"
    assert shown(run, "--status", "resolved") == "resolved      bad (attempt 1)\nresolved      good"
    assert "error         slow  PhaseTimeout: the agent ran past its 10 s\n" in shown(run, "--status", "error")
    assert shown(run, "--status", "not_run") == "no rollout is not run"


def test_json(run: Path) -> None:
    """As JSON it is the summary, the whole rollout, or the ids of a status: an object a line."""
    assert json.loads(shown(run, "--json"))["rollouts"] == 14
    assert json.loads(shown(run, "good", "--json"))["patch"] == PATCH
    lines = shown(run, "--status", "resolved", "--json").split("\n")
    assert [json.loads(line) for line in lines] == [
        {"instance_id": "bad", "attempt": 1},
        {"instance_id": "good", "attempt": 0},
    ]


def test_nothing_steers_the_terminal(run: Path) -> None:
    """Whatever ids, errors, patches, scores and logs hold, only printable text and line ends come out."""
    for each in every_kind():
        text = shown(run, each.instance_id)
        assert all(char.isprintable() or char == "\n" for char in text)
    assert EVIL in shown(run, EVIL)


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """Of a log the last lines are shown, and it says where all of it is."""
    log = b"".join(b"line %d\n" % n for n in range(100))
    run = make_run(tmp_path / "run", [rollout("a", patch="+" + "x" * 2_000_000)], log=log)
    text = shown(run, "a")
    assert text.endswith("line 99")
    assert f"\nlog  the end; all {len(log):,} bytes are in {run}/a/sandbox.log\n  line 60\n" in text
    assert "\n  [cut here]\n" in text


def test_color(run: Path) -> None:
    """A patch is coloured as a diff."""
    [patched] = [rollout for rollout in every_kind() if rollout.instance_id == "good"]
    text = describe_rollout(run, patched)
    assert click.style("+new", fg="green") in text
    assert click.style("-old", fg="red") in text


def test_while_the_run_goes_on(tmp_path: Path) -> None:
    """A run can be looked at while it goes on, and that does not disturb it."""
    with RunDir(tmp_path / "run", identity={}) as run_dir:
        run_dir.record([failed("a", "agent", "E", "x")])
        assert shown(tmp_path / "run", "--status", "error") == "error         a  E: x"
        run_dir.record([Rollout("b")])
        assert shown(tmp_path / "run").startswith("2 rollouts\n")


def test_what_is_left(tmp_path: Path) -> None:
    """Where not all that was planned is there, its end says so, and whether it is still to come."""
    with RunDir(tmp_path / "run", identity={}, details={"rollouts": 3}) as run_dir:
        run_dir.record([Rollout("a")])
        assert shown(tmp_path / "run").endswith("\n2 of 3 rollouts are still to come: the run goes on")
    assert shown(tmp_path / "run").endswith("\n2 of 3 rollouts are missing: run it again to have them")
    with RunDir(tmp_path / "run", identity={}, details={"rollouts": 1}):
        pass
    assert "rollouts are" not in shown(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good", "--status", "error"], "ID and --status exclude each other: leave one of them out"),
        (["--attempt", "1"], "--attempt needs an ID: agentix show RUN_DIR ID --attempt N"),
        (["--status", "nope"], "Invalid value for '--status': 'nope' is not one of 'resolved', "),
    ],
)
def test_wrong_use(run: Path, arguments: list[str], message: str) -> None:
    """What can't be shown is one line on stderr and exit code 2."""
    assert refused(run, *arguments).startswith(message)


def test_other_directories(run: Path) -> None:
    """What is no run directory, or is damaged, is told as such."""
    assert refused(run.parent).startswith(f"{run.parent} is no run directory: it has no run.json")
    (run / "rollouts.jsonl").write_bytes(b"{}\n" + (run / "rollouts.jsonl").read_bytes())
    assert "line 1 is broken" in refused(run)
