"""How sure a rate is, and whether two runs differ by more than chance. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..rundir.summary import pass_at_k

Z95 = 1.959963984540054
"""The normal distribution's quantile for an interval that holds 95 %."""


Tallies = Mapping[str, Sequence[int]]
"""How often each instance was tried and resolved: what rates, intervals and comparisons are made of."""


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


def rate_interval(tallies: Tallies) -> list[float]:
    """[rate, low, high] of resolved, over instances."""
    return _interval(tallies, 1)


def pass_at_k_intervals(tallies: Tallies, most: int) -> list[list[float]]:
    """[k, pass@k, low, high, instances] for each k up to `most` attempts, over the instances with at least k attempts;
    empty for single attempts."""
    counts = {k: sum(attempts >= k for attempts, _ in tallies.values()) for k in range(1, most + 1)}
    return [[k, *_interval(tallies, k), count] for k, count in counts.items() if count and most > 1]


def _interval(tallies: Tallies, k: int) -> list[float]:
    some = [(attempts, resolved) for attempts, resolved in tallies.values() if attempts >= k]
    chances = [pass_at_k(attempts, resolved, k) for attempts, resolved in some]
    return list(mean_interval(chances, sum(attempts for attempts, _ in some)))


def sign_test(up: int, down: int) -> float:
    """How likely a split at least as uneven as `up` to `down` is by chance: the exact two-sided sign test. For single
    attempts it is McNemar's exact test."""
    n = up + down
    tail = sum(math.comb(n, i) for i in range(min(up, down) + 1))
    return min(1.0, 2 * tail / (1 << n))


def compare(runs: Sequence[Tallies]) -> dict[str, Any]:
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
