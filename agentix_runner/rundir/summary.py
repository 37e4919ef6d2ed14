"""What a run came to: counts, rates, pass@k, time by phase, errors by type.

One pass, and the order of the rollouts doesn't matter: a run that was killed and resumed has the same summary as one
that was not, but for what depends on time, which is under "timing".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field

from ..records import STATUSES, Rollout, status_of

USAGE = frozenset(
    {
        "tokens",
        "input_tokens",
        "output_tokens",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "cached_tokens",
        "reasoning_tokens",
        "cost",
        "total_cost",
        "cost_usd",
        "instance_cost",
        "api_calls",
        "n_calls",
        "steps",
        "n_steps",
        "turns",
    }
)
"""The numbers of `Rollout.info` that are added up, also one level down, as in `info["usage"]["input_tokens"]`."""

_EXAMPLE = 300  # characters of an error's message that are shown
_SCALE = 1074  # 2**-1074 is the smallest float: as whole numbers of these, sums are exact, in any order


def summarize(rollouts: Iterable[Rollout]) -> dict[str, Any]:
    """The summary of a run, as JSON-able data.

    "resolved_rate" is over all instances, as the SWE-bench harness counts: what has an error, an empty patch or did
    not run is not resolved. With several attempts it is the mean over instances of the share of attempts that
    resolved (pass@1). It is None where nothing was scored. "pass_at_k" has an entry for each k from 1 to the number of
    attempts, each the mean over the instances with at least k finished attempts; it is empty for a single attempt.
    "mean_reward" is over the rollouts that have a reward. Times are seconds, except "started_at" and "ended_at", which
    are Unix times; "span_s" is from the first to the last of these, pauses between runs included.
    """
    summary = Summary()
    for rollout in rollouts:
        summary.add(rollout)
    return summary.result()


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k attempts resolves, given that c of n did.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al., "Evaluating Large Language Models Trained on Code",
    2021.

    Raises:
        ValueError: not 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k(n={n}, c={c}, k={k}): it takes 0 <= c <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def usage_of(info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a rollout's `info` that are added up, as (name, number): those named in `USAGE`."""
    for key, value in info.items():
        if key in USAGE and _is_number(value):
            yield prefix + key, value
        elif not prefix and isinstance(value, dict):
            yield from usage_of(value, f"{key}.")


