"""Rollouts on an executor that was handed in: another's threads, other processes, anything that runs functions."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import (
    AgentResult,
    LocalProvider,
    RetryPolicy,
    Rollout,
    SandboxConfig,
    iter_rollouts,
    run_rollouts,
)
from agentix_runner.errors import BadArgument
from agentix_runner.remote.tools import bash
from tests.conftest import eventually
from tests.support.fakes import AsyncDataset, AsyncProvider, Ledger, PlainAgent, PlainDataset, Solver, SyncProvider

ROOT = Path(__file__).parents[2]


class Box:
    """A sandbox in the process that made it."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self.gone = threading.Event()

    def remote(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def wait(self) -> None:
        assert self.gone.wait(60), "nobody killed the sandbox"
        raise ConnectionError("the sandbox is gone")

    def kill(self) -> None:
        self.gone.set()


class Boxes:
    """A provider that can be sent anywhere; `folder` holds a file for each open sandbox, whose end takes `linger` s."""

    def __init__(self, folder: Path | None = None, linger: float = 0) -> None:
        self.folder = folder
        self.linger = linger

    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[Box]:
        mark = None
        if self.folder is not None:
            mark = self.folder / "{instance_id}.{phase}".format(**config.labels)
            mark.touch()
        try:
            yield Box(config)
        finally:
            time.sleep(self.linger)
            if mark is not None:
                mark.unlink()


class Scripted:
    """An agent that does to an instance what its dict says."""

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        do = instance.get("do")
        if do == "raise":
            raise RuntimeError("no luck")
        if do == "wait":
            sandbox.wait()
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "print":
            sandbox.config.on_log(b"hello\n")
            logging.getLogger("agentix_runner").warning("beware of %s", instance["instance_id"])
        return AgentResult(
            patch=f"patch of {instance['instance_id']}",
            info={"pid": os.getpid(), "model": model},
            files={"notes.txt": "kept"},
        )


def instances(*whats: str) -> list[dict[str, Any]]:
    return [{"instance_id": f"i{k}", "do": what} for k, what in enumerate(whats)]


def run(executor: Executor | None, n: int = 4, **kwargs: Any) -> list[Rollout]:
    settings: dict[str, Any] = {"dataset": PlainDataset(n), "agent": Scripted(), "provider": Boxes(), "n_concurrent": 2}
    settings["instances"] = instances(*["solve"] * n)
    return run_rollouts(**{**settings, **kwargs}, executor=executor)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with new_pool() as pool:
        yield pool


def new_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


# ---------------------------------------------------------------- threads


@pytest.mark.usefixtures("no_threads_left")
def test_a_thread_pool_that_is_handed_in_is_used_and_left_as_it_was() -> None:
    """Its threads supervise; afterwards it takes work, and no thread but its own is left."""
    seen: set[str] = set()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        seen.update(t.name for t in threading.enumerate())
        return AgentResult(patch="p")

    with ThreadPoolExecutor(3, thread_name_prefix="mine") as pool:
        rollouts = run(pool, 50, agent=Solver(solve), provider=SyncProvider(), n_concurrent=3)
        assert [r.instance_id for r in rollouts] == [f"i{k}" for k in range(50)]
        assert pool.submit(int, "7").result(10) == 7
    assert {name for name in seen if name.startswith("mine")} >= {"mine_0"}
    assert not [name for name in seen if name.startswith("agentix-supervisor")]


def test_n_concurrent_holds_on_a_larger_pool() -> None:
    """Of eight threads no more than two are taken at a time."""
    ledger = Ledger()
    together = threading.Barrier(2)

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        together.wait(20)
        return AgentResult(patch="p")

    with ThreadPoolExecutor(8) as pool:
        run(pool, 10, agent=Solver(solve), provider=SyncProvider(ledger), n_concurrent=2)
    assert ledger.most == 2


def test_a_stop_does_not_wait_for_the_pools_other_work() -> None:
    """Rollouts that stand behind somebody else's work are taken back."""
    stop, busy = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(busy.wait, 60)
        timer = threading.Timer(0.1, stop.set)
        timer.start()
        rollouts = run(pool, 5, stop=stop)
        assert not other.done()
        busy.set()
        timer.join()
    assert {r.error for r in rollouts} == {"not run: the run was stopped"}


def test_a_pool_that_is_shut_down_ends_the_run() -> None:
    """What has run is kept; what the pool does not take did not run, and says why."""
    pool = ThreadPoolExecutor(1)

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        pool.shutdown(wait=False)
        return AgentResult(patch="p")

    first, second, third = run(pool, 3, agent=Solver(solve), provider=SyncProvider(), n_concurrent=1)
    assert first.resolved
    assert second.error == third.error
    assert str(second.error).startswith("not run: the executor takes no more work (RuntimeError: cannot schedule new")


def test_async_adapters_run_on_a_pool_that_is_handed_in() -> None:
    """Each slot has its loop, as on the run's own threads."""
    with ThreadPoolExecutor(2) as pool:
        rollouts = run(
            pool, dataset=AsyncDataset(5), agent=PlainAgent(), provider=AsyncProvider(), instances=None, n_concurrent=2
        )
    assert [r.resolved for r in rollouts] == [True] * 5


# ---------------------------------------------------------------- processes


def test_rollouts_run_in_other_processes_and_come_back_in_order(processes: ProcessPoolExecutor) -> None:
    """Everything of a rollout is as without an executor, but where it ran."""
    rollouts = run(processes, 12, model="m", n_attempts=2)
    assert [(r.instance_id, r.attempt) for r in rollouts] == [(f"i{k}", a) for k in range(12) for a in range(2)]
    first = rollouts[0]
    assert (first.patch, first.status, first.model) == ("patch of i0", "resolved", "m")
    assert first.score == {"resolved": True, "patch": "patch of i0"}
    assert [phase for phase, _, _ in first.phases] == [
        "session", "setup", "agent", "teardown", "session", "score", "teardown",
    ]  # fmt: skip
    assert os.getpid() not in {r.info["pid"] for r in rollouts}


def test_async_adapters_run_in_other_processes(processes: ProcessPoolExecutor) -> None:
    """A loop is made there."""
    rollouts = run(processes, dataset=AsyncDataset(3), agent=PlainAgent(), instances=None)
    assert [r.resolved for r in rollouts] == [True] * 3


def test_prints_files_events_and_log_records_come_back(
    processes: ProcessPoolExecutor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a rollout emits in another process goes where it would have gone here."""
    events: list[Any] = []
    results: list[str] = []
    run(
        processes,
        instances=instances("print", "raise"),
        run_dir=tmp_path / "run",
        on_event=lambda *event: events.append((threading.current_thread(), *event)),
        on_result=lambda rollout: results.append(f"{rollout.instance_id} {rollout.status}"),
    )
    here = threading.current_thread()
    assert [e for e in events if e[1] == "i0"] == [(here, "i0", phase) for phase in ("setup", "agent", "score")]
    assert [e for e in events if e[1] == "i1"] == [(here, "i1", phase) for phase in ("setup", "agent")]
    assert sorted(results) == ["i0 resolved", "i1 error"]
    assert (tmp_path / "run" / "i0" / "sandbox.log").read_bytes() == b"hello\n"
    assert (tmp_path / "run" / "i0" / "notes.txt").read_text() == "kept"
    assert [r.getMessage() for r in caplog.records if "beware" in r.getMessage()] == ["beware of i0"]


def test_a_run_in_other_processes_resumes(processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    """What has finished is not run again; where it ran does not matter."""
    first = run(processes, 4, run_dir=tmp_path / "run")
    again = run(None, 6, run_dir=tmp_path / "run")
    assert again[:4] == first
    assert [r.resolved for r in again] == [True] * 6
    assert len((tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()) == 6


def test_max_errors_stops_a_run_in_other_processes(processes: ProcessPoolExecutor) -> None:
    """Errors are counted as they come back."""
    rollouts = run(processes, instances=instances(*["raise"] * 3, *["solve"] * 20), n_concurrent=1, max_errors=1)
    assert [r.ran for r in rollouts] == [True] * 2 + [False] * 21
    assert rollouts[-1].error == "not run: more than 1 rollouts have an error (max_errors)"


def test_a_stop_reaches_what_runs_in_other_processes_of_this_machine(
    processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """Their sandboxes are ended there, and the pool is free again when the run has returned."""
    stop = threading.Event()

    def stop_once_both_wait() -> None:
        try:
            eventually(lambda: {p.name for p in tmp_path.iterdir()} >= {"i1.agent", "i2.agent"})
        finally:
            stop.set()

    thread = threading.Thread(target=stop_once_both_wait)
    thread.start()
    rollouts = run(
        processes,
        instances=instances("solve", *["wait"] * 10),
        provider=Boxes(tmp_path, 0.5),
        n_concurrent=2,
        stop=stop,
    )
    thread.join()
    assert [r.ran for r in rollouts] == [True] + [False] * 10
    assert list(tmp_path.iterdir()) == []
    assert processes.submit(int, "7").result(10) == 7


def test_closing_the_iterator_is_a_stop_there_too(processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    """Leaving the loop ends what runs elsewhere."""
    rollouts = iter_rollouts(
        dataset=PlainDataset(), agent=Scripted(), provider=Boxes(tmp_path), executor=processes, n_concurrent=2,
        instances=instances("solve", *["wait"] * 3),
    )  # fmt: skip
    assert next(rollouts).instance_id == "i0"
    rollouts.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_is_the_error_of_what_it_ran() -> None:
    """A process pool does not survive that: the rest did not run, and a resumed run takes it up."""
    with new_pool() as pool:
        rollouts = run(pool, instances=instances("solve", "die", "solve", "solve"), n_concurrent=1)
    assert rollouts[0].resolved
    assert str(rollouts[1].error).startswith("WorkerDied: a process of the executor died")
    assert rollouts[1].failure is not None
    assert rollouts[1].failure.transient
    assert [r.ran for r in rollouts] == [True, True, False, False]
    assert str(rollouts[2].error).startswith("not run: the executor takes no more work (BrokenProcessPool")


def test_local_sandboxes_are_made_where_the_rollout_runs(processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    """LocalProvider travels."""

    rollouts = run(processes, agent=Shell(), dataset=Plain(), provider=LocalProvider(root=tmp_path))
    assert {r.patch for r in rollouts} == {"from the shell\n"}
    assert list(tmp_path.iterdir()) == []


class Plain(PlainDataset):
    def image(self, instance: dict[str, Any]) -> str:
        return ""


class Shell:
    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        return AgentResult(patch=sandbox.remote(bash, "echo from the shell").stdout)


KILLED = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor
    from pathlib import Path
    from tests.executors.test_executors import Boxes, PlainDataset, Scripted, instances, run

    if __name__ == "__main__":
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[2]))
        run(pool, instances=instances("wait", "wait"), provider=Boxes(Path(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("signum", "method"), [(signal.SIGINT, "spawn"), (signal.SIGKILL, "spawn"), (signal.SIGKILL, "forkserver")]
)
def test_what_runs_elsewhere_ends_with_the_process_that_started_it(tmp_path: Path, signum: int, method: str) -> None:
    """Ctrl-C in a terminal, which all processes get, and a kill that only the first one gets: no sandbox stays open."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    (tmp_path / "open").mkdir()
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "open", method],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    try:
        eventually(lambda: len(list((tmp_path / "open").iterdir())) == 2, 60)
        if signum == signal.SIGINT:
            os.killpg(process.pid, signum)
        else:
            process.kill()
        eventually(lambda: list((tmp_path / "open").iterdir()) == [], 30)
        process.wait(30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        process.stderr.close()  # type: ignore[union-attr]


# ---------------------------------------------------------------- what can't be sent


class Locked(Scripted):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Unloadable(Scripted):
    def __reduce__(self) -> Any:
        return __import__, ("no_such_module",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"agent": Locked()}, "agent Locked can't be sent to other processes: TypeError: cannot pickle '_thread.lock'"),
        ({"provider": SyncProvider()}, "provider SyncProvider can't be sent to other processes"),
        ({"retry": RetryPolicy(is_transient=threading.Lock().acquire)}, "retry RetryPolicy can't be sent"),
        (
            {"instances": [{"id": "a"}, {"id": "b", "lock": threading.Lock()}]},
            "instance b can't be sent to other processes",
        ),
    ],
)
def test_what_cant_be_pickled_is_named_before_anything_starts(
    processes: ProcessPoolExecutor, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    """One line with the culprit and the remedy; there is no run directory."""
    with pytest.raises(BadArgument) as caught:
        run(processes, run_dir=tmp_path / "run", **wrong)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert "__getstate__" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_cant_be_loaded_there_is_the_rollouts_error(processes: ProcessPoolExecutor) -> None:
    """An import that fails in the other process is told with its own words."""
    [rollout] = run(processes, 1, agent=Unloadable())
    assert rollout.error is not None
    assert "can't be loaded in the executor's process: ModuleNotFoundError: No module named 'no_such_module'" in (
        rollout.error
    )


def test_classes_of_a_notebook_travel_by_value(processes: ProcessPoolExecutor) -> None:
    """An agent of `__main__`, made of closures, runs in another process."""
    word = "closure"
    rollouts = run(processes, 2, agent=Solver(lambda sandbox, instance: AgentResult(patch=word)))
    assert [r.patch for r in rollouts] == ["closure"] * 2


@pytest.mark.parametrize("wrong", [4, "tcp://host:8786", ThreadPoolExecutor])
def test_what_is_no_executor_is_an_error(wrong: Any) -> None:
    """Before anything starts."""
    with pytest.raises(BadArgument, match=r"is no concurrent\.futures\.Executor"):
        run(wrong)


# ---------------------------------------------------------------- any executor


class Inline(Executor):
    """Runs what it is given at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.usefixtures("no_threads_left")
def test_any_executor_will_do(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that works in this very process: a thousand rollouts, none lost, logging as it was."""
    rollouts = run(Inline(), 1000)
    assert [r.status for r in rollouts] == ["resolved"] * 1000
    run(Inline(), instances=instances("solve"), provider=Boxes(), run_dir=None, agent=Warns())
    assert [r.getMessage() for r in caplog.records] == ["beware"]
    assert logging.getLogger("agentix_runner").propagate


class Warns(Scripted):
    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        logging.getLogger("agentix_runner").warning("beware")
        return AgentResult(patch="p")


class Losing(Inline):
    """Drops every second job."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        if self.count % 2:
            return super().submit(fn, *args, **kwargs)
        future: Future[Any] = Future()
        future.cancel()
        return future


def test_an_executor_that_drops_a_job_ends_the_run() -> None:
    """No rollout is waited for that will never come."""
    rollouts = run(Losing(), 6, n_concurrent=1)
    assert [r.ran for r in rollouts] == [True] + [False] * 5
    assert rollouts[1].error == "not run: the executor was shut down, or has dropped what it was to run"
