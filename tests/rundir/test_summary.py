"""What a run came to."""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentix_runner.records import NOT_RUN, Failure, Rollout
from agentix_runner.rundir.summary import pass_at_k, summarize


def _rollout(instance_id: str, attempt: int = 0, **more: Any) -> Rollout:
    return Rollout(instance_id, attempt=attempt, **more)


def _one_of_each() -> list[Rollout]:
    return [
        _rollout("resolved", score={"resolved": True, "reward": 0.5}, patch="x"),
        _rollout("unresolved", score={"resolved": False}, patch="x"),
        _rollout("empty", skipped="empty_patch"),
        _rollout("setup", skipped="setup_failed"),
        _rollout("error", error="Boom: it broke", patch="x"),
        _rollout("not run", error=NOT_RUN + "stopped"),
        _rollout("not scored", patch="x"),
    ]


def test_counts_every_status() -> None:
    """Every rollout is counted once, by what it came to."""
    summary = summarize(_one_of_each())

    counts = {
        name: summary[name]
        for name in ("resolved", "unresolved", "empty_patch", "setup_failed", "error", "not_run", "not_scored")
    }
    assert set(counts.values()) == {1}
    assert summary["rollouts"] == summary["instances"] == 7
    assert summary["attempts"] == 1


def test_resolved_rate_is_over_all_instances() -> None:
    """What has an error, an empty patch or did not run counts as not resolved; a reward only where there is one."""
    summary = summarize(_one_of_each())

    assert summary["resolved_rate"] == 1 / 7
    assert summary["mean_reward"] == 0.25
    assert summary["pass_at_k"] == {}


@pytest.mark.parametrize(
    "rollouts",
    [[], [_rollout("a", patch="x")], [_rollout("a", error=NOT_RUN + "x")], [_rollout("a"), _rollout("b", error="x")]],
)
def test_no_rate_where_nothing_was_scored(rollouts: list[Rollout]) -> None:
    """Where nothing was scored, or nothing ran, the rate and the reward are None and not 0."""
    summary = summarize(rollouts)

    assert summary["resolved_rate"] is None
    assert summary["mean_reward"] is None
    assert summary["pass_at_k"] == {}


def test_a_run_of_errors_has_rate_zero() -> None:
    """Where every rollout was to be scored and failed before, the rate is 0."""
    assert summarize([_rollout("a", error="x"), _rollout("b", skipped="empty_patch")])["resolved_rate"] == 0.0


def test_pass_at_k_of_several_attempts() -> None:
    """pass@k is the mean over instances of the unbiased estimate, with errors as not resolved."""
    good, bad = {"resolved": True}, {"resolved": False}
    summary = summarize(
        [
            _rollout("a", 0, score=good),
            _rollout("a", 1, score=bad),
            _rollout("a", 2, error="Boom"),
            _rollout("b", 0, score=good),
            _rollout("b", 1, score=good),
            _rollout("b", 2, score=bad),
        ]
    )

    assert summary["attempts"] == 3
    assert summary["resolved_rate"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert summary["pass_at_k"] == {
        "1": pytest.approx(0.5),
        "2": pytest.approx((2 / 3 + 1) / 2),
        "3": 1.0,
    }


def test_pass_at_k_of_an_unfinished_run() -> None:
    """An instance with fewer than k finished attempts has no part in pass@k."""
    summary = summarize(
        [
            _rollout("a", 0, score={"resolved": True}),
            _rollout("a", 1, score={"resolved": True}),
            _rollout("b", 0, score={"resolved": False}),
            _rollout("b", 1, error=NOT_RUN + "stopped"),
        ]
    )

    assert summary["pass_at_k"] == {"1": 0.5, "2": 1.0}


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_samples(n: int) -> None:
    """pass_at_k is the share of all samples of k attempts in which at least one resolved."""
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        samples = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, samples)) / len(samples))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 0)])
def test_pass_at_k_of_nonsense(n: int, c: int, k: int) -> None:
    """Numbers that can't be are an error, and k above n has no unbiased estimate."""
    with pytest.raises(ValueError, match="it takes 0 <= c <= n and 1 <= k <= n"):
        pass_at_k(n, c, k)


