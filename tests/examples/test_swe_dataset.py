"""SweDataset on the real engine: what is resolved and what is not, where it failed, and what is no verdict at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from agentix_runner import AgentResult, DockerProvider, Rollout, run_rollouts
from agentix_runner.errors import BadArgument
from agentix_runner.remote.tools import BashResult, bash

from ..support import swe_images as images
from ..support.processes import eventually
from ..support.swe_example import EXAMPLE, need, run_rows

from agents.recorded import RecordedAgent  # isort: skip
from dataset import SweDataset  # isort: skip
from harness import Harness, HarnessError  # isort: skip
from rows import check, graded_part, read_rows  # isort: skip
from scoring import apply  # isort: skip
from testbed import DIFF, exclusions, patch_of, raise_if_machine  # isort: skip

ADD, MUL = "tests/test_calc.py::test_add", "tests/test_calc.py::test_mul"
PATCHES = {
    "gold": images.GOLD,
    "wrong": images.WRONG,
    "breaks": images.BREAKS,
    "empty": "",
    "no-such-lines": images.DOES_NOT_APPLY,
    "hangs": images.HANGS,
    "forges": images.FORGES,
    "fuzzy": images.FUZZY,
    "nonsense": "this is no patch\n",
}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def verdicts(swe_row: dict[str, Any], harness: Harness) -> dict[str, Rollout]:
    """What became of each of PATCHES."""
    rows = [{**swe_row, "instance_id": name} for name in PATCHES]
    predictions = {name: {"instance_id": name, "model_patch": patch} for name, patch in PATCHES.items()}
    rollouts = run_rows(rows, RecordedAgent(predictions), harness, eval_timeout=6, n_concurrent=2)
    return {rollout.instance_id: rollout for rollout in rollouts}


def score_of(rollout: Rollout) -> dict[str, Any]:
    assert rollout.error is None
    assert rollout.score is not None
    return rollout.score


def test_the_gold_patch_resolves(verdicts: dict[str, Rollout]) -> None:
    """With a row's own patch the tests that must pass do, and the score says so in swebench's words."""
    score = dict(score_of(verdicts["gold"]))
    log = score.pop("log")
    assert score == {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": True,
        "resolved": True,
        "infra_failure": False,
        "tests_status": {
            "FAIL_TO_PASS": {"success": [ADD], "failure": []},
            "PASS_TO_PASS": {"success": [MUL], "failure": []},
            "FAIL_TO_FAIL": {"success": [], "failure": []},
            "PASS_TO_FAIL": {"success": [], "failure": []},
        },
        "failure_stage": None,
    }
    assert f"PASSED {ADD}\n" in log
    assert ">>>>> Test Exit Code: 0\n" in log


@pytest.mark.parametrize(
    ("name", "stage", "in_log"),
    [
        ("wrong", "tests", f"FAILED {ADD}"),
        ("breaks", "tests", f"FAILED {MUL}"),
        ("no-such-lines", "apply", "Hunk #1 FAILED"),
        ("nonsense", "apply", "Only garbage was found in the patch input"),
        ("hangs", "timeout", "+ python3 -m pytest"),
        ("forges", "log", f"PASSED {ADD}"),  # worth nothing where the exit code of the tests says otherwise
    ],
)
def test_what_is_unresolved_says_where(verdicts: dict[str, Rollout], name: str, stage: str, in_log: str) -> None:
    """A patch that does not apply, or after which a test fails, hangs or lies, is unresolved, and the score says at
    which stage, with what was said there."""
    score = score_of(verdicts[name])
    assert (score["resolved"], score["failure_stage"], score["patch_exists"]) == (False, stage, True)
    assert in_log in score["log"] or "patch: command not found" in score["log"]
    if stage == "tests":
        failing, passing = ("FAIL_TO_PASS", "PASS_TO_PASS") if name == "wrong" else ("PASS_TO_PASS", "FAIL_TO_PASS")
        assert score["tests_status"][failing]["success"] == score["tests_status"][passing]["failure"] == []
        assert [*score["tests_status"][failing]["failure"], *score["tests_status"][passing]["success"]] == (
            [ADD, MUL] if name == "wrong" else [MUL, ADD]
        )


def test_an_empty_patch_is_not_scored(verdicts: dict[str, Rollout]) -> None:
    """An empty patch is skipped, as the harness does."""
    assert (verdicts["empty"].status, verdicts["empty"].score) == ("empty_patch", None)


def test_a_patch_with_other_context_is_applied_by_the_last_resort(verdicts: dict[str, Rollout]) -> None:
    """What git refuses and patch takes with fuzz counts as applied, after a clean tree."""
    score = score_of(verdicts["fuzzy"])
    assert score["resolved"] or "patch: command not found" in score["log"]


# What an agent may do to a repository, as shell commands.
EVERYTHING = r"""
set -e
printf 'no newline at the end, still' > no_newline.txt
printf 'one\r\nTWO\r\nthree\r\n' > crlf.txt
printf '\000\377\001' >> blob.bin
head -c 3000 /dev/urandom > new.bin
printf 'caf\351!\nna\357ve\n' > latin.txt
printf 'x' > "$(printf 'n\351w.txt')"
mkdir moved && mv old_name.txt moved/new_name.txt
chmod -x tool.sh && chmod +x calc.py
echo more >> 'a name with spaces.txt'
rm 'quo"te.txt'
printf 'it\n' > "it's a \"new\" file.txt"
printf 'tab\n' > "$(printf 'a\tb')"
ln -s calc.py link
sed -i 's/yes/maybe/' settings.cfg
echo more >> build/out.log
echo new > build/new.txt
git init --quiet inner && echo inner > inner/file
git config diff.noprefix true
git config color.ui always
git -c user.name=a -c user.email=a commit --quiet --all --message 'the agent commits'
touch .git/index.lock
"""
LISTING = r"""
find . \( -path ./.git -o -path ./inner -o -path ./build/out.log \) -prune -o \
    \( -type f -printf '%m %P ' -exec sha256sum {} \; \) -o \( -type l -printf '%P -> %l\n' \) | sort
