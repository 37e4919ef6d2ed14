"""What the runner adds to Dask, and to a process pool: `python -m tests.bench.dask`.

No-op rollouts (two sandboxes, three methods) on two worker processes of two threads, beside the same choreography
handed to the same executor bare: no limits, no stop, no retry, no log. Measured in turn; the median of the rounds is
shown, with its ratio to the bare one. Then rollouts that take 50 ms, where what is added should not show.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from typing import Any

from agentix_runner import Rollout, SandboxConfig, run_rollouts

from . import show
from .overhead import Plain, Provider

WORKERS, THREADS = 2, 2


def one(both: Plain, provider: Provider, instance: dict[str, Any]) -> Rollout:
    """The bare choreography of one rollout."""
    began = time.monotonic()
    rollout = Rollout(instance["instance_id"], started_at=time.time())
    config = SandboxConfig(image=both.image(instance))
    with provider.session(config) as sandbox:
        if not both.setup(sandbox, instance):
            return rollout
        result = both.solve(sandbox, instance, model=None)
        rollout.patch, rollout.agent_exit = result.patch, result.exit_code
    with provider.session(config) as sandbox:
        rollout.score = both.score(sandbox, instance, rollout.patch)
    rollout.duration_s = time.monotonic() - began
    return rollout


def bare(executor: Executor, n: int, sleep_s: float) -> list[Rollout]:
    both, provider = Plain(n, sleep_s), Provider()
    futures = {executor.submit(one, both, provider, instance) for instance in both.instances()}
    rollouts = []
    for future in as_completed(futures):
        futures.discard(future)
        rollouts.append(future.result())
    return rollouts


def ours(executor: Executor, n: int, sleep_s: float) -> list[Rollout]:
    both = Plain(n, sleep_s)
    # More than there are threads, so that workers always have the next one at hand, as in the bare run.
    return run_rollouts(dataset=both, agent=both, provider=Provider(), executor=executor, n_concurrent=100)


def compare(name: str, executor: Executor, n: int, sleep_s: float, rounds: int) -> list[list[object]]:
    ways: dict[str, Callable[[Executor, int, float], list[Rollout]]] = {"bare": bare, "run_rollouts": ours}
    runs: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways.values():
        way(executor, 20, 0)  # imports and connections
    for _ in range(rounds):
        for label, way in ways.items():
            began = time.perf_counter()
            rollouts = way(executor, n, sleep_s)
            runs[label].append(time.perf_counter() - began)
            assert sum(r.resolved for r in rollouts) == n
    return [
        [
            f"{name}, {label}",
            statistics.median(seconds) / n * 1e3,
            statistics.median(a / b for a, b in zip(seconds, runs["bare"], strict=True)),
        ]
        for label, seconds in runs.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=1000)
    args = parser.parse_args()
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        print("it needs the extra [dask]", file=sys.stderr)
        return 3
    show.machine("distributed")
    columns = ["", "ms/rollout", "/ bare"]
    with LocalCluster(
        n_workers=WORKERS, threads_per_worker=THREADS, dashboard_address="127.0.0.1:0", silence_logs=logging.ERROR
    ) as cluster:
        with Client(cluster) as client:
            executor = client.get_executor(pure=False)
            rows = compare("Dask", executor, args.n, 0, args.rounds)
            slow = compare("Dask", executor, args.n // 2, 0.05, max(args.rounds // 2, 1))
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows += compare("ProcessPoolExecutor", pool, args.n, 0, args.rounds)
    show.table(
        f"{args.n:,} no-op rollouts on {WORKERS} worker processes, median of {args.rounds} rounds", columns, rows
    )
    ideal = 50 / (WORKERS * THREADS)
    show.table(
        f"{args.n // 2:,} rollouts of 50 ms on {WORKERS} workers of {THREADS} threads (at best {ideal:g} ms/rollout)",
        columns,
        slow,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
