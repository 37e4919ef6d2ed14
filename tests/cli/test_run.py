"""`agentix-run`, run in this process: what it hands to the runner, what it shows, and what it refuses."""

from __future__ import annotations

import inspect
import json
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

import agentix_runner
from agentix_runner.cli.main import main as agentix
from agentix_runner.cli.run import main as agentix_run
from agentix_runner.errors import JournalError
from agentix_runner.records import RetryPolicy, Rollout, Timeouts

BENCH = """
    import contextlib, json, os, sys
    from agentix_runner import AgentResult

    class Box:
        def remote(self, fn, /, *args, **kwargs):
            return fn(*args, **kwargs)

    class Provider:
        def __init__(self, tag: str = ""):
            self.tag = tag

        @contextlib.contextmanager
        def session(self, config):
            open("started", "a").close()
            yield Box()

    class Tasks:
        def __init__(self, n: int = 4, instances: list | None = None):
            self.rows = [{"id": f"task/{i}"} for i in range(n)] if instances is None else instances

        def instances(self):
            return self.rows

        def image(self, instance):
            return ""

        def setup(self, sandbox, instance):
            return True

        def score(self, sandbox, instance, patch):
            return {"resolved": patch == "good"}

    class Agent:
        def __init__(self, fail: str = "", wrong: str = ""):
            self.fail, self.wrong = fail, wrong

        def solve(self, sandbox, instance, *, model):
            print("agent prints")
            os.write(1, b"agent writes\\n")
            if instance["id"] == self.fail:
                raise ValueError("no \\x1b[31mluck")
            return AgentResult(patch="bad" if instance["id"] == self.wrong else "good")

    class Broken:
        def __init__(self):
            raise KeyError("SOME_VARIABLE")

    tasks, agent, provider = Tasks(), Agent(), Provider()
"""

# Before click 8.2 stderr was part of stdout unless one asked otherwise.
_OLD = "mix_stderr" in inspect.signature(click.testing.CliRunner).parameters
CLI = click.testing.CliRunner(**({"mix_stderr": False} if _OLD else {}))

ADAPTERS = ["--dataset", "bench:Tasks", "--agent", "bench:Agent", "--provider", "bench:Provider"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module `bench`, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "bench.py").write_text(textwrap.dedent(BENCH))
    yield tmp_path
    sys.modules.pop("bench", None)


def run(*args: str, adapters: list[str] = ADAPTERS) -> click.testing.Result:
    result = CLI.invoke(agentix_run, [*adapters, *args])
    assert logging.getLogger("agentix_runner").handlers == []
    return result


def refused(*args: str, adapters: list[str] = ADAPTERS) -> str:
    """The one line that says why nothing was started."""
    result = run(*args, adapters=adapters)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert not Path("started").exists()
    return result.stderr.removeprefix("Error: ").rstrip("\n")