"""


class Listed:
    """A dataset whose score is what the repository holds once the patch is applied."""

    def __init__(self, swe: SweDataset) -> None:
        self.swe = swe
        self.instances, self.image, self.setup = swe.instances, swe.image, swe.setup

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        spec = self.swe.harness.ask("spec", row=graded_part(instance))
        applied, said = apply(sandbox, spec, patch)
        return {"applied": applied, "said": said, "files": sandbox.remote(bash, LISTING, cwd="/testbed").stdout}


class Does:
    """An agent that runs `command`; its info is what the repository holds then, and whether git ran the monitor."""

    def __init__(self, command: str) -> None:
        self.command = command

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        done = sandbox.remote(bash, self.command, cwd="/testbed")
        assert done.exit_code == 0, done.stderr
        files = sandbox.remote(bash, LISTING, cwd="/testbed").stdout
        patch = patch_of(sandbox.remote(bash, **DIFF))
        ran = sandbox.remote(bash, "test -e /tmp/monitored").exit_code == 0
        return AgentResult(patch=patch, info={"files": files, "monitored": ran})


def test_patches_survive_as_bytes(swe_row: dict[str, Any], harness: Harness) -> None:
    """What an agent changed is in the scored repository byte for byte: line ends, bytes that are no text, moved files,
    modes, odd names; without build output that was there before, and without repositories inside."""
    [rollout] = run_rollouts(
        dataset=Listed(SweDataset(rows=[swe_row], harness=harness)),
        agent=Does(EVERYTHING),
        provider=DockerProvider(user="root"),
    )
    score = score_of(rollout)
    assert score["applied"], score["said"]
    assert score["files"] == rollout.info["files"]
    assert "moved/new_name.txt" in score["files"]
    assert "rename from old_name.txt\n" in rollout.patch
    assert "old mode 100755\nnew mode 100644\n" in rollout.patch
    assert "-debug = yes\n+debug = maybe\n" in rollout.patch
    assert "-caf\udce9\n" in rollout.patch
    assert "out.log" not in rollout.patch
    assert "inner" not in rollout.patch


def test_edits_that_an_image_comes_with_are_no_part_of_a_patch(swe_row: dict[str, Any], harness: Harness) -> None:
    """After the setup there is nothing to commit, the image's own edits are kept, and doing nothing makes no patch."""
    look = "cat settings.cfg > /tmp/x && git status --porcelain >> /tmp/x && grep -q 'debug = yes' /tmp/x"
    [rollout] = run_rows([swe_row], Does(f'{look} && test "$(wc -l < /tmp/x)" = 2'), harness)
    assert (rollout.error, rollout.status) == (None, "empty_patch")


