"""Limits, and code that does not keep to them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import AgentResult, Rollout, SandboxConfig, Timeouts, run_rollouts
from tests.conftest import eventually
from tests.support.fakes import (
    AsyncDataset,
    AsyncProvider,
    AsyncSandbox,
    Ledger,
    PlainAgent,
    PlainDataset,
    Solver,
    SyncProvider,
    SyncSandbox,
)

ROOT = Path(__file__).parents[2]


def run(agent: Any = None, dataset: Any = None, provider: Any = None, **kwargs: Any) -> list[Rollout]:
    return run_rollouts(
        dataset=dataset or PlainDataset(),
        agent=agent or PlainAgent(),
        provider=provider or SyncProvider(),
        **kwargs,
    )


def assert_ran_out(rollout: Rollout, phase: str) -> None:
    assert rollout.failure is not None, rollout
    assert (rollout.failure.type, rollout.failure.phase) == ("PhaseTimeout", phase)
    assert rollout.error is not None
    assert "ran past its limit" in rollout.error


@pytest.mark.usefixtures("no_threads_left")
def test_at_the_agents_limit_the_sandbox_is_killed_which_wakes_what_waits_in_it() -> None:
    """A plain solve that is blocked in a call comes back at once, and the rollout says which phase ran out."""
    ledger = Ledger()
    agent = Solver(lambda sandbox, instance: sandbox.wait())
    [rollout] = run(agent, provider=SyncProvider(ledger), timeouts=Timeouts(agent=0.1))
    assert_ran_out(rollout, "agent")
    assert rollout.error == "PhaseTimeout: agent ran past its limit of 0.1 s"
    assert "the sandbox is gone" in rollout.failure.traceback  # type: ignore[union-attr]
    assert ledger.open == 0


@pytest.mark.parametrize("phase", ["setup", "score"])
def test_setup_and_score_have_limits_of_their_own(phase: str) -> None:
    """The limit of each phase is its own, and a patch that is there is kept."""
    dataset = PlainDataset()
    setattr(dataset, phase, lambda sandbox, instance, patch=None: sandbox.wait())
    [rollout] = run(dataset=dataset, timeouts=Timeouts(**{phase: 0.1}))
    assert_ran_out(rollout, phase)
    assert rollout.patch == ("PATCH OF I0" if phase == "score" else "")


@pytest.mark.usefixtures("no_threads_left")
def test_an_async_method_is_cancelled_where_the_sandbox_has_no_kill() -> None:
    """A foreign async sandbox without kill() is cancelled: its task gets CancelledError, its session ends."""
    ledger = Ledger()

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ledger.note("cancelled")
            raise
        return AgentResult()

    [rollout] = run(Solver(solve), AsyncDataset(), AsyncProvider(ledger), timeouts=Timeouts(agent=0.1))
    assert_ran_out(rollout, "agent")
    assert ledger.events == [("open", "image-i0"), "cancelled", ("close", "image-i0")]


def test_an_async_kill_is_awaited() -> None:
    """kill() may be a coroutine function: it runs on the rollout's loop."""
    ledger = Ledger()

    class Sandbox(AsyncSandbox):
        async def kill(self) -> None:
            await asyncio.sleep(0)
            ledger.note("killed")

    class Provider:
        @asynccontextmanager
        async def session(self, config: SandboxConfig) -> AsyncIterator[Sandbox]:
            yield Sandbox(config)

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        await asyncio.sleep(30)
        return AgentResult()

    [rollout] = run(Solver(solve), AsyncDataset(), Provider(), timeouts=Timeouts(agent=0.1))
    assert_ran_out(rollout, "agent")
    assert ledger.events == ["killed"]


def test_a_plain_method_under_an_async_provider_is_woken_at_its_limit() -> None:
    """remote() in the plain method's thread ends with SandboxDied when the limit is reached."""
    ended = threading.Event()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        try:
            sandbox.remote(asyncio.sleep, 30)
        finally:
            ended.set()
        return AgentResult()

    [rollout] = run(Solver(solve), provider=AsyncProvider(), timeouts=Timeouts(agent=0.1))
    assert_ran_out(rollout, "agent")
    assert ended.wait(10)


