"""The records: what they hold, what they refuse, what they tell."""

from __future__ import annotations

import math
import pickle
from typing import Any

import attrs
import pytest

from agentix_runner import AgentResult, Failure, Resource, RetryPolicy, Rollout, SandboxConfig, Timeouts
from agentix_runner.errors import BadArgument


def test_the_fields_of_a_rollout_are_in_the_documented_order() -> None:
    """Positional use and old journals depend on it."""
    assert [f.name for f in attrs.fields(Rollout)] == [
        "instance_id", "patch", "score", "agent_exit", "error", "skipped", "duration_s",
        "attempt", "model", "started_at", "phases", "info", "failure",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rollout", "status", "resolved", "reward"),
    [
        (Rollout("a", "p", {"resolved": True}), "resolved", True, 1.0),
        (Rollout("a", "p", {"resolved": False}), "unresolved", False, 0.0),
        (Rollout("a", "p", {}), "unresolved", False, 0.0),
        (Rollout("a", "p", {"resolved": True, "reward": 0.25}), "resolved", True, 0.25),
        (Rollout("a", "p", {"reward": 10**400}), "unresolved", False, math.inf),
        (Rollout("a", "p", {"reward": "much"}), "unresolved", False, 0.0),
        (Rollout("a", "p"), "not_scored", False, None),
        (Rollout("a", skipped="setup_failed"), "setup_failed", False, None),
        (Rollout("a", skipped="empty_patch"), "empty_patch", False, None),
        (Rollout("a", "p", error="E: x"), "error", False, None),
        (Rollout("a", "p", {"resolved": True}, error="E: x"), "error", False, None),
    ],
)
def test_what_a_rollout_tells_of_its_outcome(
    rollout: Rollout, status: str, resolved: bool, reward: float | None
) -> None:
    """The reward is None, never 0, where no scoring happened."""
    assert (rollout.status, rollout.resolved, rollout.reward) == (status, resolved, reward)


def test_a_rollout_that_was_stopped_did_not_run() -> None:
    """Its error says so, and `ran` is what programs ask."""
    assert not Rollout("a", error="not run: the run was stopped").ran
    assert Rollout("a", error="RuntimeError: not run: really").ran
    assert Rollout("a").ran


@pytest.mark.parametrize(
    "record",
    [
        Rollout("a", "p", {"x": 1}, 0, failure=Failure("agent", "E", "m")),
        AgentResult("p", 1, {"a": 1}, {"f": b"x"}),
        SandboxConfig(image="i", env={"A": "b"}, resource=Resource(cpu=0.5, memory="4g")),
        Timeouts(agent=None),
        RetryPolicy(attempts=2),
    ],
)
def test_records_survive_pickling(record: Any) -> None:
    """They travel between processes."""
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("kwargs", [{"cpu": 0}, {"cpu": -1.5}, {"gpu": 0}, {"memory": 0}, {"memory": "  "}])
def test_a_senseless_resource_is_refused(kwargs: Any) -> None:
    """Named by its attribute."""
    with pytest.raises(BadArgument, match=f"Resource.{next(iter(kwargs))} is"):
        Resource(**kwargs)


def test_configurations_do_not_change() -> None:
    """Frozen and keyword-only."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Timeouts().agent = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Timeouts(3)  # type: ignore[misc]