def test_errors_by_type() -> None:
    """Errors are counted by type, the most frequent first, with their phases and one example."""
    summary = summarize(
        [
            _rollout("b", error="Boom: two", failure=Failure("agent", "Boom", "two")),
            _rollout("a", 1, error="Boom: one", failure=Failure("setup", "Boom", "one")),
            _rollout("a", 0, error="Bang: " + "x" * 1000),
        ]
    )

    assert list(summary["errors"]) == ["Boom", "Bang"]
    assert summary["errors"]["Boom"] == {
        "count": 2,
        "phases": {"agent": 1, "setup": 1},
        "example": {"instance_id": "a", "attempt": 1, "message": "Boom: one"},
    }
    assert summary["errors"]["Bang"]["phases"] == {"unknown": 1}
    assert len(summary["errors"]["Bang"]["example"]["message"]) == 300


def test_times_by_phase() -> None:
    """Times are added up by phase, both sessions under one name, with mean and maximum."""
    phases = [("session", 0.0, 1.0), ("agent", 1.0, 4.0), ("session", 5.0, 5.5)]
    summary = summarize(
        [
            _rollout("a", phases=phases, duration_s=6.0, started_at=100.0),
            _rollout("b", duration_s=1.0, started_at=90.0),
            _rollout("c", error=NOT_RUN + "x", duration_s=50.0, started_at=1.0),
        ]
    )

    assert summary["timing"] == {
        "started_at": 90.0,
        "ended_at": 106.0,
        "span_s": 16.0,
        "rollout": {"count": 2, "sum_s": 7.0, "mean_s": 3.5, "max_s": 6.0},
        "phases": {
            "agent": {"count": 1, "sum_s": 3.0, "mean_s": 3.0, "max_s": 3.0},
            "session": {"count": 2, "sum_s": 1.5, "mean_s": 0.75, "max_s": 1.0},
        },
    }


def test_usage_is_added_up() -> None:
    """Tokens and costs in the agents' notes are added up, whole numbers as whole numbers; nothing else is."""
    summary = summarize(
        [
            _rollout("a", info={"total_tokens": 10, "cost": 0.1, "usage": {"input_tokens": 7, "x": {"tokens": 9}}}),
            _rollout("b", info={"total_tokens": 5, "cost": 0.2, "seed": 4, "steps": True}),
            _rollout("c", info={"total_tokens": "many", "cost": 10**400}),
        ]
    )

    assert summary["usage"] == {
        "cost": pytest.approx(0.3),
        "total_tokens": 15,
        "usage.input_tokens": 7,
    }
    assert type(summary["usage"]["total_tokens"]) is int


def test_odd_numbers_do_no_harm() -> None:
    """A reward that no float can hold, and sums that overflow, leave the rest of the summary as it is."""
    summary = summarize(
        [
            _rollout("a", score={"resolved": True, "reward": 10**400}),
            _rollout("b", score={"resolved": True, "reward": math.nan}, duration_s=math.inf),
            _rollout("c", score={"reward": 1e308}, duration_s=1e308, info={"cost": math.nan}),
            _rollout("d", score={"reward": 1e308}, duration_s=1e308, error="\ud800"),
            _rollout("e", score={"reward": -3}),
        ]
    )

    assert summary["mean_reward"] == pytest.approx((1e308 - 3) / 2)
    assert summary["timing"]["rollout"]["sum_s"] is None
    assert summary["timing"]["rollout"]["max_s"] == 1e308
    json.dumps(summary, allow_nan=False)


_floats = st.floats(0, 1e6) | st.floats(allow_nan=False, allow_infinity=False)
_rollouts = st.builds(
    Rollout,
    instance_id=st.sampled_from("abc"),
    attempt=st.integers(0, 3),
    score=st.none() | st.fixed_dictionaries({"resolved": st.booleans()}, optional={"reward": _floats}),
    error=st.sampled_from([None, None, "Boom: x", "Boom: y", "Bang", NOT_RUN + "x"]),
    duration_s=_floats,
    phases=st.lists(st.tuples(st.sampled_from(["agent", "score"]), _floats, _floats), max_size=3),
    info=st.fixed_dictionaries({}, optional={"cost": _floats, "tokens": st.integers()}),
)


@given(st.lists(_rollouts, max_size=12), st.randoms())
def test_order_does_not_matter(rollouts: list[Rollout], shuffler: random.Random) -> None:
    """The same rollouts in another order have the same summary, to the last bit."""
    shuffled = list(rollouts)
    shuffler.shuffle(shuffled)

    assert json.dumps(summarize(rollouts)) == json.dumps(summarize(shuffled))


def test_takes_an_iterator() -> None:
    """The rollouts are read once, so that they need not all be in memory."""
    assert summarize(rollout for rollout in _one_of_each())["rollouts"] == 7