CONFIGURED = r"""
set -e
printf '#!/bin/sh\ntouch /tmp/monitored\n' > .git/hooks/monitor
chmod +x .git/hooks/monitor
git config core.fsmonitor .git/hooks/monitor
git config core.sparseCheckout true
echo /tests/ > .git/info/sparse-checkout
sed -i 's/a - b/a + b/' calc.py
rm -f /tmp/monitored
"""


def test_an_agents_settings_of_git_are_no_matter(swe_row: dict[str, Any], harness: Harness) -> None:
    """A monitor that an agent set is not run when its changes are taken, and a sparse checkout hides none of them."""
    [rollout] = run_rows([swe_row], Does(CONFIGURED), harness, score=False)
    assert rollout.error is None
    assert "+    return a + b" in rollout.patch
    assert rollout.info["monitored"] is False


def test_a_patch_that_is_too_large_is_not_quoted() -> None:
    """Changes that can't be kept are told in a few words, without the piece of them that was."""
    with pytest.raises(RuntimeError, match=r"\Ataking the diff gave more than can be kept\Z"):
        patch_of(BashResult(0, "zc$Xx" * 1000, "", False, True))


# ---------------------------------------------------------------- no verdict


@pytest.mark.parametrize(
    ("script", "settings", "said"),
    [
        ("kill -9 $$", {}, "killed (SIGKILL)"),
        ("sh -c 'kill -9 $$'", {}, "killed (SIGKILL)"),
        ("echo 'Error response from daemon: no'", {}, "by the machine's fault: container_unavailable"),
        ("yes 'PASSED tests/test_calc.py::test_add' | head -c 3000000", {}, "printed more than 2 MiB"),
        (
            "python3 -c 'x = bytearray(10**9)'; echo 'PASSED tests/test_calc.py::test_mul'",
            {"memory": "200m"},
            "memory ran out",
        ),
        ("true", {"options": {"tmpfs": {"/tmp": "size=4k,nr_inodes=1"}}}, "No space left on device"),
    ],
    ids=["script killed", "tests killed", "environment broken", "log too long", "out of memory", "disk full"],
)
def test_the_machines_faults_are_no_verdict(
    swe_row: dict[str, Any], harness: Harness, script: str, settings: dict[str, Any], said: str
) -> None:
    """Where the machine failed, in the tests or before them, there is an error and no score, and the patch is kept."""
    before, _, _ = swe_row["eval_script"].partition("python3 -m pytest")
    row = {**swe_row, "eval_script": f"{before}{script}\n: '>>>>> End Test Output'\n"}
    agent = RecordedAgent({row["instance_id"]: {"model_patch": row["patch"]}})
    [rollout] = run_rows([row], agent, harness, max_log=2 << 20, provider=DockerProvider(user="root", **settings))
    assert (rollout.status, rollout.score, rollout.reward, rollout.patch) == ("error", None, None, row["patch"])
    assert said in str(rollout.error)


