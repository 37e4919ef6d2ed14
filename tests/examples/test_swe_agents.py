"""The agents of examples/run-swe-rollouts: recorded patches, mini-swe-agent, and the real Claude Code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import DockerProvider, LocalProvider, Rollout, SandboxConfig
from agentix_runner.errors import BadArgument, SandboxDied
from agentix_runner.remote.tools import BashResult, bash

from ..support.images import BUSYBOX
from ..support.messages_api import INPUT_TOKENS, OUTPUT_TOKENS, MessagesApi, say, serving, use
from ..support.swe_example import Searched, need, run_rows, spellings, where_key_is

from agents.claude_code import COMMAND, ClaudeCodeAgent, outcome  # isort: skip
from agents.gold import GoldPatchAgent  # isort: skip
from agents.mini_swe import MiniSweAgent, SandboxEnvironment, usage, without_keys  # isort: skip
from agents.recorded import RecordedAgent, read_predictions  # isort: skip
from harness import Harness  # isort: skip

pytestmark = pytest.mark.timeout(300)

EDIT = "sed -i 's/a - b/a + b/' calc.py"


def run(row: dict[str, Any], agent: Any, harness: Harness, **settings: Any) -> Rollout:
    [rollout] = run_rows([row], agent, harness, **settings)
    return rollout


# ---------------------------------------------------------------- gold, recorded


def test_the_gold_patch_is_the_rows_own() -> None:
    """GoldPatchAgent gives what the row holds, to the byte."""
    assert GoldPatchAgent().solve(None, {"patch": "a\r\n\udcff"}, model=None).patch == "a\r\n\udcff"


PREDICTION = {"instance_id": "a", "model_name_or_path": "m", "model_patch": "p\r\n\udcff\u2028\n"}


@pytest.mark.parametrize(
    ("name", "content"),
    [("p.json", [PREDICTION]), ("p.json", {"a": PREDICTION}), ("p.jsonl", PREDICTION)],
    ids=["a list", "an object", "lines"],
)
def test_predictions_are_read_in_each_form(tmp_path: Path, name: str, content: Any) -> None:
    """Both forms of .json, and .jsonl, give the patches byte for byte; one that is null is empty."""
    path = tmp_path / name
    path.write_text(json.dumps(content) + "\n")
    agent = RecordedAgent(read_predictions(path))
    result = agent.solve(None, {"instance_id": "a"}, model=None)
    assert (result.patch, result.info) == (PREDICTION["model_patch"], {"model_name_or_path": "m"})
    with pytest.raises(LookupError, match="no prediction for b"):
        agent.solve(None, {"instance_id": "b"}, model=None)
    path.write_text(path.read_text().replace(json.dumps(PREDICTION["model_patch"]), "null"))
    assert RecordedAgent(read_predictions(path)).solve(None, {"instance_id": "a"}, model=None).patch == ""


@pytest.mark.parametrize("text", ["{", "[1]", '[{"model_patch": ""}]', '[{"instance_id": "a", "model_patch": 3}]'])
def test_what_holds_no_predictions_is_refused(tmp_path: Path, text: str) -> None:
    """A file of something else is an error that names it."""
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(BadArgument, match=str(path)):
        read_predictions(path)


# ---------------------------------------------------------------- mini-swe-agent


def scripted(*commands: str) -> Any:
    """What makes mini-swe-agent's own deterministic model, which asks for one command after the other."""

    def make_model(name: str | None) -> Any:
        from minisweagent.models.test_models import DeterministicModel, make_output

        return DeterministicModel(outputs=[make_output("so", [{"command": c}], cost=0.25) for c in commands])

    return make_model


def mini(*commands: str, **agent: Any) -> MiniSweAgent:
    need("minisweagent", "mini")
    return MiniSweAgent(make_model=scripted(*commands), settings={"environment": {"timeout": 5}, "agent": agent})


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"