class Recorder:
    """Stands in for `run_rollouts`: keeps what it is called with, and returns or raises what it is told."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.finished: list[Rollout] = []
        self.outcome: list[Rollout] | BaseException = [Rollout("a", score={"resolved": True})]

    def __call__(self, *args: Any, **given: Any) -> list[Rollout]:
        self.given = given
        if "progress" in given:
            given["progress"].start(total=4, finished=[])
            for rollout in self.finished:
                given["progress"].result(rollout)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr("agentix_runner.runner.run_rollouts", recorder)
    return recorder


class TestResults:
    """What is shown of a run, and its exit code."""

    def test_table(self) -> None:
        """A run that went well ends with a table on stdout, and 0."""
        result = run("--out", "out")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[:5] == ["4 rollouts", "  resolved  4  100.0%", "", "  resolved rate  100.0%", ""]
        assert lines[-1] == "results: out"
        assert result.stderr == "agent prints\n" * 4
        assert json.loads(Path("out/summary.json").read_text())["resolved"] == 4

    def test_json(self) -> None:
        """With --json the summary is all there is on stdout."""
        result = run("--out", "out", "--json", "--agent-arg", "wrong=task/1")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == json.loads(Path("out/summary.json").read_text())
        assert json.loads(result.stdout)["unresolved"] == 1

    def test_error(self) -> None:
        """A rollout with an error is a line on stderr at once, made harmless, and exit code 1."""
        result = run("--out", "out", "--agent-arg", "fail=task/2")
        assert result.exit_code == 1
        [line] = [line for line in result.stderr.splitlines() if line != "agent prints"]
        assert line[8:] == " ERROR task/2: ValueError: no \\x1b[31mluck"
        assert "  error     1  25.0%" in result.stdout
        assert "    task/2: ValueError: no \\x1b[31mluck" in result.stdout
        assert result.stdout.endswith(
            "run the one with an error again: the same command with --out out --retry-errors\n"
        )

    def test_retry_errors(self) -> None:
        """Resuming runs what is left, and with --retry-errors what has an error."""
        assert run("--out", "out", "--agent-arg", "fail=task/2", "--limit", "3").exit_code == 1
        again = run("--out", "out", "--agent-arg", "fail=task/2")
        assert again.exit_code == 1
        assert again.stderr[8:] == " 3 of 4 rollouts finished already\nagent prints\n"
        third = run("--out", "out", "--agent-arg", "fail=task/2", "--retry-errors")
        assert third.stderr.count("agent prints") == 1
        assert "task/2: ValueError" in third.stderr

    @pytest.mark.parametrize(("args", "code"), [([], 0), (["--fail-on-unresolved"], 1)])
    def test_unresolved(self, args: list[str], code: int) -> None:
        """What is not resolved is no failure, unless that is asked for."""
        assert run("--out", "out", "--agent-arg", "wrong=task/1", *args).exit_code == code
        assert run("--out", "good", *args).exit_code == 0

    def test_default_run_directory(self) -> None:
        """Without --out the results are in a new folder of runs/, which is told at once."""
        results = [run(), run()]
        folders = sorted(p.name for p in Path("runs").iterdir())
        assert len(folders) == 2
        assert sorted(r.stderr.splitlines()[0].rpartition("/")[2] for r in results) == folders
        assert all(name[:8].isdigit() and "-bench-" in name for name in folders)
        assert sorted(r.stdout.rpartition("/")[2].strip() for r in results) == folders

    def test_quiet(self) -> None:
        """With -q only errors are told."""
        result = run("-q", "--agent-arg", "fail=task/0")
        told = [line for line in result.stderr.splitlines() if line != "agent prints"]
        assert [line[8:] for line in told] == [" ERROR task/0: ValueError: no \\x1b[31mluck"]

    def test_verbose_shows_what_sandboxes_print(self, monkeypatch: pytest.MonkeyPatch, runner: Recorder) -> None:
        """With -v debugging and the sandboxes' output are told, with the instance, and made harmless."""

        def talk(**given: Any) -> list[Rollout]:
            about = {"instance_id": "task/1", "phase": "agent"}
            logging.getLogger("agentix_runner.sandbox").info("hi\x1b[2J\n12:00:00 ERROR forged", extra=about)
            logging.getLogger("agentix_runner.x").debug("detail")
            return [Rollout("a")]

        monkeypatch.setattr("agentix_runner.runner.run_rollouts", talk)
        assert [line[8:] for line in run("-v", "--out", "o").stderr.splitlines()] == [
            " [task/1 agent] hi\\x1b[2J",
            "0:00 ERROR forged",  # what is left of an indented line
            " DEBUG detail",
        ]
        assert run("--out", "o").stderr == ""

    def test_verbose_shows_tracebacks(self) -> None:
        """With -v the traceback of a rollout's error follows its line."""
        told = run("-v", "--agent-arg", "fail=task/0").stderr
        _, line, rest = told.partition(" ERROR task/0: ValueError: no \\x1b[31mluck\n")
        assert line
        assert rest.splitlines()[0][8:] == " DEBUG Traceback (most recent call last):"
        assert '    raise ValueError("no' in rest

    def test_logging_of_others_is_left_alone(self, runner: Recorder) -> None:
        """The root logger keeps its handlers and level, and gets no line twice."""
        root = logging.getLogger()
        before = (list(root.handlers), root.level)
        run("-v")
        assert (list(root.handlers), root.level) == before
        assert logging.getLogger("agentix_runner").propagate is True
        assert logging.getLogger("agentix_runner").level == logging.NOTSET