@pytest.mark.parametrize(
    ("code", "output", "is_machines"),
    [
        (1, "error: patch failed: calc.py:1\nerror: calc.py: patch does not apply\n", False),
        (128, "error: corrupt patch at line 5\n", False),
        (1, "error: x: No space left on device: No such file or directory\n", False),
        (1, "Checking patch a: No space left on device...\n", False),
        (128, "fatal: Unable to create '/testbed/.git/index.lock': No space left on device\n", True),
        (128, "error: unable to create file a.py: Read-only file system\nfatal: x\n", True),
        (2, "patch: **** Can't create file x : No space left on device\n", True),
        (1, "error: unable to write file a.py: Input/output error\n", True),
        (137, "", True),
        (127, "git: not found\n", True),
    ],
)
def test_why_a_patch_was_not_applied_is_told_apart(code: int, output: str, is_machines: bool) -> None:
    """A command that could not apply a patch failed by the machine's fault only where its own message ends so."""
    result = BashResult(exit_code=code, stdout="", stderr=output, timed_out=False, truncated=False)
    if is_machines:
        with pytest.raises(RuntimeError, match="git apply"):
            raise_if_machine(result, "git apply --verbose")
    else:
        raise_if_machine(result, "git apply --verbose")


# ---------------------------------------------------------------- hostile logs


def test_a_log_that_stalls_its_parser_is_given_up(swe_row: dict[str, Any], harness: Harness) -> None:
    """A line made for a parser's regular expressions costs one rollout its limit; the next log is graded as ever."""
    row = {**swe_row, "log_parser": "parse_log_pytest_options"}
    marks = ">>>>> Start Test Output\n{}\n>>>>> End Test Output\n"
    given = {"row": graded_part(row), "patch": "x", "failed": None}
    assert harness.ask("grade", log=marks.format(f"PASSED {ADD}\nPASSED {MUL}"), **given)["report"]["resolved"] is True
    before, harness.limit = harness.limit, 1.0
    began = time.monotonic()
    try:
        with pytest.raises(HarnessError, match=r"'grade' took more than 1 s"):
            harness.ask("grade", log=marks.format("PASSED " + "[" * 20_000), **given)
    finally:
        harness.limit = before
    assert time.monotonic() - began < 60
    assert harness.ask("grade", log=marks.format(f"FAILED {ADD}\nPASSED {MUL}"), **given)["report"]["resolved"] is False


def test_a_log_may_hold_anything(swe_row: dict[str, Any], harness: Harness) -> None:
    """Nulls, lone surrogates, escapes and very long lines are graded like any other log."""
    odd = "\x00 \udcff \x1b[31m \u2028 \r " + "x" * 300_000
    log = f">>>>> Start Test Output\n{odd}\nPASSED {ADD}\nPASSED {MUL}\n>>>>> End Test Output\n"
    assert harness.ask("grade", row=swe_row, patch="x", log=log, failed=None)["report"]["resolved"] is True


def test_the_process_that_grades_ends_with_its_owner(harness: Harness) -> None:
    """Closing a harness ends its process; it is started again when it is asked."""
    own = Harness()
    with pytest.raises(HarnessError, match="swebench raised KeyError when asked for 'spec'"):
        own.ask("spec", row={})
    assert own._end is not None
    process, _, folder = own._end.peek()[2]
    own.close()
    assert (process.returncode, os.path.exists(folder)) == (-9, False)
    with pytest.raises(HarnessError, match="KeyError"):
        own.ask("spec", row={})
    own.close()