def test_mini_swe_agent_resolves(swe_row: dict[str, Any], harness: Harness, tmp_path: Path) -> None:
    """mini-swe-agent's commands run in the sandbox, what it submits is the patch, and its trajectory is kept."""
    look = "pwd; cat settings.cfg; git status --short; echo to stderr >&2; printf 'caf\\351\\n'; exit 3"
    agent = mini(look, EDIT, "git diff -- calc.py > patch.txt", SUBMIT)
    rollout = run(swe_row, agent, harness, run_dir=tmp_path / "run")
    assert (rollout.error, rollout.status, rollout.agent_exit) == (None, "resolved", 0)
    assert rollout.patch.startswith("diff --git a/calc.py b/calc.py\nindex ")
    assert rollout.patch.endswith("\n-    return a - b\n+    return a + b\n \n \n def mul(a, b):\n")
    info = {"exit_status": "Submitted", "calls": 4, "cost_usd": 1.0, "input_tokens": 0, "output_tokens": 0}
    assert rollout.info == {**info, "patch_from": "submission"}
    trajectory = json.loads((tmp_path / "run" / "test__calc-1" / "trajectory.json").read_text())
    observed = "<returncode>3</returncode>\n<output>\n/testbed\n[calc]\ndebug = yes\nto stderr\ncaf\ufffd\n</output>"
    assert trajectory["messages"][3]["content"] == observed
    assert "add(2, 3) is -1: it must be 5." in trajectory["messages"][1]["content"]


def test_mini_swe_agents_edits_are_its_patch_at_a_limit(swe_row: dict[str, Any], harness: Harness) -> None:
    """Where it runs into a limit before it submits, what it has edited is the patch."""
    rollout = run(swe_row, mini(EDIT, "sleep 60", "true", step_limit=2), harness)
    assert (rollout.status, rollout.agent_exit) == ("resolved", 1)
    assert (rollout.info["exit_status"], rollout.info["patch_from"]) == ("LimitsExceeded", "worktree")


def test_mini_swe_agents_patch_survives_as_bytes(swe_row: dict[str, Any], harness: Harness) -> None:
    """What it submits is kept with its line ends and with bytes that are no UTF-8."""
    edit = f"{EDIT}; printf 'one\\r\\nTWO\\r\\nthree\\r\\n' > crlf.txt; printf 'caf\\351!\\n' > latin.txt"
    rollout = run(swe_row, mini(edit, "git diff calc.py crlf.txt latin.txt > patch.txt", SUBMIT), harness)
    assert rollout.status == "resolved"
    assert "+TWO\r\n" in rollout.patch
    assert "+caf\udce9!\n" in rollout.patch


class Answers:
    """A sandbox that answers each call with the next of `answers`."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def remote(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Submitted(Exception):
    """Stands for mini-swe-agent's."""


def test_a_sandbox_that_ends_is_nothing_that_a_model_reads() -> None:
    """The sandbox's end comes out of a command as it is; a command that can't be passed is an observation."""
    environment = SandboxEnvironment(Answers(SandboxDied("gone")), {}, Submitted)
    with pytest.raises(SandboxDied, match="gone"):
        environment.execute({"command": "ls"})
    assert isinstance(environment.broken, SandboxDied)
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        observed = SandboxEnvironment(sandbox, {"cwd": "/"}, Submitted).execute({"command": "a\0b"})
        assert (observed["output"], observed["returncode"]) == ("", -1)
        assert observed["exception_info"].startswith("ValueError: ")
        short = SandboxEnvironment(sandbox, {"cwd": "/", "timeout": 0.2}, Submitted)
        ended = "the command took longer than 0.2 s, and was ended"
        late = {"output": "a\n", "returncode": -1, "exception_info": ended}
        assert short.execute({"command": "echo a; sleep 9"}) == late


