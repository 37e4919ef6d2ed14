"""Bad arguments: one line that names the culprit and the remedy, and nothing is started."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import AgentResult, RetryPolicy, Timeouts, run_rollouts
from agentix_runner.batch import checks as checks_module
from agentix_runner.errors import BadAdapter, BadArgument
from tests.support.fakes import (
    AsyncAgent,
    AsyncDataset,
    AsyncProvider,
    Ledger,
    PlainAgent,
    PlainDataset,
    SyncProvider,
)

ROOT = Path(__file__).parents[2]


def refused(kind: type[Exception], words: str, **kwargs: Any) -> None:
    """run_rollouts(**kwargs) raises `kind` with one line that has `words`, before a sandbox or thread is made."""
    ledger = Ledger()
    before = threading.active_count()
    arguments: dict[str, Any] = {"dataset": PlainDataset(), "agent": PlainAgent(), "provider": SyncProvider(ledger)}
    with pytest.raises(kind) as caught:
        run_rollouts(**{**arguments, **kwargs})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ledger.events == []
    assert threading.active_count() == before


class NoScore(PlainDataset):
    score = None  # type: ignore[assignment]


class ShortSetup(PlainDataset):
    async def setup(self, sandbox: Any) -> bool:  # type: ignore[override]
        return True


class OddSandbox(PlainDataset):
    def sandbox(self, instance: Any) -> dict[str, Any]:
        return {}


class NoModel:
    def solve(self, sandbox: Any, instance: Any) -> AgentResult:
        return AgentResult(patch="", exit_code=0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"dataset": NoScore()}, "dataset NoScore has no method score()"),
        ({"dataset": object()}, "dataset object has no method instances()"),
        ({"agent": object()}, "agent object has no method solve()"),
        ({"agent": None}, "agent NoneType has no method solve()"),
        ({"provider": "local"}, "provider str has no method session()"),
        ({"dataset": PlainDataset}, "dataset is the class PlainDataset: pass an instance of it, PlainDataset(...)"),
        ({"agent": PlainAgent}, "agent is the class PlainAgent"),
        (
            {"dataset": ShortSetup()},
            "dataset ShortSetup: setup() is called as setup(sandbox, instance): it takes (sand",
        ),
        ({"dataset": OddSandbox()}, "dataset OddSandbox: sandbox() is called as sandbox(instance, phase)"),
        ({"agent": NoModel()}, "agent NoModel: solve() is called as solve(sandbox, instance, model=model)"),
    ],
)
def test_an_adapter_that_lacks_something_is_named(kwargs: Any, words: str) -> None:
    """BadAdapter is a TypeError, names the role, the adapter and what is wrong with it: a method that is not there or
    takes something else, or that it is a class."""
    refused(BadAdapter, words, **kwargs)
    assert issubclass(BadAdapter, TypeError)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"n_concurrent": 0}, "n_concurrent is 0: it must be 1 or more"),
        ({"n_concurrent": -3}, "n_concurrent is -3"),
        ({"n_concurrent": 2.5}, "n_concurrent is 2.5: give a whole number"),
        ({"n_concurrent": True}, "n_concurrent is True"),
        ({"n_concurrent": "8"}, "n_concurrent is '8'"),
        ({"n_attempts": 0}, "n_attempts is 0"),
        ({"max_errors": -1}, "max_errors is -1"),
        ({"max_errors": 1.5}, "from 1 on it is a count"),
        ({"max_errors": float("nan")}, "max_errors is nan"),
        ({"timeouts": 600}, "timeouts is 600: give Timeouts("),
        ({"retry": 3}, "retry is 3: give RetryPolicy("),
        ({"stop": True}, "stop is True: give a threading.Event"),
        ({"on_result": "print"}, "on_result is 'print': give a function"),
        ({"model": 4}, "model is 4: give a str"),
        ({"instances": "abc"}, "instances is of type str: give a list of dicts"),
        ({"instances": {"instance_id": "a"}}, "instances is of type dict"),
        ({"instances": 3}, "instances is of type int"),
        ({"instances": [{"instance_id": "a"}, "b"]}, "instance 1 is of type str: every instance must be a dict"),
        ({"instances": [{"name": "x", "repo": "y"}]}, "instance 0 has no id"),
        ({"instances": [{"name": "x", "repo": "y"}]}, "'name', 'repo'"),
        ({"instances": [{"instance_id": ""}]}, "instance 0 has no id"),
        ({"instances": [{"instance_id": None}]}, "instance 0 has no id"),
        ({"instances": [{"instance_id": ["a"]}]}, "an id must be a str or an int"),
    ],
)
def test_a_bad_argument_is_named(kwargs: Any, words: str) -> None:
    """BadArgument is a ValueError with the argument, its value and what to give instead."""
    refused(BadArgument, words, **kwargs)
    assert issubclass(BadArgument, ValueError)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "60"])
@pytest.mark.parametrize("name", ["session", "setup", "agent", "score", "teardown", "total"])
def test_a_limit_must_be_a_number_above_zero(name: str, value: Any) -> None:
    """Every limit of Timeouts is checked when it is made."""
    with pytest.raises(BadArgument, match=f"Timeouts.{name} is"):
        Timeouts(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("attempts", 0), ("attempts", 1.5), ("wait_initial", -1), ("wait_max", "x")]
)
def test_a_retry_policy_must_make_sense(name: str, value: Any) -> None:
    """So is every number of RetryPolicy."""
    with pytest.raises(BadArgument, match=f"RetryPolicy.{name} is"):
        RetryPolicy(**{name: value})


def test_ids_may_be_numbers_and_either_key() -> None:
    """instance["instance_id"], else ["id"]; an int becomes its text."""
    jobs = checks_module.jobs_of([{"instance_id": "a", "id": "b"}, {"id": 5}, {"instance_id": None, "id": "c"}], 1)
    assert [job.instance_id for job in jobs] == ["a", "5", "c"]


def test_more_loops_than_file_descriptors_allow_are_refused_with_the_number_needed() -> None:
    """A process that may open 256 files can't have 1,000 event loops; it is told so before anything starts."""
    script = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))
