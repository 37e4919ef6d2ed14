"""README's adapters to copy, with agents and patches that are not as well-behaved as those beside them."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import AgentResult, LocalProvider, Rollout, run_rollouts

from .test_readme import blocks

TEST = "from calc import add\nassert add(2, 3) == 5\n"
GIT = "git -c user.name=me -c user.email=me@localhost"


@pytest.fixture(scope="module")
def readme() -> dict[str, Any]:
    """What the blocks of the two "Integrate" sections define, without the run at their end."""
    names: dict[str, Any] = {"AgentResult": AgentResult}
    wanted = ("class Repositories:", "class CommandAgent:", "class Model(")
    for block in blocks("python"):
        if any(name in block for name in wanted):
            exec(block.split("\nwith tempfile.")[0], names)
    return names


def row_of(folder: Path, test: str = "test_calc.py") -> dict[str, Any]:
    folder.mkdir()
    make = f"git init -q && echo 'def add(a, b): return a - b' > calc.py && git add . && {GIT} commit -qm start"
    subprocess.run(make, shell=True, cwd=folder, check=True, timeout=60)
    return {
        "instance_id": "calc-1",
        "image": str(folder),
        "base_commit": "HEAD",
        "problem_statement": "add() subtracts",
        "tests": {test: TEST},
        "test_command": f"PYTHONPATH=. {shlex.quote(sys.executable)} {test}",
    }


class Patch:
    def __init__(self, patch: str) -> None:
        self.patch = patch

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        return AgentResult(patch=self.patch)


def graded(readme: dict[str, Any], row: dict[str, Any], patch: str) -> Rollout:
    dataset = readme["Repositories"]([row])
    [rollout] = run_rollouts(dataset=dataset, agent=Patch(patch), provider=LocalProvider())
    return rollout


def link(path: str, target: str) -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 120000\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{target}\n"
        "\\ No newline at end of file\n"
    )


@pytest.mark.parametrize(
    "commit",
    ["true", f"{GIT} commit -qam done", f"git checkout -qb other && {GIT} commit -qam done"],
)
def test_what_an_agent_commits_is_in_its_patch(readme: dict[str, Any], tmp_path: Path, commit: str) -> None:
    """An agent that commits its work, on whichever branch, has it in the patch as one that does not."""
    row = row_of(tmp_path / "repository")
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(readme['AGENT'])} && {{ {commit}; }}; true"
    with HTTPServer(("127.0.0.1", 0), readme["Model"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        upstream = f"http://127.0.0.1:{server.server_port}"
        [rollout] = run_rollouts(
            dataset=readme["Repositories"]([row]),
            agent=readme["CommandAgent"](f"{{ {command}; }}", upstream=upstream, key="the key"),
            provider=LocalProvider(),
        )
        server.shutdown()
    assert rollout.resolved, rollout
    assert "+    return a + b" in rollout.patch


@pytest.mark.parametrize("test", ["test_calc.py", "tests/unit/test_calc.py"])
@pytest.mark.parametrize("target", ["/dev/null", "nowhere", "calc.py", "OUTSIDE"])
def test_tests_are_not_written_through_links(readme: dict[str, Any], tmp_path: Path, test: str, target: str) -> None:
    """Where a patch made a link of a test, or of a folder above it, the test is run all the same, and nothing else is
    written or removed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "test_calc.py").write_text("kept")
    (outside / "unit").mkdir()
    (outside / "unit" / "test_calc.py").write_text("kept")
    top = test.partition("/")[0]
    to = target if target != "OUTSIDE" else str(outside if top == "tests" else outside / "test_calc.py")
    rollout = graded(readme, row_of(tmp_path / "repository", test), link(top, to))
    assert rollout.error is None
    assert (rollout.resolved, rollout.score and rollout.score["failure_stage"]) == (False, "tests")
    assert "AssertionError" in (rollout.score or {})["log"]
    kept = {str(path.relative_to(outside)): path.read_text() for path in outside.rglob("*.py")}
    assert kept == {"test_calc.py": "kept", "unit/test_calc.py": "kept"}


def test_a_folder_where_a_test_goes_is_no_error(readme: dict[str, Any], tmp_path: Path) -> None:
    """A patch that puts a folder in a test's place is graded by that test."""
    patch = link("test_calc.py/x", "y") + (
        "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n"
        "-def add(a, b): return a - b\n+def add(a, b): return a + b\n"
    )
    assert graded(readme, row_of(tmp_path / "repository"), patch).resolved


def test_a_repository_that_is_not_there_is_told_in_gits_words(readme: dict[str, Any], tmp_path: Path) -> None:
    """An image whose working directory is no repository, or lacks the commit, is an error with git's reason."""
    row = row_of(tmp_path / "repository")
    (tmp_path / "empty").mkdir()
    error = graded(readme, {**row, "image": str(tmp_path / "empty")}, "x").error
    assert "not a git repository" in str(error)
    error = graded(readme, {**row, "base_commit": "0123456789"}, "x").error
    assert "0123456789" in str(error)
