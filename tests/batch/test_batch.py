"""Many rollouts: order, concurrency, stopping, callbacks, the run directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import AgentResult, Rollout, iter_rollouts, run_rollouts
from agentix_runner.errors import JournalError, RunDirError
from tests.support.fakes import AsyncDataset, AsyncProvider, Ledger, PlainAgent, PlainDataset, Solver, SyncProvider

ROOT = Path(__file__).parents[2]


def run(agent: Any = None, dataset: Any = None, provider: Any = None, **kwargs: Any) -> list[Rollout]:
    return run_rollouts(
        dataset=dataset or PlainDataset(),
        agent=agent or PlainAgent(),
        provider=provider or SyncProvider(),
        **kwargs,
    )


def failing(*ids: str) -> Solver:
    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] in ids:
            raise RuntimeError(f"no luck with {instance['instance_id']}")
        return AgentResult(patch=f"p{instance['instance_id']}")

    return Solver(solve)


@pytest.mark.usefixtures("no_threads_left")
def test_results_are_in_input_order_whatever_finishes_first() -> None:
    """Two hundred rollouts on eight slots that finish in any order come back in the order of the instances."""
    rollouts = run(dataset=PlainDataset(200), n_concurrent=8)
    assert [r.instance_id for r in rollouts] == [f"i{k}" for k in range(200)]


def test_n_concurrent_run_at_once_and_no_more() -> None:
    """Four slots: four sandboxes are open together, never five."""
    ledger = Ledger()
    together = threading.Barrier(4)

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        together.wait(20)
        return AgentResult(patch="p")

    run(Solver(solve), PlainDataset(12), SyncProvider(ledger), n_concurrent=4)
    assert ledger.most == 4


def test_n_attempts_run_each_instance_that_often() -> None:
    """Attempts of an instance follow each other, numbered from 0."""
    rollouts = run(dataset=PlainDataset(2), n_attempts=3, n_concurrent=2)
    assert [(r.instance_id, r.attempt) for r in rollouts] == [(i, a) for i in ("i0", "i1") for a in range(3)]


def test_the_same_id_again_is_the_next_attempt() -> None:
    """A batch may name an instance twice."""
    rollouts = run(dataset=PlainDataset(ids=["a", "b", "a"]), n_attempts=2)
    assert [(r.instance_id, r.attempt) for r in rollouts] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("a", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("max_errors", "ran"), [(0, 2), (1, 4), (0.25, 4), (2, 8), (None, 8)])
def test_max_errors_stops_once_there_are_more(max_errors: float | None, ran: int) -> None:
    """A count, or a fraction of the batch below 1: that many errors are allowed; the rest did not run."""
    rollouts = run(failing("i1", "i3"), PlainDataset(8), max_errors=max_errors)
    if max_errors == 0.25:
        rollouts = run(failing("i1", "i2", "i3"), PlainDataset(8), max_errors=max_errors)
    assert len(rollouts) == 8
    assert [r.ran for r in rollouts] == [True] * ran + [False] * (8 - ran)
    if ran < 8:
        assert rollouts[-1].error is not None
        assert rollouts[-1].error.startswith("not run: more than")


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_stop_ends_what_runs_and_starts_nothing_more(kind: str) -> None:
    """There is one rollout for every job; those stopped on the way or never started did not run."""
    stop, ledger = threading.Event(), Ledger()
    blocked = threading.Semaphore(0)

    def plain(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i0":
            return AgentResult(patch="p")
        blocked.release()
        sandbox.wait()
        raise AssertionError

    async def later(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i0":
            return AgentResult(patch="p")
        blocked.release()
        import asyncio

        await asyncio.sleep(60)
        raise AssertionError

    def stop_once_both_block() -> None:
        assert blocked.acquire(timeout=20)
        assert blocked.acquire(timeout=20)
        stop.set()

    thread = threading.Thread(target=stop_once_both_block)
    thread.start()
    agent, provider = (plain, SyncProvider(ledger)) if kind == "sync" else (later, AsyncProvider(ledger))
    rollouts = run(Solver(agent), PlainDataset(50), provider, n_concurrent=2, stop=stop)
    thread.join()
    assert [r.ran for r in rollouts] == [True] + [False] * 49
    assert {r.error for r in rollouts[1:]} == {"not run: the run was stopped"}
    assert ledger.open == 0


def test_a_stop_that_is_set_beforehand_runs_nothing() -> None:
    """Not one sandbox is made."""
    stop, ledger = threading.Event(), Ledger()
    stop.set()
    rollouts = run(dataset=PlainDataset(5), provider=SyncProvider(ledger), stop=stop)
    assert [r.ran for r in rollouts] == [False] * 5
    assert ledger.events == []


@pytest.mark.usefixtures("no_threads_left")
def test_closing_the_iterator_is_a_stop() -> None:
    """Leaving the loop early ends what runs and leaves nothing behind."""
    ledger = Ledger()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] != "i0":
            sandbox.wait()
        return AgentResult(patch="p")

    rollouts = iter_rollouts(
        dataset=PlainDataset(50), agent=Solver(solve), provider=SyncProvider(ledger), n_concurrent=4
    )
    assert next(rollouts).instance_id == "i0"
    rollouts.close()  # type: ignore[attr-defined]
    assert ledger.open == 0


def test_iter_rollouts_checks_at_the_call_and_starts_at_the_first_next(tmp_path: Path) -> None:
    """A wrong argument raises right away; an iterator that is never used starts nothing and frees the directory."""
    with pytest.raises(ValueError, match="n_concurrent"):
        iter_rollouts(dataset=PlainDataset(), agent=PlainAgent(), provider=SyncProvider(), n_concurrent=0)
    ledger = Ledger()
    rollouts = iter_rollouts(
        dataset=PlainDataset(), agent=PlainAgent(), provider=SyncProvider(ledger), run_dir=tmp_path / "run"
    )
    with pytest.raises(RunDirError):
        run(run_dir=tmp_path / "run")
    rollouts.close()  # type: ignore[attr-defined]
    assert ledger.events == []
    assert [r.status for r in run(run_dir=tmp_path / "run")] == ["resolved"]


def test_callbacks_run_in_the_callers_thread_and_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged; the run and the other callbacks go on."""
    threads, seen = set(), []

    def on_result(rollout: Rollout) -> None:
        threads.add(threading.current_thread())
        seen.append(rollout.instance_id)
        raise LookupError("a bug in the callback")

    def on_event(instance_id: str, phase: str) -> None:
        threads.add(threading.current_thread())
        raise LookupError("another")

    rollouts = run(dataset=PlainDataset(3), n_concurrent=3, on_result=on_result, on_event=on_event)
    assert [r.status for r in rollouts] == ["resolved"] * 3
    assert sorted(seen) == ["i0", "i1", "i2"]
    assert threads == {threading.current_thread()}
    assert "a bug in the callback" in caplog.text


