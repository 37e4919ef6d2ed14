"""examples/run-swe-rollouts/main.py as a command, and its verdicts beside those of swebench's own harness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..bench import grading
from ..support import swe_images as images
from ..support.messages_api import INPUT_TOKENS, MessagesApi, say, serving, use
from ..support.swe_example import EXAMPLE, need, where_key_is

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


DEEP = "[" * 100_000
ROW = {**images.make_row("a", "image", "base"), "image_assets": None}


def lacking(*names: str) -> dict[str, Any]:
    return {name: value for name, value in ROW.items() if name not in names}


def lines(*items: Any) -> str:
    return "".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items)


def told(folder: Path, *arguments: str) -> str:
    """The one line that says why nothing was started."""
    done = command(folder, *arguments, "--out", "out", ANTHROPIC_API_KEY="x", DOCKER_HOST="tcp://127.0.0.1:9")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr) < 700
    assert not (folder / "out").exists()
    return done.stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lines(ROW, lacking("instance_id")), "row 2 has no instance_id: give each row one"),
        (lines({**ROW, "instance_id": ["a"]}), "row 1 has the instance_id ['a']: give"),
        (lines({**ROW, "instance_id": 5}), "row 1 has the instance_id 5: give"),
        (lines(ROW, "", "{]"), "rows.jsonl, line 3, can't be read as rows, one JSON object a line: Expecting"),
        (lines(ROW, DEEP), "rows.jsonl, line 2, can't be read as rows, one JSON object a line: it is nested too deep"),
        (lines({**ROW, "x": json.loads("[" * 300 + "]" * 300)}), "line 1, can't be read as rows"),
        (lines({**ROW, "image_assets": "no JSON"}), "row 'a' has image_assets='no JSON': give an object"),
        (lines({**ROW, "image_assets": [1]}), "row 'a' has image_assets=[1]: give an object"),
        (lines({**ROW, "image_assets": DEEP}), "row 'a' has image_assets='[[["),
        (lines({**ROW, "FAIL_TO_PASS": "no JSON"}), "row 'a' has FAIL_TO_PASS='no JSON': give a list"),
        (lines({**ROW, "PASS_TO_PASS": [1]}), "row 'a' has PASS_TO_PASS=[1]: give a list"),
        (lines({**ROW, "patch": "\ud800"}), "row 'a' has half a character (a lone surrogate) in patch: leave"),
        (lines({**ROW, "PASS_TO_PASS": "{}"}), "row 'a' has PASS_TO_PASS='{}': give a list"),
    ],
    ids=lambda value: value[:40] if value.startswith(("row", "line")) else "",
)
@pytest.mark.parametrize("patches", [["--ground-truth"], ["--predictions", "p.json"]], ids=["gold", "predictions"])
def test_a_bad_row_is_one_line(tmp_path: Path, rows: str, said: str, patches: list[str]) -> None:
    """A row that can't be run is named, by its line or its number, with what is wrong with it, before anything runs."""
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "p.json").write_text('[{"instance_id": "a", "model_patch": "x"}]')
    assert said in told(tmp_path, "--rows", "rows.jsonl", *patches)


@pytest.mark.parametrize(
    ("predictions", "said"),
    [
        (lines({"instance_id": ["a"], "model_patch": "x"}), "has a prediction with the instance_id ['a']: give a text"),
        (lines({"instance_id": {"a": 1}, "model_patch": "x"}), "has a prediction with the instance_id {'a': 1}: give"),
        (lines({"instance_id": 1, "model_patch": ""}, {"instance_id": "z", "model_patch": ""}), "instance_id 1: give"),
        (lines(), "p.jsonl holds no predictions: there is nothing to run"),
        (lines({"instance_id": "a", "model_patch": "\ud800"}), "p.jsonl: the model_patch of a has half a character"),
        (lines({"instance_id": "a"}), "the prediction for a has no model_patch: give a text, or null"),
        (lines(*2 * [{"instance_id": "a", "model_patch": ""}]), "has two predictions for a: leave one of them out"),
        (lines({"instance_id": "a", "model_patch": ""}, "{]"), "p.jsonl, line 2, can't be read as predictions"),
        (DEEP, "p.jsonl, line 1, can't be read as predictions (.json or .jsonl): it is nested too deep"),
    ],
    ids=lambda value: "" if value.startswith(("{", "[")) else value[:40],
)
def test_a_bad_prediction_is_one_line(tmp_path: Path, predictions: str, said: str) -> None:
    """A prediction that can't be used is named, with what is wrong with it, before anything runs."""
    (tmp_path / "rows.jsonl").write_text(lines(ROW))
    (tmp_path / "p.jsonl").write_text(predictions)
    assert said in told(tmp_path, "--rows", "rows.jsonl", "--predictions", "p.jsonl")


