"""What a run came to: counts, rates, pass@k, time by phase, errors by type.

One pass, and the order of the rollouts doesn't matter: a run that was killed and resumed has the same summary as one
that was not, but for what depends on time, which is under "timing".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..records import STATUSES, Rollout, status_of

USAGE = frozenset(
    {f"{kind}tokens" for kind in ("", "input_", "output_", "prompt_", "completion_", "total_", "cached_", "reasoning_")}
    | {"cost", "total_cost", "cost_usd", "instance_cost"}
    | {"api_calls", "n_calls", "steps", "n_steps", "turns"}
)
"""The numbers of `Rollout.info` that are added up, also one level down, as in `info["usage"]["input_tokens"]`."""

_EXAMPLE = 300  # characters of an error's message that are shown


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


def finite_reward(rollout: Rollout) -> float | None:
    """The reward, where there is one that can be added up and shown: neither a NaN nor more than a float holds."""
    reward = rollout.reward
    return reward if reward is not None and math.isfinite(reward) else None


def error_kind(rollout: Rollout) -> tuple[str, str]:
    """What kind of error a rollout has, and the phase that it was in: (type, phase)."""
    if rollout.failure:
        return rollout.failure.type, rollout.failure.phase
    return (rollout.error or "").partition(":")[0], "unknown"


class Summary:
    """A summary in the making. `tallies` tells of each instance how many attempts have finished, and how many of them
    resolved."""

    def __init__(self) -> None:
        self.tallies: dict[str, list[int]] = {}
        self._counts = dict.fromkeys(STATUSES, 0)
        self._attempts = 0
        self._rewards: list[float] = []
        self._usage: dict[str, list[float]] = {}
        self._errors: dict[str, list[tuple[str, int, str, str]]] = {}
        self._durations: list[float] = []
        self._phases: dict[str, list[float]] = {}
        self._started: list[float] = []
        self._ended: list[float] = []

    def add(self, rollout: Rollout) -> None:
        """Count one rollout. Each (instance, attempt) is to be given once."""
        status = status_of(rollout)
        self._counts[status] = self._counts.get(status, 0) + 1
        tally = self.tallies.setdefault(rollout.instance_id, [0, 0])
        self._attempts = max(self._attempts, rollout.attempt + 1)
        if status == "not_run":
            return
        tally[0] += 1
        tally[1] += status == "resolved"
        reward = finite_reward(rollout)
        if reward is not None:
            self._rewards.append(reward)
        if status == "error":
            kind, phase = error_kind(rollout)
            example = (rollout.instance_id, rollout.attempt, (rollout.error or "")[:_EXAMPLE], phase)
            self._errors.setdefault(kind[:_EXAMPLE], []).append(example)
        for key, number in usage_of(rollout.info):
            self._usage.setdefault(key, []).append(number)
        self._durations.append(rollout.duration_s)
        for name, start, end in rollout.phases:
            self._phases.setdefault(name, []).append(end - start)
        if rollout.started_at is not None:
            self._started.append(rollout.started_at)
            self._ended.append(rollout.started_at + rollout.duration_s)

    def result(self) -> dict[str, Any]:
        """The summary of what was added so far."""
        started = min(self._started, default=None)
        ended = max(self._ended, default=None)
        return {
            "rollouts": sum(self._counts.values()),
            "instances": len(self.tallies),
            "attempts": self._attempts,
            **self._counts,
            "resolved_rate": self._rate(),
            "pass_at_k": self._pass_at_k(),
            "mean_reward": _mean(self._rewards),
            "usage": {name: _total(numbers) for name, numbers in sorted(self._usage.items())},
            "errors": self._error_kinds(),
            "timing": {
                "started_at": started,
                "ended_at": ended,
                "span_s": None if started is None or ended is None else ended - started,
                "rollout": _times(self._durations),
                "phases": {name: _times(times) for name, times in sorted(self._phases.items())},
            },
        }

    def _error_kinds(self) -> dict[str, Any]:
        kinds = {}
        for name, seen in sorted(self._errors.items(), key=lambda item: (-len(item[1]), item[0])):
            instance_id, attempt, message, _ = min(seen)
            kinds[name] = {
                "count": len(seen),
                "phases": dict(sorted(Counter(phase for *_, phase in seen).items())),
                "example": {"instance_id": instance_id, "attempt": attempt, "message": message},
            }
        return kinds

    def _rate(self) -> float | None:
        counts = self._counts
        ran = sum(counts.values()) - counts["not_run"]
        if not ran or (counts["not_scored"] and not counts["resolved"] + counts["unresolved"]):
            return None
        return _mean([resolved / attempts if attempts else 0.0 for attempts, resolved in self.tallies.values()])

    def _pass_at_k(self) -> dict[str, float | None]:
        if self._attempts < 2 or self._rate() is None:
            return {}
        found = {}
        for k in range(1, self._attempts + 1):
            chances = [pass_at_k(n, c, k) for n, c in self.tallies.values() if n >= k]
            if chances:
                found[str(k)] = _mean(chances)
        return found


def _times(values: Sequence[float]) -> dict[str, Any]:
    values = [value for value in values if math.isfinite(value)]
    return {"count": len(values), "sum_s": _total(values), "mean_s": _mean(values), "max_s": max(values, default=None)}


def _mean(values: Sequence[float]) -> float | None:
    total = _total(values)
    return total / len(values) if values and total is not None else None


def _total(values: Sequence[float]) -> float | None:
    """The exact sum, rounded once, so that it is the same in any order; of whole numbers a whole number. None where it
    is more than a float holds."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    try:
        return math.fsum(sorted(values))
    except OverflowError:
        return None


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64
