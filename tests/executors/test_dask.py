"""Rollouts on a Dask cluster: workers that die, stops that reach them, and what a cluster lacks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentix_runner import AgentResult, LocalProvider, RetryPolicy, Rollout, run_rollouts
from agentix_runner.cli.dask import local_client
from agentix_runner.errors import BadArgument
from agentix_runner.providers.docker import DockerProvider
from agentix_runner.remote.tools import bash
from tests.conftest import eventually
from tests.executors.test_executors import Boxes, Locked, Plain, Scripted, instances
from tests.support.fakes import PlainDataset

distributed = pytest.importorskip("distributed")
executor_cluster: Any = pytest.importorskip("agentix_runner.executors.dask")

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def new_cluster(n_workers: int = 2, threads: int = 2, resources: dict[str, float] | None = None) -> Iterator[Any]:
    """A client of a cluster of worker processes."""
    with local_client(n_workers, threads, resources) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with new_cluster(3) as client:
        yield client


def run(client: Any, n: int = 4, **kwargs: Any) -> list[Rollout]:
    settings: dict[str, Any] = {"dataset": PlainDataset(), "agent": Scripted(), "provider": Boxes(), "n_concurrent": 6}
    settings["instances"] = instances(*["solve"] * n)
    executor = kwargs.pop("executor", None) or client.get_executor(pure=False)
    return run_rollouts(**{**settings, **kwargs}, executor=executor)


class Slow:
    """An agent that takes a moment, in its sandbox."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        said = sandbox.remote(bash, f"sleep {self.seconds}; echo done").stdout
        return AgentResult(patch=said, info={"pid": os.getpid()})


class Deadly(Scripted):
    """Notes each try in `folder`, then does what the instance says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        with open(self.folder / instance["instance_id"], "a") as file:
            file.write("try\n")
        return super().solve(sandbox, instance, model=model)


def journal(run_dir: Path) -> list[str]:
    """The ids in the journal so far."""
    return [line["instance_id"] for line in lines(run_dir)]


def lines(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "rollouts.jsonl"
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def sandboxes(root: Path) -> list[str]:
    """What is left of the local sandboxes made in `root`: directories and processes."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(root) in word for word in process.cmdline()):
                processes.append(" ".join(process.cmdline()))
    return [*os.listdir(root), *processes]


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_rollouts_run_on_the_workers_and_come_back_in_order(client: Any, tmp_path: Path) -> None:
    """Order, attempts, events, files and prints are as without Dask; nothing stays on the cluster."""
    events: list[Any] = []
    rollouts = run(
        client,
        instances=instances("print", *["solve"] * 29),
        n_attempts=2,
        run_dir=tmp_path / "run",
        on_event=lambda *event: events.append(event),
    )
    assert [(r.instance_id, r.attempt, r.status) for r in rollouts] == [
        (f"i{k}", attempt, "resolved") for k in range(30) for attempt in range(2)
    ]
    workers = set(client.run(os.getpid).values())
    assert {r.info["pid"] for r in rollouts} <= workers
    assert len(events) == 60 * 3
    assert (tmp_path / "run" / "i0" / "sandbox.log").read_bytes() == b"hello\n"
    assert (tmp_path / "run" / "i0.1" / "notes.txt").read_text() == "kept"
    assert sorted(journal(tmp_path / "run")) == sorted(f"i{k}" for k in range(30) for _ in range(2))
    assert left_there(client) == []
    eventually(lambda: client.run_on_scheduler(_tasks) == 0)


def left_there(client: Any) -> list[str]:
    """What runs have installed on the workers."""
    return [name for names in client.run(_plugins).values() for name in names if name.startswith("agentix-")]


def _plugins(dask_worker: Any) -> list[str]:
    return list(dask_worker.plugins)


