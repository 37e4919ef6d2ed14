"""What the runner itself costs: `python -m tests.bench.overhead`.

Microseconds per no-op rollout (two sandboxes, three methods, all in this process) beside an asyncio gather of the
same choreography, then a thousand rollouts that each sleep a second, with peak memory. Every line is a process of its
own; what is compared is measured in turn, and the median of the rounds is shown with its ratio to the gather.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from agentix_runner import AgentResult, Rollout, SandboxConfig, run_rollouts

from . import show

ROOT = Path(__file__).parents[2]


class Box:
    def remote(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return fn(*args)


class AsyncBox:
    async def remote(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return fn(*args)


class Provider:
    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[Box]:
        yield Box()


class AsyncProvider:
    @asynccontextmanager
    async def session(self, config: SandboxConfig) -> AsyncIterator[AsyncBox]:
        yield AsyncBox()


class Plain:
    def __init__(self, n: int, sleep_s: float = 0) -> None:
        self.n, self.sleep_s = n, sleep_s

    def instances(self) -> list[dict[str, Any]]:
        return [{"instance_id": f"i{k}"} for k in range(self.n)]

    def image(self, instance: dict[str, Any]) -> str:
        return "image"

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        return True

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return AgentResult(patch="p", exit_code=0)

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        return {"resolved": True}


class Async(Plain):
    async def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:  # type: ignore[override]
        return True

    async def solve(  # type: ignore[override]
        self, sandbox: Any, instance: dict[str, Any], *, model: str | None
    ) -> AgentResult:
        if self.sleep_s:
            await asyncio.sleep(self.sleep_s)
        return AgentResult(patch="p", exit_code=0)

    async def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:  # type: ignore[override]
        return {"resolved": True}


async def gather(adapter: Async, provider: AsyncProvider, n_concurrent: int) -> list[Rollout]:
    """The bare choreography: no limits, no retry, no guarantees; a semaphore and a gather."""
    free = asyncio.Semaphore(n_concurrent)

    async def one(instance: dict[str, Any]) -> Rollout:
        async with free:
            began = time.monotonic()
            rollout = Rollout(instance["instance_id"], started_at=time.time())
            config = SandboxConfig(image=adapter.image(instance))
            async with provider.session(config) as sandbox:
                if not await adapter.setup(sandbox, instance):
                    return rollout
                result = await adapter.solve(sandbox, instance, model=None)
                rollout.patch, rollout.agent_exit = result.patch, result.exit_code
            async with provider.session(config) as sandbox:
                rollout.score = await adapter.score(sandbox, instance, rollout.patch)
            rollout.duration_s = time.monotonic() - began
            return rollout

    return await asyncio.gather(*map(one, adapter.instances()))


def measure(kind: str, n: int, n_concurrent: int, sleep_s: float) -> dict[str, float]:
    """In a process of its own: seconds and peak memory (MB) of one batch."""
    began = time.perf_counter()
    if kind == "gather":
        rollouts = asyncio.run(gather(Async(n, sleep_s), AsyncProvider(), n_concurrent))
    else:
        adapter, provider = (Plain, Provider) if kind == "plain" else (Async, AsyncProvider)
        both = adapter(n, sleep_s)
        rollouts = run_rollouts(dataset=both, agent=both, provider=provider(), n_concurrent=n_concurrent)
    seconds = time.perf_counter() - began
    assert sum(r.resolved for r in rollouts) == n
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    return {"seconds": seconds, "peak_mb": peak}


def child(kind: str, n: int, n_concurrent: int, sleep_s: float) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.overhead", "--child", kind, str(n), str(n_concurrent), str(sleep_s)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--child", nargs=4, metavar=("KIND", "N", "N_CONCURRENT", "SLEEP_S"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, n, n_concurrent, sleep_s = args.child
        print(json.dumps(measure(kind, int(n), int(n_concurrent), float(sleep_s))))
        return
    show.machine()
    kinds = {
        "gather": "asyncio gather, bare",
        "plain": "run_rollouts, plain adapters",
        "async": "run_rollouts, async adapters",
    }
    rows: list[list[object]] = []
    for n_concurrent in (8, 1000):
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind in kinds:
                runs[kind].append(child(kind, args.n, n_concurrent, 0))
        for kind, name in kinds.items():
            seconds = statistics.median(r["seconds"] for r in runs[kind])
            ratio = statistics.median(
                a["seconds"] / b["seconds"] for a, b in zip(runs[kind], runs["gather"], strict=True)
            )
            peak = max(r["peak_mb"] for r in runs[kind])
            rows.append([name, n_concurrent, round(seconds / args.n * 1e6), ratio, round(peak)])
    show.table(
        f"{args.n:,} no-op rollouts, median of {args.rounds} rounds",
        ["", "n_concurrent", "µs/rollout", "/ gather", "peak MB"],
        rows,
    )
    slept = []
    for kind, name in kinds.items():
        result = child(kind, 1000, 1000, 1)
        slept.append([name, result["seconds"], round(result["peak_mb"])])
    show.table("1,000 rollouts that sleep 1 s, n_concurrent=1000", ["", "seconds", "peak MB"], slept)


if __name__ == "__main__":
    main()