def test_a_submission_is_whole_or_none() -> None:
    """A submission that was cut is an error; one of a command that failed is none."""
    cut = BashResult(0, "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\nx", "", False, truncated=True)
    environment = SandboxEnvironment(Answers(cut), {}, Submitted)
    with pytest.raises(RuntimeError, match="larger than 64 MiB"):
        environment.execute({"command": "x"})
    failed = BashResult(1, "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\nx", "", False, False)
    assert SandboxEnvironment(Answers(failed), {}, Submitted).execute({"command": "x"})["returncode"] == 1
    good = BashResult(0, " \nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT \na\r\n\udcff", "", False, False)
    with pytest.raises(Submitted) as caught:
        SandboxEnvironment(Answers(good), {}, Submitted).execute({"command": "x"})
    assert caught.value.args[0]["extra"] == {"exit_status": "Submitted", "submission": "a\r\n\udcff"}


def test_keys_of_the_environment_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the services say is kept without the keys that this process has."""
    monkeypatch.setenv("SOME_API_KEY", 'sk-"secret"-1234')
    assert without_keys('wrong: sk-"secret"-1234; "sk-\\"secret\\"-1234"') == 'wrong: [SOME_API_KEY]; "[SOME_API_KEY]"'


def test_tokens_are_added_up() -> None:
    """The tokens of a trajectory are those that its answers report, by either name."""
    answers = [
        {"extra": {"response": {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}}},
        {"extra": {"response": {"usage": {"input_tokens": 10, "output_tokens": None}}}},
        {"extra": {"response": "text"}},
        {},
    ]
    assert usage(answers) == {"input_tokens": 13, "output_tokens": 4}


# ---------------------------------------------------------------- Claude Code

KEY = "sk-ant-api03-a+very/secret=key-0123456789"
LOOK = "env; cat /proc/1/environ; cat /proc/self/environ; python3 -c 'import calc; print(calc.add(2, 3))'"
STEPS = [
    [say("I look."), use("Read", file_path="/testbed/calc.py")],
    [use("Edit", file_path="/testbed/calc.py", old_string="a - b", new_string="a + b")],
    [use("Bash", command=LOOK)],
    [say("It is fixed.")],
]


def claude(row: dict[str, Any], harness: Harness, api: MessagesApi, bundle: str, **settings: Any) -> Rollout:
    """A rollout of Claude Code against `api`."""
    with serving(api):
        agent = ClaudeCodeAgent(upstream=api.url, api_key=KEY, **settings)
        return run(row, agent, harness, bundle=bundle, model="claude-sonnet-4-5")


def test_claude_code_resolves(
    swe_row: dict[str, Any], harness: Harness, claude_bundle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The real CLI in a sandbox without a network edits a file by way of the tunnel, its edit is scored, tokens and
    cost are kept; the key reaches the API and is nowhere else, in no spelling: not in the sandbox's files and
    processes, not in the run directory, not in logs."""
    caplog.set_level("DEBUG")
    api = MessagesApi(STEPS)
    with serving(api):
        # The first is there for sure: the search finds what is to be found.
        texts = [swe_row["problem_statement"], *spellings(KEY)]
        agent = Searched(ClaudeCodeAgent(upstream=api.url, api_key=KEY), texts)
        settings = {"bundle": claude_bundle, "model": "claude-sonnet-4-5", "run_dir": tmp_path / "run"}
        rollout = run(swe_row, agent, harness, **settings)
    assert agent.found["/tmp/agentix-claude/task.txt"] == [0]
    assert [place for place, found in agent.found.items() if found != [0]] == []
    assert (rollout.error, rollout.status, rollout.agent_exit) == (None, "resolved", 0)
    assert rollout.info["ended"] == "success"
    assert rollout.info["turns"] == len(STEPS)
    assert rollout.info["cost_usd"] > 0
    assert rollout.info["usage"]["input_tokens"] == len(STEPS) * INPUT_TOKENS
    assert rollout.info["usage"]["output_tokens"] == len(STEPS) * OUTPUT_TOKENS
    assert api.keys == {KEY}
    kept = tmp_path / "run" / "test__calc-1"
    exchanges = [json.loads(line) for line in (kept / "exchanges.jsonl").read_text().splitlines()]
    assert [one["status"] for one in exchanges] == [200] * len(STEPS)
    # What the CLI's shell saw, as the API was told: it is the whole environment.
    seen = json.dumps(api.requests[-1]["messages"][-1])
    assert "ANTHROPIC_API_KEY=the-key-is-on-the-host" in seen
    assert "5\\n" in seen
    assert where_key_is(KEY, tmp_path, caplog.text, repr(rollout), json.dumps(api.requests)) == []


