"""What goes wrong in and around containers: after each of these nothing is left, and the next sandbox works."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import docker
import docker.errors
import pytest

from agentix_runner import AgentResult, DockerProvider, SandboxConfig, Timeouts, run_rollouts
from agentix_runner.errors import SandboxDied, SandboxError
from agentix_runner.providers.sandbox import RemoteSandbox

from ...conftest import eventually
from ...support import docker_functions as there
from ...support import wire_functions as wire
from ...support.background import in_background
from ...support.docker_tools import containers_of
from ...support.fakes import PlainAgent, PlainDataset, Solver

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[3]
GONE_S = 10.0


@pytest.fixture
def config(busybox: str, suite_bundle: str) -> SandboxConfig:
    return SandboxConfig(image=busybox, bundle=suite_bundle, labels={"instance_id": "i-1", "phase": "agent"})


@pytest.fixture
def sandbox(config: SandboxConfig) -> Iterator[RemoteSandbox]:
    """A sandbox for the test to break. After it, the same provider's next one works."""
    provider = DockerProvider(max_log=1_000_000, max_result=300_000_000)
    with provider.session(config) as sandbox:
        yield sandbox
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42


def container(engine: docker.DockerClient) -> str:
    """The id of this process's one container."""
    [found] = containers_of(engine)
    return str(found["Id"])


def attach(engine: docker.DockerClient, params: dict[str, int]) -> socket.socket:
    """Another connection to this process's one container."""
    attached = engine.api.attach_socket(container(engine), params=params)
    connection = socket.socket(fileno=os.dup(attached.fileno()))
    attached._sock.close()
    attached.close()
    return connection


# --- the end of a sandbox during a call ---


def test_a_killed_container_is_told(engine: docker.DockerClient, sandbox: RemoteSandbox) -> None:
    """`docker kill` during a call is SandboxDied with the signal, for everyone who waits."""
    calls = [in_background(sandbox.remote, there.sleep, 300) for _ in range(3)]
    engine.api.kill(container(engine))
    for call in calls:
        error = call.exception(GONE_S)
        assert isinstance(error, SandboxDied)
        assert "was killed by signal 9 while tests.support.docker_functions.sleep ran" in str(error)
        assert (error.exit_code, error.oom) == (-9, False)


def test_a_removed_container_is_told(engine: docker.DockerClient, sandbox: RemoteSandbox) -> None:
    """`docker rm -f` during a call ends the call, and the session's own removal finds nothing to complain of."""
    call = in_background(sandbox.remote, there.sleep, 300)
    engine.api.remove_container(container(engine), force=True)
    assert isinstance(call.exception(GONE_S), SandboxDied)


def test_a_paused_container_is_removed_all_the_same(engine: docker.DockerClient, sandbox: RemoteSandbox) -> None:
    """A sandbox that somebody froze can be killed and removed."""
    call = in_background(sandbox.remote, there.sleep, 300)
    engine.api.pause(container(engine))
    sandbox.kill()
    assert isinstance(call.exception(GONE_S), SandboxDied)


def test_memory_that_runs_out_is_told(config: SandboxConfig) -> None:
    """The error says that memory ran out, also as an attribute."""
    with DockerProvider(memory="48m").session(config) as sandbox:
        with pytest.raises(SandboxDied, match="ran out of memory") as caught:
            sandbox.remote(there.eat, 500)
    assert caught.value.oom is True


