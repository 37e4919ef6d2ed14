"""How sure a rate is, and whether two runs differ by more than chance. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..records import Rollout
from ..rundir.summary import pass_at_k

Z95 = 1.959963984540054
"""The normal distribution's quantile for an interval that holds 95 %."""


def wilson(rate: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a rate seen in `n` trials; (0, 1) where there are none.

    Wilson, "Probable inference, the law of succession, and statistical inference", 1927. It stays between 0 and 1, and
    says something at rates of 0 and 1 too.
    """
    if n <= 0:
        return 0.0, 1.0
    spread = z * z / n
    middle = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(max(rate * (1 - rate) / n + spread / (4 * n), 0.0))
    return max(0.0, min(middle - half, rate)), min(1.0, max(middle + half, rate))


def mean_interval(values: Sequence[float], trials: int) -> tuple[float, float, float]:
    """The mean of `values`, each between 0 and 1 and of one instance, and its interval: (mean, low, high).

    Wilson's interval with the effective number of trials: n mean (1 - mean) / variance, n instances with that variance
    between them. Attempts at one instance are alike, and count for less than as many instances. It is held between
    the number of instances and `trials`, the number of all attempts.
    """
    if not values:
        return 0.0, 0.0, 1.0
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    effective = n * mean * (1 - mean) / variance if variance > 0 else math.inf if 0 < mean < 1 else n
    low, high = wilson(mean, min(max(effective, n), max(trials, n)))
    return mean, low, high


class Tallies:
    """How often each instance was tried and resolved: what rates, intervals and comparisons are made of."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}
        self.scored = False
        self.attempts = 0

    def add(self, rollout: Rollout) -> None:
        tally = self.of.setdefault(rollout.instance_id, [0, 0])
        tally[0] += 1
        tally[1] += rollout.resolved
        self.attempts = max(self.attempts, rollout.attempt + 1)
        self.scored = self.scored or rollout.status in ("resolved", "unresolved")

    def rate(self) -> list[float] | None:
        """[rate, low, high] of resolved, over instances; None where nothing was scored."""
        if not self.scored:
            return None
        return self._interval(1)

    def pass_at_k(self) -> list[list[float]]:
        """[k, pass@k, low, high, instances] for each k, over the instances with at least k attempts; empty for single
        attempts."""
        if not self.scored or self.attempts < 2:
            return []
        ks = range(1, self.attempts + 1)
        counts = {k: sum(n >= k for n, _ in self.of.values()) for k in ks}
        return [[k, *self._interval(k), counts[k]] for k in ks if counts[k]]

    def _interval(self, k: int) -> list[float]:
        some = [(n, c) for n, c in self.of.values() if n >= k]
        return list(mean_interval([pass_at_k(n, c, k) for n, c in some], sum(n for n, _ in some)))


def sign_test(up: int, down: int) -> float:
    """How likely a split at least as uneven as `up` to `down` is by chance: the exact two-sided sign test. For single
    attempts it is McNemar's exact test."""
    n = up + down
    tail = sum(math.comb(n, i) for i in range(min(up, down) + 1))
    return min(1.0, 2 * tail / (1 << n))


def compare(runs: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Any]:
    """Several runs by instance, each held against the first: what changed from resolved to not and back.

    `runs` maps instances to (attempts, resolved ones). An instance is "gained" where a larger share of its attempts
    resolved than in the first run, "lost" where a smaller one did, "same", or "only" where one of the two lacks it.

    Returns {"instances": [[id, [[attempts, resolved] or None for each run], [kind for each run but the first]]],
    "against": [{"gained", "lost", "same", "only", "p"} for each run but the first]}.
    """
    ids: dict[str, None] = {}
    for run in runs:
        ids.update(dict.fromkeys(run))
    against = [dict.fromkeys(("gained", "lost", "same", "only"), 0) for _ in runs[1:]]
    instances = []
    for instance_id in ids:
        tallies = [run.get(instance_id) for run in runs]
        kinds = [_kind(tallies[0], other) for other in tallies[1:]]
        for counts, kind in zip(against, kinds, strict=True):
            counts[kind] += 1
        instances.append([instance_id, [None if t is None else list(t) for t in tallies], kinds])
    tested: Iterable[dict[str, Any]] = ({**c, "p": sign_test(c["gained"], c["lost"])} for c in against)
    return {"instances": instances, "against": list(tested)}


def _kind(before: Sequence[int] | None, after: Sequence[int] | None) -> str:
    if before is None or after is None:
        return "only"
    (n, c), (m, d) = before, after
    difference = d * n - c * m  # of the shares, without rounding
    return "gained" if difference > 0 else "lost" if difference < 0 else "same"