class Summary:
    """A summary in the making."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(STATUSES, 0)
        self._instances: dict[str, list[int]] = {}  # [finished attempts, resolved ones]
        self._attempts = 0
        self._reward = _Sum()
        self._usage: dict[str, _Sum] = {}
        self._errors: dict[str, _Errors] = {}
        self._durations = _Sum()
        self._phases: dict[str, _Sum] = {}
        self._started = math.inf
        self._ended = -math.inf

    def add(self, rollout: Rollout) -> None:
        """Count one rollout. Each (instance, attempt) is to be given once."""
        status = status_of(rollout)
        self._counts[status] = self._counts.get(status, 0) + 1
        tally = self._instances.setdefault(rollout.instance_id, [0, 0])
        self._attempts = max(self._attempts, rollout.attempt + 1)
        if status == "not_run":
            return
        tally[0] += 1
        tally[1] += status == "resolved"
        reward = finite_reward(rollout)
        if reward is not None:
            self._reward.add(reward)
        if status == "error":
            self._add_error(rollout)
        for key, number in usage_of(rollout.info):
            self._usage.setdefault(key, _Sum()).add(number)
        self._add_times(rollout)

    def _add_error(self, rollout: Rollout) -> None:
        text = rollout.error or ""
        failure = rollout.failure
        name = failure.type if failure else text.partition(":")[0]
        errors = self._errors.setdefault(name[:_EXAMPLE], _Errors())
        errors.count += 1
        phase = failure.phase if failure else "unknown"
        errors.phases[phase] = errors.phases.get(phase, 0) + 1
        example = (rollout.instance_id, rollout.attempt, text[:_EXAMPLE])
        if errors.example is None or example < errors.example:
            errors.example = example

    def _add_times(self, rollout: Rollout) -> None:
        self._durations.add(rollout.duration_s)
        for name, start, end in rollout.phases:
            self._phases.setdefault(name, _Sum()).add(end - start)
        if rollout.started_at is not None:
            self._started = min(self._started, rollout.started_at)
            self._ended = max(self._ended, rollout.started_at + rollout.duration_s)

    def result(self) -> dict[str, Any]:
        """The summary of what was added so far."""
        counts = self._counts
        started = self._started if self._started < math.inf else None
        ended = self._ended if self._ended > -math.inf else None
        return {
            "rollouts": sum(counts.values()),
            "instances": len(self._instances),
            "attempts": self._attempts,
            **counts,
            "resolved_rate": self._rate(),
            "pass_at_k": self._pass_at_k(),
            "mean_reward": self._reward.mean(),
            "usage": {name: self._usage[name].total() for name in sorted(self._usage)},
            "errors": {
                name: self._errors[name].result()
                for name in sorted(self._errors, key=lambda name: (-self._errors[name].count, name))
            },
            "timing": {
                "started_at": started,
                "ended_at": ended,
                "span_s": None if started is None or ended is None else ended - started,
                "rollout": self._durations.result(),
                "phases": {name: times.result() for name, times in sorted(self._phases.items())},
            },
        }

    def _rate(self) -> float | None:
        counts = self._counts
        ran = sum(counts.values()) - counts["not_run"]
        if not ran or (counts["not_scored"] and not counts["resolved"] + counts["unresolved"]):
            return None
        rate = _Sum()
        for attempts, resolved in self._instances.values():
            rate.add(resolved / attempts if attempts else 0.0)
        return rate.mean()

    def _pass_at_k(self) -> dict[str, float]:
        if self._attempts < 2 or self._rate() is None:
            return {}
        alike: dict[tuple[int, int], int] = {}  # there are few different tallies, however many instances
        for attempts, resolved in self._instances.values():
            alike[attempts, resolved] = alike.get((attempts, resolved), 0) + 1
        out = {}
        for k in range(1, self._attempts + 1):
            some = [(pass_at_k(n, c, k), count) for (n, c), count in alike.items() if n >= k]
            if some:
                out[str(k)] = math.fsum(chance * count for chance, count in some) / sum(count for _, count in some)
        return out


@define
class _Errors:
    count: int = 0
    phases: dict[str, int] = field(factory=dict)
    example: tuple[str, int, str] | None = None

    def result(self) -> dict[str, Any]:
        instance_id, attempt, message = self.example or ("", 0, "")
        return {
            "count": self.count,
            "phases": dict(sorted(self.phases.items())),
            "example": {"instance_id": instance_id, "attempt": attempt, "message": message},
        }


class _Sum:
    """An exact sum, which does not depend on the order, with its count and maximum."""

    __slots__ = ("_exact", "_floats", "count", "max")

    def __init__(self) -> None:
        self._exact = 0
        self._floats = False
        self.count = 0
        self.max: float | None = None

    def add(self, value: float) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            return
        numerator, denominator = value.as_integer_ratio()
        self._exact += (numerator << _SCALE) // denominator
        self._floats = self._floats or isinstance(value, float)
        self.count += 1
        if self.max is None or value > self.max:
            self.max = value

    def total(self) -> float | None:
        """A whole number where only such were added. None where it is too large for a float."""
        if not self._floats:
            return self._exact >> _SCALE
        return _divide(self._exact, 1 << _SCALE)

    def mean(self) -> float | None:
        return _divide(self._exact, self.count << _SCALE) if self.count else None

    def result(self) -> dict[str, Any]:
        return {"count": self.count, "sum_s": self.total(), "mean_s": self.mean(), "max_s": self.max}


def _divide(numerator: int, denominator: int) -> float | None:
    try:
        return numerator / denominator
    except OverflowError:
        return None


def finite_reward(rollout: Rollout) -> float | None:
    """The reward, where there is one that can be added up and shown: neither a NaN nor more than a float holds."""
    reward = rollout.reward
    return reward if reward is not None and math.isfinite(reward) else None


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64
