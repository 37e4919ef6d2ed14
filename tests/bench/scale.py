"""How time and memory grow: `python -m tests.bench.scale`.

No-op rollouts, from 1 to 10,000 of them; rollouts that sleep, from 1 to 1,000 at once; what the journal costs a rollout
in a directory that holds 10 and one that holds 10,000; and how long it takes to resume from there. Every line of the
first two is a process of its own; what is compared is measured in turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentix_runner import Rollout, run_rollouts
from agentix_runner.rundir.directory import RunDir

from . import show
from .overhead import Plain, Provider, child

IDENTITY = {"bench": "scale"}


def rollout(number: int) -> Rollout:
    """One of an everyday size: a patch of 2 kB, a score with fifty tests."""
    return Rollout(
        f"project__project-{number}",
        patch=f"--- a/{number}\n+++ b/{number}\n" + "+a line of a patch\n" * 100,
        score={"resolved": number % 3 == 0, "tests": {f"test_{k}": k % 2 == 0 for k in range(50)}},
        agent_exit=0,
        duration_s=90.0,
        started_at=1.7e9 + number,
        phases=[(name, float(k), float(k + 1)) for k, name in enumerate(("session", "setup", "agent", "teardown"))],
        info={"tokens": 10_000 + number, "cost": 0.01},
    )


@contextmanager
def directory_of(n: int) -> Iterator[Path]:
    """A run directory that holds `n` rollouts already."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with RunDir(path, identity=IDENTITY) as run_dir:
            for start in range(0, n, 500):
                run_dir.record([rollout(k) for k in range(start, min(start + 500, n))])
        yield path


def record_ms(run_dir: RunDir, start: int, n: int) -> float:
    """Milliseconds to put one rollout on disk: its line, synced, its patch and its log."""
    began = time.perf_counter()
    for number in range(start, start + n):
        one = rollout(number)
        run_dir.log(one.instance_id, 0)(b"a line of a log\n")
        run_dir.record([one])
        run_dir.close_log(one.instance_id, 0)
    return (time.perf_counter() - began) / n * 1e3


def journal(rounds: int, large: int) -> None:
    sizes = (10, large)
    with directory_of(sizes[0]) as small_path, directory_of(sizes[1]) as large_path:
        with (
            RunDir(small_path, identity=IDENTITY) as small_dir,
            RunDir(large_path, identity=IDENTITY) as large_dir,
        ):
            costs: dict[int, list[float]] = {size: [] for size in sizes}
            for turn in range(rounds):
                # Few at a time, so that the small directory stays small.
                for size, run_dir in zip(sizes, (small_dir, large_dir), strict=True):
                    costs[size].append(record_ms(run_dir, size + turn * 20, 20))
    medians = {size: statistics.median(values) for size, values in costs.items()}
    show.table(
        f"What the journal costs a rollout (line, sync, patch, log), median of {rounds} rounds of 20",
        ["rollouts in the directory", "ms/rollout", f"/ {sizes[0]}"],
        [[f"{size:,}", cost, cost / medians[sizes[0]]] for size, cost in medians.items()],
    )
    with directory_of(sizes[0]) as small_path, directory_of(sizes[1]) as large_path:
        paths = dict(zip(sizes, (small_path, large_path), strict=True))
        resumes: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
        for _ in range(5):
            for size, path in paths.items():
                began = time.perf_counter()
                run_dir = RunDir(path, identity=IDENTITY)
                opened = time.perf_counter() - began
                assert len(run_dir.finished) == size
                run_dir.close()
                resumes[size].append((opened, time.perf_counter() - began))
        rows = [
            [
                f"{size:,}",
                (path / "rollouts.jsonl").stat().st_size / 1e6,
                *map(statistics.median, zip(*resumes[size], strict=True)),
            ]
            for size, path in paths.items()
        ]
    show.table(
        "Resuming from a journal, median of 5 rounds",
        ["rollouts in it", "MB", "s to open", "s to open, derive all again, and close"],
        rows,
    )


def resumed(n: int) -> float:
    """Seconds that a run takes in which nothing is left to do."""
    both = Plain(n)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            began = time.perf_counter()
            run_rollouts(dataset=both, agent=both, provider=Provider(), n_concurrent=8, run_dir=Path(folder) / "run")
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--most", type=int, default=10_000, help="the largest number of rollouts")
    args = parser.parse_args()
    show.machine()
    rows: list[list[object]] = []
    for n in (size for size in (1, 10, 100, 1_000, 10_000) if size <= args.most):
        one = child("plain", n, 8, 0)
        rows.append([f"{n:,}", one["seconds"] * 1e3, one["seconds"] / n * 1e6, one["peak_mb"]])
    show.table("No-op rollouts, n_concurrent=8", ["rollouts", "ms in all", "µs/rollout", "peak MB"], rows)
    rows = []
    for n_concurrent in (size for size in (1, 10, 100, 1_000) if size <= args.most):
        for kind in ("plain", "async"):
            one = child(kind, n_concurrent, n_concurrent, 1)
            rows.append([f"{n_concurrent:,} at once, {kind} adapters", one["seconds"], one["peak_mb"]])
    show.table("Rollouts that sleep 1 s, all at once", ["", "seconds", "peak MB"], rows)
    journal(args.rounds, args.most)
    show.table("A run with nothing left to do", ["rollouts", "seconds"], [[f"{args.most:,}", resumed(args.most)]])


if __name__ == "__main__":
    main()