def _tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def test_equal_rollouts_are_not_merged(client: Any) -> None:
    """Dask's default, to run equal calls once, does not matter."""
    same = {"instance_id": "same", "do": "solve"}
    rollouts = run(client, instances=[same] * 8, executor=client.get_executor())
    assert [r.attempt for r in rollouts] == list(range(8))
    assert len({r.started_at for r in rollouts}) == 8


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_rollout(client: Any, tmp_path: Path) -> None:
    """Two hundred rollouts on three workers, one of them killed with -9 on the way: all there, in order, each written
    once, no sandbox left."""
    (tmp_path / "boxes").mkdir()
    done: list[Rollout] = []
    killed: list[int] = []

    def kill_one(rollout: Rollout) -> None:
        done.append(rollout)
        if len(done) == 60:
            killed.append(rollout.info["pid"])
            os.kill(killed[0], signal.SIGKILL)

    rollouts = run(
        client,
        200,
        dataset=Plain(),
        agent=Slow(),
        provider=LocalProvider(root=tmp_path / "boxes"),
        score=False,
        run_dir=tmp_path / "run",
        on_result=kill_one,
    )
    assert [r.instance_id for r in rollouts] == [f"i{k}" for k in range(200)]
    assert {(r.error, r.patch) for r in rollouts} == {(None, "done\n")}
    assert killed
    assert killed[0] not in client.run(os.getpid).values()
    assert sorted(journal(tmp_path / "run")) == sorted(f"i{k}" for k in range(200))
    eventually(lambda: sandboxes(tmp_path / "boxes") == [])


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_container(engine: Any, busybox: str, tmp_path: Path) -> None:
    """Forty rollouts with docker sandboxes on two workers, one of them killed with -9 on the way: all there, in order,
    each written once, no container left."""
    mark = f"agentix-test-{tmp_path.name}-{os.getpid()}"
    done: list[Rollout] = []

    def kill_one(rollout: Rollout) -> None:
        done.append(rollout)
        if len(done) == 12:
            os.kill(rollout.info["pid"], signal.SIGKILL)

    with new_cluster(2) as client:
        rollouts = run(
            client,
            40,
            dataset=In(busybox),
            agent=Napping(),
            provider=DockerProvider(labels={mark: "1"}),
            run_dir=tmp_path / "run",
            n_concurrent=4,
            on_result=kill_one,
        )
        assert [r.instance_id for r in rollouts] == [f"i{k}" for k in range(40)]
        assert {(r.error, r.status) for r in rollouts} == {(None, "resolved")}
        assert sorted(journal(tmp_path / "run")) == sorted(f"i{k}" for k in range(40))
        eventually(lambda: engine.containers.list(all=True, filters={"label": mark}) == [], 30)


class In(PlainDataset):
    """Every instance in the same image."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag = tag

    def image(self, instance: dict[str, Any]) -> str:
        return self.tag


class Napping:
    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        sandbox.remote(time.sleep, 0.2)
        return AgentResult(patch="p", info={"pid": os.getpid()})


@pytest.mark.parametrize(("attempts", "tries"), [(1, 1), (2, 2), (9, 4)])
def test_a_rollout_that_kills_its_workers_is_tried_so_often(
    client: Any, tmp_path: Path, attempts: int, tries: int
) -> None:
    """At most `retry.attempts` times, or as often as Dask does (4 by default); then it is an error of its own."""
    rollouts = run(
        client,
        agent=Deadly(tmp_path),
        instances=instances("die", *["solve"] * 6),
        retry=RetryPolicy(attempts=attempts),
        n_concurrent=1,
    )
    assert (tmp_path / "i0").read_text() == "try\n" * tries
    assert rollouts[0].error is not None
    assert rollouts[0].error == f"WorkerDied: the workers that ran it are gone, {tries} in a row: see their logs"
    assert [r.status for r in rollouts[1:]] == ["resolved"] * 6
    eventually(lambda: client.run_on_scheduler(_tasks) == 0)
    client.wait_for_workers(3, timeout=30)


def test_a_stop_reaches_what_is_running_on_workers(client: Any, tmp_path: Path) -> None:
    """Their sandboxes are closed when the run has returned; what waited for a worker did not run; the rest is kept."""
    stop = threading.Event()
    done: list[Rollout] = []

    def stop_once_all_wait() -> None:
        try:
            eventually(lambda: done and len(os.listdir(tmp_path)) == 6, 30)
        finally:
            stop.set()

    thread = threading.Thread(target=stop_once_all_wait)
    thread.start()
    rollouts = run(
        client,
        instances=instances("solve", *["wait"] * 20),
        provider=Boxes(tmp_path, 1.5),
        n_concurrent=12,
        stop=stop,
        on_result=done.append,
    )
    thread.join()
    assert [r.ran for r in rollouts] == [True] + [False] * 20
    assert {r.error for r in rollouts[1:]} == {"not run: the run was stopped"}
    assert list(tmp_path.iterdir()) == []


def test_a_stop_does_not_wait_for_workers_that_never_come(client: Any, tmp_path: Path) -> None:
    """Rollouts that nobody can run, since all workers are at something else, are taken back."""
    stop = threading.Event()
    busy = [client.submit(occupy, tmp_path, k, pure=False) for k in range(6)]
    eventually(lambda: len(os.listdir(tmp_path)) == 6, 30)

    def stop_once_all_are_queued() -> None:
        scheduler = client.cluster.scheduler
        try:
            eventually(lambda: sum(str(key).startswith("agentix-") for key in list(scheduler.tasks)) == 4, 30)
        finally:
            stop.set()

    thread = threading.Thread(target=stop_once_all_are_queued)
    thread.start()
    try:
        rollouts = run(client, 4, stop=stop)
        thread.join()
        assert {r.error for r in rollouts} == {"not run: the run was stopped"}
        assert not any(future.done() for future in busy)
    finally:
        (tmp_path / "leave").touch()
    client.gather(busy)


def occupy(folder: Path, number: int) -> None:
    """Keep a worker's thread until there is a file "leave", or for 20 s."""
    (folder / str(number)).touch()
    until = time.monotonic() + 20
    while not (folder / "leave").exists() and time.monotonic() < until:
        time.sleep(0.01)