class TestOptions:
    """What reaches the runner."""

    def test_defaults(self, runner: Recorder) -> None:
        """Without options the run is that of the library, four at a time."""
        assert run("--out", "out").exit_code == 0
        given = runner.given
        assert [type(given.pop(name)).__name__ for name in ("dataset", "agent", "provider")] == [
            "Tasks",
            "Agent",
            "Provider",
        ]
        assert type(given.pop("progress")).__name__ == "LogProgress"
        assert given == {
            "instances": [{"id": f"task/{i}"} for i in range(4)],
            "bundle": None,
            "model": None,
            "platform": None,
            "n_concurrent": 4,
            "n_attempts": 1,
            "score": True,
            "timeouts": Timeouts(),
            "retry": None,
            "max_errors": None,
            "run_dir": "out",
            "retry_errors": False,
            "executor": None,
            "arguments": {"dataset": "bench:Tasks", "agent": "bench:Agent", "provider": "bench:Provider"},
        }

    def test_everything(self, runner: Recorder) -> None:
        """Each option reaches the runner."""
        options = """--model m --bundle b --platform linux/arm64 --n-concurrent 2 --n-attempts 3 --no-score
            --retry-attempts 7 --max-errors 0.5 --retry-errors --timeout-session 1 --timeout-setup 2m
            --timeout-agent none --timeout-score 1.5 --timeout-teardown 5s --timeout-total 3h
            --dataset-arg n=9 --agent-arg fail=x --agent-arg wrong=y --provider-arg tag=z
            --shuffle 1 --instance-id task/[0-7] --slice 1:6 --limit 2"""
        assert run("--out", "out", *options.split()).exit_code == 0
        given = runner.given
        assert (given["model"], given["bundle"], given["platform"]) == ("m", "b", "linux/arm64")
        assert (given["n_concurrent"], given["n_attempts"], given["score"]) == (2, 3, False)
        assert given["retry"] == RetryPolicy(attempts=7)
        assert (given["max_errors"], given["retry_errors"]) == (0.5, True)
        assert given["timeouts"] == Timeouts(session=1, setup=120, agent=None, score=1.5, teardown=5, total=10800)
        assert (given["agent"].fail, given["agent"].wrong, given["provider"].tag) == ("x", "y", "z")
        assert len(given["dataset"].rows) == 9
        assert len(given["instances"]) == 2
        assert given["arguments"] == {
            "dataset": "bench:Tasks",
            "agent": "bench:Agent",
            "provider": "bench:Provider",
            "dataset_args": {"n": "9"},
            "agent_args": {"fail": "x", "wrong": "y"},
            "provider_args": {"tag": "z"},
        }

    def test_local_is_the_default_provider(self, runner: Recorder) -> None:
        """Without --provider it is `local`, with its arguments."""
        run("--provider-arg", "max_log=5", adapters=ADAPTERS[:4])
        assert runner.given["provider"] == agentix_runner.LocalProvider(max_log=5)