def test_a_child_that_runs_out_of_memory_leaves_the_sandbox_alive(
    config: SandboxConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the child is killed; the log tells why, and the end of the sandbox is none for lack of memory."""
    with DockerProvider(memory="64m").session(config) as sandbox:
        with caplog.at_level(logging.WARNING, "agentix_runner"):
            assert sandbox.remote(there.eat_in_child, 500) == -signal.SIGKILL
            assert sandbox.remote(there.double, 21) == 42
            eventually(lambda: "memory ran out in sandbox agentix-i-1-agent-" in caplog.text)
        with pytest.raises(SandboxDied) as caught:
            sandbox.remote(wire.exit_hard, 3)
    assert (caught.value.exit_code, caught.value.oom) == (3, False)


def test_the_worker_may_kill_its_guard_and_nothing_else(sandbox: RemoteSandbox) -> None:
    """A sandbox that asks its guard to end is at its end."""
    with pytest.raises(SandboxDied):
        sandbox.remote(there.terminate_guard)


# --- what runs there is an enemy ---


def test_no_process_there_can_reach_the_frames_or_the_guard(sandbox: RemoteSandbox) -> None:
    """Another process of the sandbox, root as the worker is, gets at neither's descriptors nor memory, and its signals
    to the guard change nothing."""
    said = sandbox.remote(there.break_in)
    reached = {name for name, text in said.items() if text == "done"}
    assert reached == {"kill 1", "stop 1", "interrupt 1", "hang up 1"}
    assert len(said) == 16
    assert sandbox.remote(there.double, 21) == 42


def test_much_output_is_drained_and_cut(config: SandboxConfig) -> None:
    """A gigabyte of output neither stops the function nor is kept."""
    seen = 0

    def on_log(data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    with DockerProvider(max_log=1_000_000).session(
        SandboxConfig(image=config.image, bundle=config.bundle, on_log=on_log)
    ) as sandbox:
        assert sandbox.remote(there.print_much, 1 << 30) == 1 << 30
        assert sandbox.remote(there.double, 1) == 2
    assert 1_000_000 <= seen < 1_001_000


def test_children_that_outlive_their_call_end_with_the_sandbox(sandbox: RemoteSandbox) -> None:
    """Processes in sessions of their own don't keep the container."""
    assert sandbox.remote(there.leave_children, 50) == 50


def test_closed_descriptors_are_survived(sandbox: RemoteSandbox) -> None:
    """A function that closes 0, 1 and 2 returns, and so do those after it."""
    assert sandbox.remote(there.close_all) == "closed"
    assert sandbox.remote(there.double, 21) == 42


def test_a_full_disk_is_the_functions_own_error(config: SandboxConfig) -> None:
    """Where nothing more can be written the sandbox still answers."""
    provider = DockerProvider(read_only=True, options={"tmpfs": {"/tmp": "size=8m"}})
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.fill, "/tmp/file") == "No space left on device"
        assert sandbox.remote(there.double, 21) == 42


def test_a_large_result_arrives(sandbox: RemoteSandbox) -> None:
    """200 MB come whole."""
    assert len(sandbox.remote(there.zeros, 200_000_000)) == 200_000_000


def test_a_kill_during_a_large_result_wakes_everyone(engine: docker.DockerClient, sandbox: RemoteSandbox) -> None:
    """The container's end in the middle of a long answer is SandboxDied."""
    call = in_background(sandbox.remote, there.zeros, 250_000_000)
    time.sleep(0.05)
    engine.api.kill(container(engine))
    error = call.exception(GONE_S)
    assert error is None or isinstance(error, SandboxDied)


# --- others at the engine ---


def test_a_second_client_that_only_listens_changes_nothing(engine: docker.DockerClient, sandbox: RemoteSandbox) -> None:
    """Somebody attaches to the output, reads, and leaves."""
    other = attach(engine, {"stdout": 1, "stderr": 1, "stream": 1})
    assert sandbox.remote(there.double, 21) == 42
    assert other.recv(1) == b"\x01"
    other.shutdown(socket.SHUT_RDWR)
    other.close()
    assert [sandbox.remote(there.double, number) for number in range(100)] == [2 * number for number in range(100)]


def test_a_second_client_that_takes_stdin_and_leaves_ends_the_sandbox(
    engine: docker.DockerClient, sandbox: RemoteSandbox
) -> None:
    """The engine closes stdin then. Whoever waits is told, at once."""
    call = in_background(sandbox.remote, there.sleep, 300)
    other = attach(engine, {"stdin": 1, "stream": 1})
    other.shutdown(socket.SHUT_RDWR)
    other.close()
    assert isinstance(call.exception(GONE_S), SandboxDied)