@pytest.mark.usefixtures("no_threads_left")
def test_a_keyboard_interrupt_in_the_callers_thread_cleans_up_first() -> None:
    """It is raised once every sandbox is gone."""
    ledger = Ledger()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] != "i0":
            sandbox.wait()
        return AgentResult(patch="p")

    def on_result(rollout: Rollout) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Solver(solve), PlainDataset(9), SyncProvider(ledger), n_concurrent=3, on_result=on_result)
    assert ledger.open == 0


# ---------------------------------------------------------------- with a run directory


def test_finished_rollouts_are_on_disk_before_anyone_is_told(tmp_path: Path) -> None:
    """on_result finds its rollout's line in the journal."""
    lines = []

    def on_result(rollout: Rollout) -> None:
        journal = (tmp_path / "run" / "rollouts.jsonl").read_text()
        whole, _, _ = journal.rpartition("\n")  # the next line may be on its way to the disk
        lines.append(rollout.instance_id in {json.loads(line)["instance_id"] for line in whole.splitlines()})

    run(dataset=PlainDataset(20), n_concurrent=4, run_dir=tmp_path / "run", on_result=on_result)
    assert lines == [True] * 20


def test_running_again_resumes(tmp_path: Path) -> None:
    """What has finished is not run again, and is in the result at its place, equal to what it was."""
    first = run(failing("i1"), PlainDataset(3), run_dir=tmp_path / "run")
    ran = []
    again = run(failing(), PlainDataset(5), run_dir=tmp_path / "run", on_result=lambda r: ran.append(r.instance_id))
    assert again[:3] == first
    assert ran == ["i3", "i4"]
    final = run(failing(), PlainDataset(5), run_dir=tmp_path / "run", retry_errors=True)
    assert [r.status for r in final] == ["resolved"] * 5


def test_what_did_not_run_is_not_in_the_journal(tmp_path: Path) -> None:
    """A stopped run is finished by running it again."""
    rollouts = run(failing("i1"), PlainDataset(6), run_dir=tmp_path / "run", max_errors=0)
    assert [r.ran for r in rollouts] == [True, True, False, False, False, False]
    journal = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert [json.loads(line)["instance_id"] for line in journal] == ["i0", "i1"]
    again = run(failing("i1"), PlainDataset(6), run_dir=tmp_path / "run")
    assert [r.status for r in again] == ["resolved", "error"] + ["resolved"] * 4