HOST = """
    import sys
    import distributed
    from pathlib import Path
    from tests.executors.test_dask import Boxes, instances, run

    if __name__ == "__main__":
        client = distributed.Client(sys.argv[1])
        run(client, instances=instances("wait", "wait"), provider=Boxes(Path(sys.argv[2])))
"""


def test_rollouts_end_when_the_process_that_wants_them_is_killed(client: Any, tmp_path: Path) -> None:
    """Dask takes their tasks back, and their sandboxes are closed; the next run removes the rest."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(HOST))
    (tmp_path / "open").mkdir()
    host = subprocess.Popen(
        [sys.executable, script, client.scheduler.address, tmp_path / "open"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        eventually(lambda: len(os.listdir(tmp_path / "open")) == 2, 60)
    finally:
        host.kill()
        host.wait()
    eventually(lambda: os.listdir(tmp_path / "open") == [], 30)
    assert left_there(client)
    assert [r.status for r in run(client)] == ["resolved"] * 4
    assert left_there(client) == []


def test_the_users_own_modules_go_along(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of a module that only this process can import runs on the workers."""
    (tmp_path / "only_here.py").write_text(
        "from agentix_runner import AgentResult\n"
        "class Mine:\n"
        "    def solve(self, sandbox, instance, *, model):\n"
        "        return AgentResult(patch=helper())\n"
        "def helper():\n"
        "    return 'mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    assert {r.patch for r in run(client, agent=only_here.Mine())} == {"mine"}


class Elsewhere(Scripted):
    def __reduce__(self) -> Any:
        return __import__, ("no_such_module",)


def test_what_workers_lack_is_told_before_anything_runs(client: Any) -> None:
    """One line with what could not be imported there, and the remedy."""
    with pytest.raises(BadArgument) as caught:
        run(client, agent=Elsewhere())
    assert str(caught.value) == (
        "a Dask worker can't load the adapters (ModuleNotFoundError: No module named 'no_such_module'): "
        "install there what they need, the same agentix-runner too"
    )
    assert left_there(client) == []


def test_a_worker_that_comes_later_and_lacks_something_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """It would fail every rollout, faster than others run them. None has run; the reason is told."""
    with new_cluster(0, 1) as client:
        timer = threading.Timer(0.5, client.cluster.scale, [1])
        timer.start()
        rollouts = run(client, 20, agent=Elsewhere())
        timer.join()
    reason = (
        "a Dask worker can't load the adapters (ModuleNotFoundError: No module named 'no_such_module'): install there"
    )
    assert {r.ran for r in rollouts} == {False}
    assert str(rollouts[0].error).startswith(f"not run: {reason}")
    assert f"the run is stopped: {reason}" in caplog.text


def test_a_worker_of_another_version_is_named() -> None:
    """Before anything of the user's is loaded there: between minor versions that can end the interpreter."""
    plugin = executor_cluster.Rollouts(b"no pickle", "run", "name", counts=False)
    plugin._version = ("0.0.1", (3, 9))
    with pytest.raises(BadArgument, match=r"^a Dask worker has .*, and this process 0\.0\.1 on Python 3\.9: make them"):
        plugin.setup(None)


def test_a_worker_that_does_not_answer_is_told(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask would wait for it forever."""
    monkeypatch.setattr(executor_cluster, "INSTALL_S", 1.0)
    stuck = psutil.Process(next(iter(client.run(os.getpid).values())))
    stuck.suspend()
    try:
        with pytest.raises(BadArgument, match=r"^a Dask worker does not answer: see the workers' logs"):
            run(client)
    finally:
        stuck.resume()
    assert [r.status for r in run(client)] == ["resolved"] * 4


def test_what_cant_be_pickled_is_told_before_anything_runs(client: Any) -> None:
    """As with other processes."""
    with pytest.raises(BadArgument, match="agent Locked can't be sent to other processes"):
        run(client, agent=Locked())


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"resources": {"GPU": 1}}, r"no Dask worker offers 1 of resource 'GPU' \(none has any\): start workers with"),
        ({"workers": ["tcp://10.0.0.1:1"]}, "none of the Dask workers tcp://10.0.0.1:1 is there"),
    ],
)
def test_what_no_worker_offers_is_told_instead_of_waited_for(client: Any, wanted: dict[str, Any], message: str) -> None:
    """Dask itself would wait without a word."""
    with pytest.raises(BadArgument, match=message):
        run(client, executor=client.get_executor(pure=False, **wanted))


def test_resources_bound_how_many_run_at_once(tmp_path: Path) -> None:
    """A worker with two of a resource runs two rollouts that take one each, on its four threads."""
    with new_cluster(1, 4, resources={"GPU": 2}) as client:
        executor = client.get_executor(pure=False, resources={"GPU": 1})
        stop = threading.Event()
        thread = threading.Thread(target=lambda: (_two_open(tmp_path), stop.set()))
        thread.start()
        run(client, instances=instances(*["wait"] * 4), provider=Boxes(tmp_path), executor=executor, stop=stop)
        thread.join()
        with pytest.raises(BadArgument, match=r"offers 3 of resource 'GPU' \(the most that one has is 2\)"):
            run(client, executor=client.get_executor(pure=False, resources={"GPU": 3}))


def _two_open(folder: Path) -> None:
    eventually(lambda: len(os.listdir(folder)) == 2)
    time.sleep(0.2)
    assert len(os.listdir(folder)) == 2


@pytest.mark.slow
def test_a_run_waits_for_workers_to_come_and_goes_on_when_one_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty cluster is told; a worker that leaves in good order gives its rollouts to another; a cluster that is
    closed ends the run, and what has finished is kept."""
    with new_cluster(0, 1) as client:
        timer = threading.Timer(0.2, client.cluster.scale, [2])
        timer.start()
        done: list[Rollout] = []

        def meddle(rollout: Rollout) -> None:
            done.append(rollout)
            if len(done) == 2:
                client.cluster.scale(1)
            if len(done) == 10:
                client.cluster.close()

        rollouts = run(
            client,
            12,
            dataset=Plain(),
            agent=Slow(0.2),
            provider=LocalProvider(root=tmp_path),
            score=False,
            n_concurrent=2,
            on_result=meddle,
        )
        timer.join()
    assert "the Dask cluster has no workers yet" in caplog.text
    assert [r.error for r in done] == [None] * len(done)
    assert [r for r in rollouts if r.ran] == sorted(done, key=lambda r: int(r.instance_id[1:]))
    assert 10 <= len(done) < 12
    assert {r.error for r in rollouts if not r.ran} <= {
        "not run: the connection to the Dask scheduler was lost, or the client was closed",
        "not run: the executor takes no more work (RuntimeError: cannot schedule new futures after shutdown)",
    }
    eventually(lambda: sandboxes(tmp_path) == [])