def test_the_process_that_grades_goes_with_a_killed_owner() -> None:
    """After a kill -9 of the process that asks, the one that grades and its folder are gone."""
    need("swebench", "swe")
    code = """
import sys, time
sys.path.insert(0, sys.argv[1])
from harness import Harness
harness = Harness()
try:
    harness.ask("spec", row={})
except Exception:
    process, _, folder = harness._end.peek()[2]
    print(process.pid, folder, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, EXAMPLE], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert os.path.isdir(folder)
        owner.kill()
    eventually(lambda: not os.path.exists(folder) and not os.path.exists(f"/proc/{pid}"), 30)


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"image": None, "eval_script": None},
            r"has no image, eval_script: .* before swebench 5; the current revisions of",
        ),
        ({"image_assets": {"test_patch": [{"path": "a.png", "url": "x"}]}}, "has image_assets"),
    ],
    ids=["older", "with pictures"],
)
def test_rows_that_cant_be_graded_are_refused(swe_row: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    """A row that lacks what swebench 5 runs it by, or needs files that this example does not bring, is refused."""
    check({**swe_row, "image_assets": '{"patch": [], "test_patch": null}'})
    with pytest.raises(BadArgument, match=said):
        check({name: value for name, value in {**swe_row, **changes}.items() if value is not None})


def test_an_unknown_parser_is_named(swe_row: dict[str, Any], harness: Harness) -> None:
    """A row whose log nobody can read is refused before its tests are run."""
    with pytest.raises(HarnessError, match=r"log_parser 'parse_log_x' is none of swebench's: .*parse_log_pytest"):
        harness.ask("spec", row={**swe_row, "log_parser": "parse_log_x"})


def test_rows_come_from_a_file(tmp_path: Any) -> None:
    """A .jsonl file has a row on each line, blank ones aside; anything else is an error that names the file."""
    good, bad = tmp_path / "rows.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"instance_id": "a\\u2028b"}\n\n{"instance_id": "c"}\n')
    assert read_rows(good) == [{"instance_id": "a\u2028b"}, {"instance_id": "c"}]
    bad.write_text("[1]\n")
    for path in (bad, tmp_path / "none.jsonl"):
        with pytest.raises(BadArgument, match=str(path)):
            read_rows(path)


def test_rows_come_from_a_dataset(tmp_path: Any, swe_row: dict[str, Any], harness: Harness) -> None:
    """A dataset is read by swebench's own function, by name or path."""
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([swe_row]))
    assert list(SweDataset(name=str(path), harness=harness).instances()) == [swe_row]


def test_a_loading_that_takes_too_long_tells_its_true_limit(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset has a limit of its own, which is the one that is told, with what helps."""
    need("swebench", "swe")
    path = tmp_path / "rows.jsonl"
    os.mkfifo(path)
    monkeypatch.setattr("harness.LOAD_S", 1.0)
    monkeypatch.setattr("harness.START_S", 0.5)
    swe = SweDataset(name=str(path))
    with pytest.raises(BadArgument, match=r"can't be loaded: .*--rows\. the process .* took more than 1\.5 s"):
        swe.instances()
    swe.harness.close()


def test_tests_take_some_time() -> None:
    """A dataset whose tests may take no time at all is an error where it is made."""
    for value in (0, -1, float("nan")):
        with pytest.raises(BadArgument, match=r"eval_timeout is .*: it must be above 0 seconds"):
            SweDataset(eval_timeout=value)


def test_names_are_excluded_as_they_are() -> None:
    """What was not tracked is named so that git takes it literally; by folder where there are thousands of files."""
    listed = BashResult(0, ".git/info/exclude\0d/\0\0d/a*[x] y\0d/b\nc\0", "", False, False)
    assert exclusions(listed) == (".git/info/exclude", "/d/a\\*\\[x\\]\\ y\n/d/b?c\n")
    none = BashResult(0, ".git/info/exclude\0\0", "", False, False)
    assert exclusions(none) == (".git/info/exclude", "")
    many = BashResult(0, "e\0d/\0\0" + "".join(f"d/{n}\0" for n in range(3000)), "", False, False)
    assert exclusions(many) == ("e", "/d/\n")