@pytest.mark.parametrize(
    ("api", "settings", "said"),
    [
        (MessagesApi(status=401), {"api_retries": 0}, "claude's API failed: Failed to authenticate. API Error: 401"),
        (MessagesApi(status=529), {"api_retries": 1}, "claude's API failed: API Error: 529"),
        (MessagesApi(silent=True), {"api_retries": 0, "api_timeout": 2}, "claude's API failed: Request timed out"),
        (MessagesApi(silent=True), {"timeout": 4}, "claude ran out of time without one answer from its API"),
    ],
    ids=["401", "529", "silent", "silent until the end"],
)
def test_an_api_that_fails_is_an_error(
    swe_row: dict[str, Any], harness: Harness, claude_bundle: str, api: MessagesApi, settings: dict[str, Any], said: str
) -> None:
    """An API that refuses, is overloaded or never answers is the rollout's error, not an empty patch."""
    rollout = claude(swe_row, harness, api, claude_bundle, **settings)
    assert (rollout.status, rollout.score) == ("error", None)
    assert said in str(rollout.error)
    assert len(api.requests) == 1 + settings.get("api_retries", 0)
    assert KEY not in repr(rollout)


def test_claude_codes_edits_are_its_patch_at_the_limit(
    swe_row: dict[str, Any], harness: Harness, claude_bundle: str
) -> None:
    """With its turns used up, what it has edited until then is the patch."""
    rollout = claude(swe_row, harness, MessagesApi(STEPS), claude_bundle, max_turns=2)
    assert (rollout.error, rollout.status, rollout.agent_exit) == (None, "resolved", 1)
    assert rollout.info["ended"] == "error_max_turns"


def test_claude_code_starts_where_there_is_no_glibc(busybox: str, claude_bundle: str) -> None:
    """In an image without a C library the bundle's own loader starts the CLI."""
    assert busybox == BUSYBOX
    with DockerProvider().session(SandboxConfig(image=busybox, bundle=claude_bundle)) as sandbox:
        command = f"export HOME=/tmp; touch /tmp/task.txt; set -- --version\n{COMMAND}"
        ran = sandbox.remote(bash, command, timeout=60)
    assert (ran.exit_code, ran.stdout.split()[1:], ran.stderr) == (0, ["(Claude", "Code)"], "")


def test_a_missing_cli_says_what_to_do(swe_row: dict[str, Any], harness: Harness) -> None:
    """Without the CLI in bundle or image the rollout's error says so."""
    with serving(MessagesApi()) as api:
        rollout = run(swe_row, ClaudeCodeAgent(upstream=api.url, api_key=KEY), harness)
    assert "claude ended with 127 and told no result: there is no claude: build a bundle with it" in str(rollout.error)


def test_claude_code_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key nothing is started; with one, it is not shown."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(BadArgument, match="set ANTHROPIC_API_KEY"):
        ClaudeCodeAgent()
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert KEY not in repr(ClaudeCodeAgent())


@pytest.mark.parametrize(
    ("stdout", "told"),
    [
        ('{"type": "result", "is_error": false}\n', {"type": "result", "is_error": False}),
        ('noise\n{"a": 1}\n\nmore noise', {"a": 1}),
        ("", {}),
        ("{broken", {}),
        ("[1]\n", {}),
        ('{"a":' * 100_000, {}),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", {}),
    ],
)
def test_what_the_cli_says_is_text_that_somebody_else_wrote(stdout: str, told: dict[str, Any]) -> None:
    """The result is the last object that the CLI printed; nothing that it may print breaks the reading of it."""
    assert outcome(BashResult(0, stdout, "", False, False)) == told