class TestRefused:
    """Bad input: one line, exit code 2, nothing started."""

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--dataset", "benhc:x"], "--dataset benhc:x: there is no module 'benhc'; close: bench"),
            (["--agent", "bench:agnet"], "--agent bench:agnet: bench has no 'agnet'; close: agent, Agent"),
            (["--agent", "bench:tasks"], "--agent bench:tasks: Tasks lacks solve(); agentix_runner.Agent needs solve"),
            (["--provider", "lokal"], "unknown provider 'lokal': there are "),
            (["--provider", "bench:agent"], "--provider bench:agent: Agent lacks session(); agentix_runner."),
            (["--n-concurrent", "0"], "n_concurrent is 0: it must be 1 or more"),
            (["--n-attempts", "0"], "n_attempts is 0: it must be 1 or more"),
            (["--max-errors", "-1"], "max_errors is -1: "),
            (["--retry-attempts", "0"], "RetryPolicy.attempts is 0: "),
            (
                ["--timeout-agent", "0"],
                "Invalid value for '--timeout-agent': '0' is not a valid time: expected seconds above 0, 30m",
            ),
            (["--timeout-total", "-5"], "Invalid value for '--timeout-total': '-5' is not a valid time"),
            (["--limit", "0"], "Invalid value for '--limit': 0 is not in the range x>=1."),
            (["--slice", "3"], "Invalid value for '--slice': '3' is not a valid slice"),
            (["--slice", "7:"], "--slice leaves no instance to run"),
            (["--instance-id", "tusk/1"], "--instance-id tusk/1: none of the 4 instances has such an id"),
            (["--dataset-arg", "m=1"], "--dataset-arg m: bench:Tasks does not take 'm'; it takes n, instances"),
            (["--dataset-arg", "n=x"], "--dataset-arg n: give a whole number, not 'x'"),
            (["--dataset-arg", "n=1", "--dataset-arg", "n=2"], "--dataset-arg n is given twice"),
            (["--dataset-arg", "n=0"], "the dataset has no instances: there is nothing to run"),
            (["--dataset-arg", "instances=[1]"], "instance 0 is of type int: every instance must be a dict"),
            (["--dataset-arg", 'instances=[{"name": "x"}]'], 'instance 0 has no id: give it an "instance_id"'),
            (
                ["--dataset-arg", "instances=5"],
                "--dataset bench:Tasks: instances() returned int: it must return a list",
            ),
            (["--no-score", "--fail-on-unresolved"], "--fail-on-unresolved needs scores"),
            (["-v", "-q"], "-v and -q exclude each other"),
            (["--nope"], "No such option"),
            (["--n-concurrent", "many"], "Invalid value for '--n-concurrent': 'many' is not a valid integer."),
            (["stray"], "Got unexpected extra argument"),
        ],
    )
    def test_arguments(self, args: list[str], message: str) -> None:
        """The line names the culprit and the remedy."""
        assert refused(*args).startswith(message)
        assert not Path("runs").exists()

    def test_missing_options(self) -> None:
        """What must be given is named, with where the help is."""
        assert refused(adapters=[]) == "Missing option '--dataset'. (see agentix-run --help)"

    def test_factory_that_raises(self) -> None:
        """The user's own error is shown with its place; with -v its whole traceback comes before the line."""
        text = "--agent bench:Broken raised: KeyError: 'SOME_VARIABLE' (bench.py:"
        assert refused("--agent", "bench:Broken").startswith(text)
        told = run("--agent", "bench:Broken", "-v")
        assert told.exit_code == 2
        assert told.stderr.startswith("Traceback (most recent call last):\n")
        assert 'raise KeyError("SOME_VARIABLE")\n' in told.stderr
        assert told.stderr.splitlines()[-1].startswith(f"Error: {text}")

    def test_module_that_does_not_import(self, here: Path) -> None:
        """The real import error is shown, with file and line."""
        (here / "wants.py").write_text("import bench\nimport no_such_package\n")
        assert refused("--agent", "wants:agent") == (
            "--agent wants:agent: importing 'wants' failed: "
            "ModuleNotFoundError: No module named 'no_such_package' (wants.py:2)"
        )

    def test_run_directory(self, here: Path) -> None:
        """A run directory of a different run, of something else, or that can't be made is refused."""
        assert run("--out", "out", "--model", "one").exit_code == 0
        Path("started").unlink()
        assert refused("--out", "out", "--model", "two").startswith('out holds a different run: model was "one" and is')
        (here / "mine").mkdir()
        (here / "mine" / "thesis.txt").write_text("")
        assert refused("--out", "mine").startswith("mine is no run directory")
        assert refused("--out", "bench.py").startswith("bench.py is not a directory")
        assert refused("--out", "bench.py/x").startswith("bench.py/x ")