@pytest.mark.slow
def test_output_that_nobody_here_reads_does_not_hold_up_the_end(
    engine: docker.DockerClient, config: SandboxConfig
) -> None:
    """Where whoever takes the log hangs, the sandbox still ends, and its container is removed."""
    taken, release = threading.Event(), threading.Event()

    def on_log(data: bytes) -> None:
        taken.set()
        release.wait(60)

    settings = attrs.evolve(config, on_log=on_log)
    with DockerProvider().session(settings) as sandbox:
        call = in_background(sandbox.remote, there.print_much, 1 << 28)
        assert taken.wait(60)
    assert containers_of(engine) == []
    release.set()
    assert isinstance(call.exception(GONE_S), SandboxDied)


@pytest.mark.slow
def test_a_second_client_that_reads_nothing_costs_its_sandbox_alone(
    engine: docker.DockerClient, config: SandboxConfig
) -> None:
    """The engine waits for whoever has attached and does not read: the sandbox's end is in bounded time all the same,
    the next one works, and the container goes when that client does."""
    provider = DockerProvider()
    with contextlib.suppress(SandboxError), provider.session(config) as sandbox:
        other = attach(engine, {"stdout": 1, "stderr": 1, "stream": 1})
        call = in_background(sandbox.remote, there.print_much, 1 << 26)
        with pytest.raises(TimeoutError):
            call.result(3)
    assert isinstance(call.exception(GONE_S), SandboxDied)
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
    other.close()
    eventually(lambda: containers_of(engine) == [])


def test_a_function_that_never_answers_costs_its_rollouts_limit(
    engine: docker.DockerClient, busybox: str, suite_bundle: str
) -> None:
    """The phase's limit ends it, and the next rollout works."""

    class Data(PlainDataset):
        def image(self, instance: dict[str, Any]) -> str:
            return busybox

    def solve(sandbox: Any, instance: dict[str, Any]) -> AgentResult:
        sandbox.remote(there.sleep, 300 if instance["instance_id"] == "i0" else 0)
        return AgentResult(patch="patch")

    first, second = run_rollouts(
        dataset=Data(2),
        agent=Solver(solve),  # type: ignore[arg-type]
        provider=DockerProvider(),
        bundle=suite_bundle,
        timeouts=Timeouts(agent=2),
    )
    assert first.error == "PhaseTimeout: agent ran past its limit of 2 s"
    assert (second.error, second.resolved) == (None, True)
    assert containers_of(engine) == []


# --- sessions that are cut short ---


def test_a_session_that_is_cancelled_while_it_is_made_leaves_nothing(
    engine: docker.DockerClient, busybox: str, suite_bundle: str
) -> None:
    """A limit on making a sandbox that is too short ends as that rollout's timeout, whenever it strikes."""

    class Data(PlainDataset):
        def image(self, instance: dict[str, Any]) -> str:
            return busybox

    provider = DockerProvider()
    for limit in (0.01, 0.05, 0.1, 0.2):
        [rollout] = run_rollouts(
            dataset=Data(), agent=PlainAgent(), provider=provider, bundle=suite_bundle, timeouts=Timeouts(session=limit)
        )
        assert rollout.resolved or (rollout.error or "").startswith("PhaseTimeout: session ran past"), rollout
        assert containers_of(engine) == []


def test_a_stop_in_the_middle_leaves_nothing(engine: docker.DockerClient, busybox: str, suite_bundle: str) -> None:
    """`stop` ends what runs, in whatever state its sandboxes are."""

    class Data(PlainDataset):
        def image(self, instance: dict[str, Any]) -> str:
            return busybox

    agent = Solver(lambda sandbox, instance: sandbox.remote(there.sleep, 300))
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            run_rollouts,
            dataset=Data(6),
            agent=agent,  # type: ignore[arg-type]
            provider=DockerProvider(),
            bundle=suite_bundle,
            n_concurrent=3,
            stop=stop,
        )
        eventually(lambda: len(containers_of(engine)) >= 2, 60)
        stop.set()
        rollouts = run.result(60)
    assert {rollout.ran for rollout in rollouts} == {False}
    assert containers_of(engine) == []