def test_the_total_limit_is_named_as_such() -> None:
    """A rollout whose phases are each within their limits can still run past the total."""
    agent = Solver(lambda sandbox, instance: sandbox.wait())
    [rollout] = run(agent, timeouts=Timeouts(total=0.15))
    assert rollout.error == "PhaseTimeout: total ran past its limit of 0.15 s"
    assert rollout.failure is not None
    assert rollout.failure.phase == "agent"


def test_a_later_phase_with_a_shorter_limit_is_not_overslept() -> None:
    """The supervisor sleeps through the long setup limit, but wakes for the agent's short one."""
    agent = Solver(lambda sandbox, instance: sandbox.wait())
    began = time.monotonic()
    [rollout] = run(agent, timeouts=Timeouts(session=60, setup=60, agent=0.2, score=60))
    assert_ran_out(rollout, "agent")
    assert time.monotonic() - began < 20


def test_a_patch_returned_just_too_late_is_kept_but_not_scored() -> None:
    """An agent that answers the end of its sandbox with what it has so far: the patch is kept, the error stands."""

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        sandbox.gone.wait(30)
        return AgentResult(patch="so far", exit_code=9)

    [rollout] = run(Solver(solve), timeouts=Timeouts(agent=0.1))
    assert_ran_out(rollout, "agent")
    assert (rollout.patch, rollout.agent_exit, rollout.score) == ("so far", 9, None)


@pytest.mark.usefixtures("short_grace")
def test_code_that_never_returns_is_abandoned_and_the_slot_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The rollout is a timeout, its sandbox is closed, the next instance runs, and a warning tells of the thread."""
    ledger, gate = Ledger(), threading.Event()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i0":
            gate.wait(60)  # code of the host's own that no kill of a sandbox wakes
            ledger.note("came back")
        return AgentResult(patch="p")

    try:
        rollouts = run(Solver(solve), PlainDataset(3), SyncProvider(ledger), timeouts=Timeouts(agent=0.1))
        assert [r.status for r in rollouts] == ["error", "resolved", "resolved"]
        assert_ran_out(rollouts[0], "agent")
        assert ledger.open == 0
        assert "its thread is left behind" in caplog.text
    finally:
        gate.set()
    eventually(lambda: "came back" in ledger.events)
    eventually(lambda: not any(t.name == "agentix-slot" for t in threading.enumerate()))
    assert rollouts[0].patch == ""
    assert ledger.open == 0


@pytest.mark.usefixtures("short_grace")
def test_a_session_that_is_ready_too_late_is_closed_again() -> None:
    """A provider that blocks past the session limit: the rollout is a timeout, the late sandbox is removed."""
    ledger, gate = Ledger(), threading.Event()

    class Provider(SyncProvider):
        @contextmanager
        def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
            gate.wait(60)
            with super().session(config) as sandbox:
                yield sandbox

    [rollout] = run(provider=Provider(ledger), timeouts=Timeouts(session=0.1))
    assert_ran_out(rollout, "session")
    gate.set()
    eventually(lambda: ledger.events == [("open", "image-i0"), ("close", "image-i0")])


@pytest.mark.usefixtures("short_grace")
def test_an_async_method_that_ignores_its_cancellation_is_abandoned() -> None:
    """A coroutine that blocks its loop's thread can't be cancelled; its rollout ends all the same."""
    gate = threading.Event()

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i0":
            gate.wait(60)
        return AgentResult(patch="p")

    try:
        rollouts = run(Solver(solve), AsyncDataset(2), AsyncProvider(), timeouts=Timeouts(agent=0.1))
        assert [r.status for r in rollouts] == ["error", "resolved"]
    finally:
        gate.set()
    eventually(lambda: not any(t.name == "agentix-slot" for t in threading.enumerate()))


@pytest.mark.usefixtures("short_grace")
def test_a_teardown_past_its_limit_costs_the_score_but_not_the_patch() -> None:
    """The agent's sandbox may still run: nothing is scored, the patch is kept, the next instance goes on."""
    gate = threading.Event()

    class Provider(SyncProvider):
        @contextmanager
        def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
            with super().session(config) as sandbox:
                yield sandbox
                if config.labels["instance_id"] == "i0":
                    gate.wait(60)

    try:
        rollouts = run(dataset=PlainDataset(2), provider=Provider(), timeouts=Timeouts(teardown=0.1))
        assert [r.status for r in rollouts] == ["error", "resolved"]
        assert_ran_out(rollouts[0], "teardown")
        assert (rollouts[0].patch, rollouts[0].score) == ("PATCH OF I0", None)
    finally:
        gate.set()


