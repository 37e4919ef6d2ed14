"""examples/run-swe-rollouts/main.py as a command, and its verdicts beside those of swebench's own harness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import swe_images as images
from .bench import grading
from .messages_api import INPUT_TOKENS, MessagesApi, say, serving, use
from .swe_example import EXAMPLE, need, where_key_is

pytestmark = pytest.mark.timeout(400)

PATCHES = {
    **grading.PATCHES,
    "forges": images.FORGES,
    "no-such-lines": images.DOES_NOT_APPLY,
    "hangs": images.HANGS,
    "empty": "",
}


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE / "main.py"), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_verdicts_and_reports_are_those_of_the_harness(swe_row: dict[str, Any], tmp_path: Path) -> None:
    """On the same images and predictions, verdicts and reports equal those of swebench's run_evaluation; where that one
    has no report (a patch that doesn't apply, tests that hang, an empty patch), there is a reason here."""
    need("swebench", "swe")
    grading.write(tmp_path, swe_row, PATCHES)
    ours = grading.by_us(tmp_path, workers=4, timeout=25)
    theirs = grading.by_harness(tmp_path, workers=len(PATCHES), timeout=25)
    assert ours.reports == theirs.reports
    assert ours.resolved == theirs.resolved
    assert {"test__calc-gold"} <= ours.resolved <= {"test__calc-gold", "test__calc-fuzzy"}
    unreported = {f"test__calc-{name}" for name in ("no-such-lines", "hangs", "empty")}
    assert {name for name, report in ours.reports.items() if report is None} == unreported


def test_a_run_and_its_predictions(swe_row: dict[str, Any], tmp_path: Path) -> None:
    """--ground-truth resolves; its preds.json, given as --predictions, resolves again; the same --out is resumed; and
    --fail-on-unresolved is the exit code."""
    need("swebench", "swe")
    rows = [{**swe_row, "instance_id": "a__a-1"}, {**swe_row, "instance_id": "b__b-2", "patch": images.WRONG}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = command(tmp_path, "--rows", "rows.jsonl", "--ground-truth", "--instance-id", "a*", "--out", "gold")
    assert (first.returncode, first.stdout.splitlines()[:2]) == (0, ["1 rollout", "  resolved  1  100.0%"])
    again = command(tmp_path, "--rows", "rows.jsonl", "--predictions", "gold/preds.json", "--out", "again")
    assert (again.returncode, again.stdout.splitlines()[:2]) == (0, ["1 rollout", "  resolved  1  100.0%"])
    both = command(tmp_path, "--rows", "rows.jsonl", "--ground-truth", "--fail-on-unresolved", "--out", "gold")
    assert (both.returncode, both.stdout.splitlines()[0]) == (1, "2 rollouts")
    assert [json.loads(line)["instance_id"] for line in open_lines(tmp_path / "gold/rollouts.jsonl")] == [
        "a__a-1",
        "b__b-2",
    ]


def open_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


KEY = "sk-ant-api03-a+very/secret=key-9876543210"
READ = use("Read", file_path="/testbed/calc.py")
EDIT = use("Edit", file_path="/testbed/calc.py", old_string="a - b", new_string="a + b")
SED = use("bash", command="sed -i 's/a - b/a + b/' calc.py && git diff -- calc.py > patch.txt")
SUBMIT = use("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt")


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize(
    ("agent", "model", "steps"),
    [
        ("claude-code", "claude-sonnet-4-5", [[READ], [EDIT], [say("done")]]),
        ("mini", "anthropic/claude-sonnet-4-5-20250929", [[SED], [SUBMIT]]),
    ],
)
def test_an_agents_key_stays_here(
    swe_row: dict[str, Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    agent: str,
    model: str,
    steps: list[list[dict[str, Any]]],
    status: int,
) -> None:
    """--agent runs with a key from the environment that reaches the API and is nowhere else, neither printed nor in the
    run directory, whether the API answers or refuses. What it used is in the summary."""
    need("swebench", "swe")
    need("minisweagent", "mini")
    bundle = request.getfixturevalue("claude_bundle") if agent == "claude-code" else ""
    (tmp_path / "rows.jsonl").write_text(json.dumps(swe_row) + "\n")
    with serving(MessagesApi(steps, status=status)) as api:
        done = command(
            tmp_path,
            *("--rows", "rows.jsonl", "--agent", agent, "--model", model, "--out", "out"),
            *(["--bundle", bundle] if bundle else []),
            ANTHROPIC_API_KEY=KEY,
            ANTHROPIC_BASE_URL=api.url,
            ANTHROPIC_API_BASE=api.url,
            CLAUDE_CODE_MAX_RETRIES="0",
            LITELLM_LOCAL_MODEL_COST_MAP="True",  # else it asks the network, which need not be there
        )
    assert done.returncode == (0 if status == 200 else 1), done.stderr
    assert api.keys == {KEY}
    assert where_key_is(KEY, tmp_path, done.stdout, done.stderr, json.dumps(api.requests)) == []
    if status == 200:
        assert "  resolved  1  100.0%" in done.stdout.splitlines()
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert sum(n for name, n in summary["usage"].items() if "input_tokens" in name) == INPUT_TOKENS * len(
            api.requests
        )
    else:
        assert "401" in done.stdout or "AuthenticationError" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ground-truth"], "give the rows: --rows FILE or --dataset NAME"),
        (["--rows", "rows.jsonl", "--dataset", "x", "--ground-truth"], "give the rows: --rows FILE or --dataset NAME"),
        (["--rows", "rows.jsonl"], "give one of --ground-truth, --predictions FILE and --agent NAME"),
        (["--rows", "none.jsonl", "--ground-truth"], "none.jsonl can't be read as rows"),
        (
            ["--rows", "rows.jsonl", "--ground-truth"],
            "has no image, eval_script: it is of a revision from before swebench 5",
        ),
        (["--rows", "rows.jsonl", "--ground-truth", "--instance-id", "b"], "none of the 1 instances has such an id"),
        (["--rows", "rows.jsonl", "--predictions", "preds.json"], "has a prediction for z, which is no row"),
        (["--rows", "rows.jsonl", "--agent", "claude-code"], "ClaudeCodeAgent has no key: set ANTHROPIC_API_KEY"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    """What can't be run is told in one line with exit code 2, and nothing is started."""
    row = images.make_row("a", "image", "base")
    del row["image"], row["eval_script"]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "preds.json").write_text('[{"instance_id": "z", "model_patch": ""}]')
    done = command(tmp_path, *arguments, "--out", "out", ANTHROPIC_API_KEY="")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert not (tmp_path / "out").exists()