class TestEnds:
    """How else it may end."""

    def test_bug(self, runner: Recorder) -> None:
        """An error of the runner's own keeps its traceback, and is 70."""
        runner.outcome = ZeroDivisionError("oops \x1b[31m")
        result = run()
        assert result.exit_code == 70
        assert "Traceback (most recent call last):\n" in result.stderr
        assert "ZeroDivisionError: oops \\x1b[31m\n" in result.stderr
        assert result.stderr.endswith("Error: this is a bug in agentix-runner; please report it with the lines above\n")
        assert result.stdout == ""

    def test_journal(self, runner: Recorder) -> None:
        """A journal that can't be written is 74, in one line."""
        runner.outcome = JournalError("out/rollouts.jsonl: no space left: make room")
        result = run("--out", "out")
        assert (result.exit_code, result.stderr) == (74, "Error: out/rollouts.jsonl: no space left: make room\n")

    def test_interrupt(self, monkeypatch: pytest.MonkeyPatch, runner: Recorder) -> None:
        """Ctrl-C is 130, and says how to go on."""
        runner.outcome = KeyboardInterrupt()
        runner.finished = [Rollout("a"), Rollout("b")]
        result = run("--out", "my out")
        assert result.exit_code == 130
        assert result.stderr == (
            "Ended by SIGINT: 2 rollouts finished and kept; the rest: the same command with --out 'my out'\n"
        )
        monkeypatch.setattr("agentix_runner.cli.run.read_instances", runner)
        assert run().stderr == "Ended by SIGINT: nothing was started\n"

    def test_not_run(self, runner: Recorder) -> None:
        """Rollouts that a stop kept from running make it 1."""
        runner.outcome = [Rollout("a", error="not run: the run was stopped")]
        result = run("--out", "out")
        assert result.exit_code == 1
        assert "run the 1 that did not run: the same command with --out out" in result.stdout


class TestHelp:
    """The help, and what importing costs."""

    def test_help(self) -> None:
        """Every option is in its group; the order of selection, examples and exit codes are told."""
        result = CLI.invoke(agentix_run, ["-h"], prog_name="agentix-run")
        assert result.exit_code == 0
        heads = [line for line in result.stdout.splitlines() if line.endswith(":") and not line.startswith("  ")]
        assert heads == [
            "What to run:",
            "Which instances (applied in this order):",
            "How:",
            "Limits:",
            "Results:",
            "Other:",
        ]
        found = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  --")]
        order = [name for name in found if name in ("--shuffle", "--instance-id", "--slice", "--limit")]
        assert order == ["--shuffle", "--instance-id", "--slice", "--limit"]
        assert len(found) == 31
        assert "agentix-run --dataset examples.humaneval:dataset" in result.stdout
        assert "  130  Ctrl-C" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80

    def test_version(self) -> None:
        """--version prints the name and the version."""
        for command, name in ((agentix_run, "agentix-run"), (agentix, "agentix")):
            result = CLI.invoke(command, ["--version"])
            assert (result.exit_code, result.stdout) == (0, f"{name} {agentix_runner.__version__}\n")

    def test_agentix(self) -> None:
        """`agentix` alone shows its help; an unknown command is one line and 2."""
        result = CLI.invoke(agentix, [], prog_name="agentix")
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: agentix [OPTIONS] COMMAND")
        result = CLI.invoke(agentix, ["nope"], prog_name="agentix")
        assert (result.exit_code, result.stderr) == (2, "Error: No such command 'nope'. (see agentix --help)\n")

    @pytest.mark.parametrize("command", ["build", "clean", "report", "show"])
    def test_groups(self, command: str) -> None:
        """Of `agentix`'s commands too only options are listed, and -h comes last."""
        result = CLI.invoke(agentix, [command, "--help"], prog_name="agentix")
        listed = [line for line in result.stdout.partition("Examples:")[0].splitlines() if re.match("  [^ ]", line)]
        options = [line.split()[0] for line in listed if line.startswith("  -")]
        assert options[-1] == "-h,"
        heads = [line for line in result.stdout.splitlines() if re.fullmatch("[A-Z][a-z]+:", line)]
        assert heads == {"build": ["What:", "Python:", "Output:", "Other:"], "clean": ["What:", "Other:"]}.get(
            command, ["Options:"]
        )
        assert not re.search(r"^  \[?[A-Z_]+\]?(\.\.\.)?$", result.stdout, re.MULTILINE)

    def test_light(self) -> None:
        """Importing the command loads neither docker nor an event loop."""
        code = "import sys, agentix_runner.cli.run; print(sorted({'docker', 'asyncio', 'tqdm'} & set(sys.modules)))"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout == "[]\n"