def test_a_teardown_is_tried_though_the_total_has_run_out() -> None:
    """Removing the sandbox does not count against the total."""
    ledger = Ledger()
    agent = Solver(lambda sandbox, instance: sandbox.wait())
    run(agent, provider=SyncProvider(ledger), timeouts=Timeouts(total=0.1))
    assert ledger.events == [("open", "image-i0"), ("close", "image-i0")]


def test_user_code_never_runs_on_the_pools_own_threads() -> None:
    """Adapters and sessions run on their slot's thread, one for all of a rollout."""
    names = set()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        names.add(threading.current_thread().name)
        return AgentResult(patch="p")

    run(Solver(solve), PlainDataset(4), n_concurrent=2)
    assert names == {"agentix-slot"}


@pytest.mark.parametrize(
    "body",
    [
        "def solve(sandbox, instance): import time; time.sleep(600)",
        "async def solve(sandbox, instance): import asyncio, time; await asyncio.to_thread(time.sleep, 600)",
        "async def solve(sandbox, instance): import time; time.sleep(600)",
    ],
)
def test_the_process_can_exit_though_code_was_left_behind(body: str) -> None:
    """An abandoned thread, also one of asyncio.to_thread, does not hold up the interpreter's exit."""
    script = textwrap.dedent(
        """
        from agentix_runner import Timeouts, run_rollouts
        from agentix_runner.rollout import bridge, slots
        from tests.support.fakes import AsyncDataset, AsyncProvider, Solver
        bridge.LEFT_OVER_S, slots.GRACE_S = 0.1, 0.3
        {body}
        [rollout] = run_rollouts(
            dataset=AsyncDataset(), agent=Solver(solve), provider=AsyncProvider(), timeouts=Timeouts(agent=0.1)
        )
        print(rollout.failure.type)
        """
    ).format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "PhaseTimeout\n", done.stderr
    assert done.returncode == 0


def test_a_background_task_that_exits_ends_its_rollout_only(caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit from a task that the adapter started comes out of the loop: it is that rollout's error."""
    caplog.set_level(logging.CRITICAL, "asyncio")

    async def leave() -> None:
        raise SystemExit(4)

    async def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i0":
            task = asyncio.create_task(leave())
            await asyncio.sleep(20)
            await task
        return AgentResult(patch="p")

    rollouts = run(Solver(solve), AsyncDataset(2), AsyncProvider())
    assert [r.status for r in rollouts] == ["error", "resolved"]
    assert rollouts[0].error is not None
    assert "a background task of the rollout raised SystemExit" in rollouts[0].error


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("where", ["solve", "session", "exit"])
def test_an_exception_whose_text_never_comes_is_bounded_too(where: str) -> None:
    """str() of an adapter's exception is the adapter's code: it counts against the phase that raised it."""
    gate = threading.Event()

    class Slow(Exception):
        def __str__(self) -> str:
            gate.wait(60)
            return "late"

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if where == "solve":
            raise Slow
        return AgentResult(patch="p")

    class Provider(SyncProvider):
        @contextmanager
        def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
            if where == "session":
                raise Slow
            with super().session(config) as sandbox:
                yield sandbox
            if where == "exit":
                raise Slow

    limits = Timeouts(session=0.2, agent=0.2, teardown=0.2)
    try:
        [rollout] = run(Solver(solve), provider=Provider(), timeouts=limits)
        assert_ran_out(rollout, {"solve": "agent", "session": "session", "exit": "teardown"}[where])
    finally:
        gate.set()
    eventually(lambda: not any(t.name == "agentix-slot" for t in threading.enumerate()))