from agentix_runner import run_rollouts
from tests.support.fakes import *
plain = dict(dataset=PlainDataset(1000), agent=PlainAgent(), provider=SyncProvider())
few = dict(dataset=AsyncDataset(30), agent=AsyncAgent(), provider=AsyncProvider())
many = dict(dataset=AsyncDataset(1000), agent=AsyncAgent(), provider=AsyncProvider())
assert all(r.resolved for r in run_rollouts(**plain, n_concurrent=1000))
assert all(r.resolved for r in run_rollouts(**few, n_concurrent=30))
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 128
try:
    run_rollouts(**many, n_concurrent=1000)
except ValueError as exc:
    print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "n_concurrent=1000 with async adapters needs 30" in done.stdout
    assert "256 are allowed" in done.stdout
    assert "lower n_concurrent to" in done.stdout


def test_the_soft_limit_is_left_alone_where_it_is_enough() -> None:
    """Nothing is raised without need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    run_rollouts(dataset=AsyncDataset(2), agent=AsyncAgent(), provider=AsyncProvider(), n_concurrent=2)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_different_instances_of_one_id_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """They count as attempts, which may not be what is meant; the same instance again is no news."""
    one = {"instance_id": "a", "n": 1}
    assert [p.attempt for p in checks_module.jobs_of([one, one, dict(one)], 1)] == [0, 1, 2]
    assert caplog.text == ""
    assert [p.attempt for p in checks_module.jobs_of([one, {"instance_id": "a", "n": 2}], 1)] == [0, 1]
    assert "instances that differ have the same id, 'a': they count as attempts at one" in caplog.text