HOST = """
import os, sys, threading
from agentix_runner import DockerProvider, SandboxConfig, run_rollouts
from tests.support import docker_functions as there, wire_functions as wire
from tests.support.background import in_background
from tests.support.fakes import PlainDataset, Solver

image, bundle, how, shared = sys.argv[1:]

class Data(PlainDataset):
    def image(self, instance):
        return image

def solve(sandbox, instance):
    calls = [in_background(sandbox.remote, there.sleep, 300)]
    if how == "stopped":
        calls.append(in_background(sandbox.remote, wire.stop_me, "/shared/" + instance["instance_id"]))
    elif how == "locked":
        calls.append(in_background(sandbox.remote, wire.hold_the_lock, "/shared/" + instance["instance_id"]))
    elif how == "printing":
        calls.append(in_background(sandbox.remote, there.print_much, 1 << 40))
    elif how == "forked":
        calls.append(in_background(sandbox.remote, there.leave_children, 20))
        if os.fork() == 0:
            # A fork that goes on holds nothing of the sandbox.
            import time
            time.sleep(20)
            os._exit(0)
    os.write(1, b"ready\\n")  # at once: print() writes the end of a line by itself, and there are two threads
    return calls[0].result()

if __name__ == "__main__":
    provider = DockerProvider(mounts=[f"{shared}:/shared"])
    run_rollouts(dataset=Data(2), agent=Solver(solve), provider=provider, bundle=bundle, n_concurrent=2)
"""


def start_host(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    script = tmp_path / "host.py"
    script.write_text(textwrap.dedent(HOST))
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    return subprocess.Popen(
        [sys.executable, str(script), *args, str(shared)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def end_host(host: subprocess.Popen[str]) -> int:
    """Make sure that it and its forks are gone; its exit code."""
    try:
        return host.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(host.pid, signal.SIGKILL)
        host.wait(30)
        assert host.stdout is not None
        host.stdout.close()


@pytest.mark.parametrize("how", ["sleeping", "stopped", "locked", "printing", "forked"])
def test_a_killed_host_leaves_no_container(
    engine: docker.DockerClient, busybox: str, suite_bundle: str, tmp_path: Path, how: str
) -> None:
    """kill -9 of the host ends its sandboxes, whatever their worker does and whoever it has forked."""
    host = start_host(tmp_path, busybox, suite_bundle, how)
    try:
        assert host.stdout is not None
        assert [host.stdout.readline(), host.stdout.readline()] == ["ready\n", "ready\n"]
        if how in ("stopped", "locked"):
            eventually(lambda: len(os.listdir(tmp_path / "shared")) == 2)
        assert len(containers_of(engine, host.pid)) == 2
        os.kill(host.pid, signal.SIGKILL)
        eventually(lambda: containers_of(engine, host.pid) == [], GONE_S)
    finally:
        end_host(host)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_host_that_is_told_to_end_leaves_nothing(
    engine: docker.DockerClient, busybox: str, suite_bundle: str, tmp_path: Path, number: int
) -> None:
    """Ctrl-C, SIGTERM and SIGHUP remove every container before the process ends by that signal."""
    host = start_host(tmp_path, busybox, suite_bundle, "sleeping")
    try:
        assert host.stdout is not None
        assert [host.stdout.readline(), host.stdout.readline()] == ["ready\n", "ready\n"]
        os.kill(host.pid, number)
        host.wait(60)
        assert containers_of(engine, host.pid) == []
    finally:
        code = end_host(host)
    assert code == -number or (number == signal.SIGINT and code in (1, 130))