@pytest.mark.parametrize(
    ("row", "arguments", "said"),
    [
        (lacking("patch"), ["--ground-truth"], "row 'a' has no patch, which --ground-truth needs"),
        (lacking("problem_statement"), ["--agent", "mini"], "row 'a' has no problem_statement, which an agent needs"),
        ({**ROW, "log_parser": "x"}, ["--ground-truth"], "row 'a' can't be graded: swebench raised ValueError"),
        (
            {**ROW, "eval_type": "x"},
            ["--ground-truth"],
            "eval_type 'x' is none of swebench's: pass_and_fail, fail_only",
        ),
    ],
    ids=["patch", "problem", "parser", "type"],
)
def test_what_a_row_lacks_is_told_at_the_start(
    tmp_path: Path, row: dict[str, Any], arguments: list[str], said: str
) -> None:
    """What a row lacks for what is asked, or can't be graded by, is known before an agent is paid."""
    need("swebench", "swe")
    (tmp_path / "rows.jsonl").write_text(lines(row))
    shown = command(tmp_path, "--rows", "rows.jsonl", *arguments, "--out", "out")
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1), shown.stderr
    assert said in shown.stderr
    assert not (tmp_path / "out").exists()


def test_an_agent_that_is_not_installed_is_told_at_the_start(tmp_path: Path) -> None:
    """Without mini-swe-agent there is one line with what to install, not an error of each row."""
    need("swebench", "swe")
    (tmp_path / "rows.jsonl").write_text(lines(ROW))
    (tmp_path / "minisweagent.py").write_text("raise ImportError('not here')")
    done = command(
        tmp_path, "--rows", "rows.jsonl", "--agent", "mini", "--out", "out", PYTHONPATH=path_with(str(tmp_path))
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("Error: the agent mini can't start: mini-swe-agent can't be imported (not here): pip")
    assert not (tmp_path / "out").exists()


def path_with(folder: str) -> str:
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "none", "1e400", "31d", "99999999999"])
@pytest.mark.parametrize("option", ["--eval-timeout", "--agent-timeout"])
def test_a_limit_is_one(tmp_path: Path, option: str, value: str) -> None:
    """A limit of no time, or of none at all, is an error in the command's use."""
    (tmp_path / "rows.jsonl").write_text(lines(ROW))
    error = told(tmp_path, "--rows", "rows.jsonl", "--agent", "mini", option, value)
    assert f"Invalid value for '{option}': '{value}' is not a valid time: expected seconds above 0, 30m or 2h" in error


def test_a_dataset_that_cant_be_loaded_is_one_line(tmp_path: Path) -> None:
    """--dataset says that it loads, and where it can't, says so in one line with what helps."""
    need("swebench", "swe")
    (tmp_path / "bad.json").write_text('[{"x": 1}]')
    for name in ("nobody/no-such-dataset", "bad.json"):
        done = command(tmp_path, "--dataset", name, "--ground-truth", "--out", "out", HF_HUB_OFFLINE="1")
        loading, error = done.stderr.splitlines()
        assert (done.returncode, loading) == (2, f"Loading {name}; a first download takes its time")
        assert error.startswith(f"Error: the dataset '{name}', split 'test', can't be loaded: ")
        assert "HF_HOME" in error
        assert "--rows" in error


@pytest.mark.parametrize("changed", ["rows", "predictions"])
def test_other_content_is_another_run(swe_row: dict[str, Any], tmp_path: Path, changed: str) -> None:
    """A run is not resumed where its file of rows, or of predictions, holds something else by now; another order, or
    another layout, is no other content."""
    need("swebench", "swe")
    rows = [{**swe_row, "instance_id": name} for name in "ab"]
    predictions = [{"instance_id": name, "model_patch": ""} for name in "ab"]
    arguments = ["--rows", "rows.jsonl", "--predictions", "p.jsonl", "--out", "out"]
    (tmp_path / "rows.jsonl").write_text(lines(*rows))
    (tmp_path / "p.jsonl").write_text(lines(*predictions))
    assert command(tmp_path, *arguments).returncode == 0
    (tmp_path / "rows.jsonl").write_text(lines(*(dict(reversed(row.items())) for row in reversed(rows))))
    (tmp_path / "p.jsonl").write_text("\n" + lines(*reversed(predictions)))
    again = command(tmp_path, *arguments)
    assert again.returncode == 0, again.stderr
    if changed == "rows":
        (tmp_path / "rows.jsonl").write_text(lines({**rows[0], "eval_script": "true"}, rows[1]))
    else:
        (tmp_path / "p.jsonl").write_text(lines({**predictions[0], "model_patch": images.GOLD}, predictions[1]))
    other = command(tmp_path, *arguments)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "out holds a different run: " in other.stderr
    assert [name for name in ("rows", "predictions") if f".{name}_content was" in other.stderr] == [changed]


def test_the_help_has_its_options_under_options(tmp_path: Path) -> None:
    """A command whose options are in no groups lists them as "Options"."""
    shown = command(tmp_path, "--help").stdout
    assert "\nOptions:\n" in shown
    assert "Other:" not in shown