def test_another_agent_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    """Results of two different runs never mix."""
    run(run_dir=tmp_path / "run", model="one")
    ledger = Ledger()
    with pytest.raises(RunDirError, match="model"):
        run(run_dir=tmp_path / "run", model="two", provider=SyncProvider(ledger))
    assert ledger.events == []


def test_a_journal_that_can_not_be_written_stops_the_run_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: JournalError, sandboxes gone, nobody was told of the rollout that is not on disk."""
    from agentix_runner.rundir.directory import RunDir

    real, told, ledger = RunDir.record, [], Ledger()

    def record(self: Any, rollouts: Any) -> None:
        if any(r.instance_id == "i5" for r in rollouts):
            raise JournalError("no space left on device: free some and run again", path="x")
        real(self, rollouts)

    monkeypatch.setattr(RunDir, "record", record)
    with pytest.raises(JournalError, match="no space"):
        run(
            dataset=PlainDataset(500),
            provider=SyncProvider(ledger),
            run_dir=tmp_path / "run",
            on_result=lambda r: told.append(r.instance_id),
        )
    assert "i5" not in told
    assert len(told) < 500
    assert ledger.open == 0


def test_files_that_an_agent_saves_are_in_its_folder(tmp_path: Path) -> None:
    """AgentResult.files are kept by name, beside the patch."""
    run(Solver(lambda s, i: AgentResult(patch="p\n", files={"traj.json": "{}", "../evil": b"\xff"})), run_dir=tmp_path)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert {"i0/patch.diff", "i0/traj.json"} <= found
    assert not (tmp_path.parent / "evil").exists()


# ---------------------------------------------------------------- signals

HUNG = """
import os
from agentix_runner import run_rollouts, AgentResult
from tests.support.fakes import PlainDataset, Solver, SyncProvider, AsyncDataset, AsyncProvider
def solve(sandbox, instance):
    os.write(1, b"running\\n")
    sandbox.wait()
class Provider(SyncProvider):
    def session(self, config):
        inner = super().session(config)
        class Session:
            def __enter__(self): return inner.__enter__()
            def __exit__(self, *exc):
                os.write(1, b"removed\\n")
                return inner.__exit__(*exc)
        return Session()
try:
    run_rollouts(dataset=PlainDataset(9), agent=Solver(solve), provider=Provider(), n_concurrent=2)
finally:
    os.write(1, b"cleaned up\\n")
"""


@pytest.mark.parametrize(("number", "status"), [("SIGINT", None), ("SIGTERM", -15), ("SIGHUP", -1)])
def test_signals_remove_the_sandboxes_and_end_the_process(number: str, status: int | None) -> None:
    """Ctrl-C is KeyboardInterrupt after the clean-up; SIGTERM and SIGHUP clean up, then end the process as ever."""
    with subprocess.Popen(
        [sys.executable, "-c", HUNG], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(2)] == ["running\n"] * 2
            child.send_signal(getattr(signal, number))
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert out.splitlines()[:2] == ["removed"] * 2
    if status is None:
        assert out.splitlines() == ["removed", "removed", "cleaned up"]
        assert "KeyboardInterrupt" in err
        assert child.returncode in (1, 130, -2)
    else:
        assert child.returncode == status


def test_an_ignored_hangup_stays_ignored() -> None:
    """Under nohup the run goes on."""
    script = textwrap.dedent(
        """
        import os, signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        from agentix_runner import run_rollouts, AgentResult
        from tests.support.fakes import PlainDataset, Solver, SyncProvider
        def solve(sandbox, instance):
            os.kill(os.getpid(), signal.SIGHUP)
            return AgentResult(patch="p")
        print(run_rollouts(dataset=PlainDataset(), agent=Solver(solve), provider=SyncProvider())[0].status)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "resolved\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_thousand_at_once(kind: str) -> None:
    """One thousand rollouts that all wait for each other run at the same time."""
    together = threading.Barrier(1000)

    def plain(sandbox: Any, instance: Any) -> AgentResult:
        together.wait(60)
        return AgentResult(patch="p")

    async def later(sandbox: Any, instance: Any) -> AgentResult:
        import asyncio

        await asyncio.sleep(0.5)
        return AgentResult(patch="p")

    if kind == "sync":
        rollouts = run(Solver(plain), PlainDataset(1000), n_concurrent=1000)
    else:
        rollouts = run(Solver(later), AsyncDataset(1000), AsyncProvider(), n_concurrent=1000)
    assert sum(r.resolved for r in rollouts) == 1000
