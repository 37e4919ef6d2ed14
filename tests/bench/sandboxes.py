"""What a sandbox in a container costs: `python -m tests.bench.sandboxes`.

On one image, measured in turn: the docker provider; bare docker-py with one thread for each at once; and the docker
command. First one sandbox (made, started, first call, removed), then a call, then no-op rollouts of two sandboxes each
beside as many bare lifecycles (create, start, remove). What is compared is run in rounds, one after the other, and the
median of the rounds' ratios is shown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker

from agentix_runner import AgentResult, DockerProvider, SandboxConfig, run_rollouts

from ..support import images
from ..support.engine import engine_problem
from . import show

UNAVAILABLE = 3
SLEEP = ["sleep", "3600"]


class NoOp:
    """Rollouts that use both of their sandboxes once, and do nothing there."""

    def __init__(self, image: str, n: int) -> None:
        self.name, self.n = image, n

    def instances(self) -> list[dict[str, Any]]:
        return [{"instance_id": f"i{k}"} for k in range(self.n)]

    def image(self, instance: dict[str, Any]) -> str:
        return self.name

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        return bool(sandbox.remote(int, 1))

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        return AgentResult(patch="p", exit_code=0)

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        return {"resolved": bool(sandbox.remote(int, 1))}


class Timer:
    """Milliseconds by name."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.found.setdefault(name, []).append((now - self._at) * 1e3)
        self._at = now

    def start(self) -> None:
        self._at = time.perf_counter()


def ours(provider: DockerProvider, image: str, calls: int, timer: Timer) -> None:
    timer.start()
    with provider.session(SandboxConfig(image=image)) as sandbox:
        sandbox.remote(int, 1)
        timer.lap("ready")
        for _ in range(calls):
            timer.start()
            sandbox.remote(int, 1)
            timer.lap("call")
        timer.start()
    timer.lap("removed")


def create(client: docker.DockerClient, image: str) -> str:
    config = client.api.create_host_config(network_mode="none", log_config={"type": "none"})
    made = client.api.create_container(image, SLEEP, host_config=config)["Id"]
    client.api.start(made)
    return str(made)


def bare(client: docker.DockerClient, image: str, calls: int, timer: Timer) -> None:
    def call() -> None:
        running = client.api.exec_create(name, ["true"])
        client.api.exec_start(running)

    timer.start()
    name = create(client, image)
    call()
    timer.lap("ready")
    for _ in range(min(calls, 10)):
        timer.start()
        call()
        timer.lap("call")
    timer.start()
    client.api.remove_container(name, force=True, v=True)
    timer.lap("removed")


def command(image: str, calls: int, timer: Timer) -> None:
    def docker_(*args: str) -> str:
        return subprocess.run(["docker", *args], check=True, capture_output=True, text=True).stdout.strip()

    timer.start()
    name = docker_("run", "-d", "--network", "none", "--log-driver", "none", image, *SLEEP)
    docker_("exec", name, "true")
    timer.lap("ready")
    for _ in range(min(calls, 10)):
        timer.start()
        docker_("exec", name, "true")
        timer.lap("call")
    timer.start()
    docker_("rm", "-f", name)
    timer.lap("removed")


def rollouts(provider: DockerProvider, image: str, n: int, at_once: int) -> float:
    both = NoOp(image, n)
    began = time.perf_counter()
    done = run_rollouts(dataset=both, agent=both, provider=provider, n_concurrent=at_once)
    seconds = time.perf_counter() - began
    assert sum(rollout.resolved for rollout in done) == n, [rollout.error for rollout in done]
    return seconds


def lifecycles(client: docker.DockerClient, image: str, n: int, at_once: int) -> float:
    def two(_: int) -> None:
        for _ in range(2):
            client.api.remove_container(create(client, image), force=True, v=True)

    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(two, range(n)))
    return time.perf_counter() - began


def commands(image: str, n: int, at_once: int) -> float:
    def two(_: int) -> None:
        for _ in range(2):
            run = ["docker", "run", "-d", "--network", "none", "--log-driver", "none", image, *SLEEP]
            name = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
            subprocess.run(["docker", "rm", "-f", name], check=True, capture_output=True)

    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(two, range(n)))
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=32, help="rollouts of a round")
    parser.add_argument("--image", help="default: a static busybox, made here")
    args = parser.parse_args()
    problem = engine_problem()
    if problem:
        print(problem, file=sys.stderr)
        return UNAVAILABLE
    client = docker.from_env(timeout=120, max_pool_size=64)
    try:
        image = args.image or images.ensure(client, images.BUSYBOX)
    except images.CannotMake as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    show.machine("docker")
    provider = DockerProvider()
    with_command = shutil.which("docker") is not None
    kinds: dict[str, Callable[[int, Timer], None]] = {
        "DockerProvider": lambda calls, timer: ours(provider, image, calls, timer),
        "bare docker-py": lambda calls, timer: bare(client, image, calls, timer),
    }
    if with_command:
        kinds["docker run, exec, rm -f"] = lambda calls, timer: command(image, calls, timer)
    for run in kinds.values():
        run(1, Timer())
    one_sandbox(kinds, args.rounds)
    many(provider, client, image, args.n, args.rounds, with_command)
    client.close()
    return 0


def one_sandbox(kinds: dict[str, Callable[[int, Timer], None]], rounds: int) -> None:
    timers = {kind: Timer() for kind in kinds}
    for _ in range(rounds):
        for kind, run in kinds.items():
            run(100, timers[kind])
    middle = {kind: {name: statistics.median(v) for name, v in t.found.items()} for kind, t in timers.items()}
    calls = middle["DockerProvider"]["call"]
    show.table(
        f"One sandbox, ms, median of {rounds}",
        ("", "created, started, first call", "removed", "a call, p50", "its ratio"),
        [(k, m["ready"], m["removed"], f"{m['call']:.3f}", m["call"] / calls) for k, m in middle.items()],
    )


def many(
    provider: DockerProvider, client: docker.DockerClient, image: str, n: int, rounds: int, with_command: bool
) -> None:
    kinds: dict[str, Callable[[int], float]] = {
        "DockerProvider, no-op rollouts": lambda at_once: rollouts(provider, image, n, at_once),
        "bare docker-py, two lifecycles": lambda at_once: lifecycles(client, image, n, at_once),
    }
    if with_command:
        kinds["docker run, rm -f, twice"] = lambda at_once: commands(image, n, at_once)
    rows: list[tuple[object, ...]] = []
    for at_once in (1, 8):
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, run in kinds.items():
                seconds[kind].append(run(at_once))
        base = seconds["bare docker-py, two lifecycles"]
        for kind, found in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
            middle = statistics.median(found)
            rows.append((kind, at_once, middle / n * 1e3, n / middle * 60, f"{ratio:.2f}", f"{1 / ratio:.2f}"))
    show.table(
        f"{n} rollouts of two sandboxes, median of {rounds} rounds",
        ("", "at once", "ms a rollout", "rollouts a minute", "time / bare", "throughput / bare"),
        rows,
    )


if __name__ == "__main__":
    sys.exit(main())
