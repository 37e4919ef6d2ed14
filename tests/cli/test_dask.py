"""`agentix-run --dask`: on a cluster that is there, of `dask scheduler` and `dask worker`, and on processes of its own,
which are gone when it is, however that came."""

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

from agentix_runner.cli import dask as dask_command
from tests.conftest import eventually
from tests.executors.test_dask import journal, lines, new_cluster, sandboxes

distributed = pytest.importorskip("distributed")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

BENCH = """
    import os
    from agentix_runner import AgentResult
    from agentix_runner.remote.tools import bash

    class Tasks:
        def instances(self):
            return [{"id": f"t{i}"} for i in range(12)]

        def image(self, instance):
            return ""

        def setup(self, sandbox, instance):
            return True

        def score(self, sandbox, instance, patch):
            return {"resolved": True}

    class Agent:
        def solve(self, sandbox, instance, *, model):
            sandbox.remote(bash, f"sleep {os.environ.get('NAP', '0')}")
            return AgentResult(patch="p", info={"pid": os.getpid()})
"""


@contextlib.contextmanager
def agentix_run(folder: Path, *args: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process group of its own, which is gone afterwards."""
    (folder / "bench.py").write_text(textwrap.dedent(BENCH))
    (folder / "boxes").mkdir(exist_ok=True)
    command = ["--dataset", "bench:Tasks", "--agent", "bench:Agent", "--provider-arg", f"root={folder / 'boxes'}"]
    with started(
        *(sys.executable, "-m", "agentix_runner.cli.run", *command, "--out", "run", "--n-concurrent", "4", *args),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process


@contextlib.contextmanager
def started(*command: str, **kwargs: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process with a process group of its own, which is gone afterwards."""
    with subprocess.Popen(command, start_new_session=True, **kwargs) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """What it has printed, once it has ended with `code` and without a traceback."""
    out, err = process.communicate(timeout=100)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All processes that it has started."""
    return psutil.Process(process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The Dask workers among them. (Their keeper of semaphores is one of Python's, and leaves by itself.)"""
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


# ---------------------------------------------------------------- processes of its own


def test_ctrl_c_ends_a_run_and_running_it_again_finishes_the_rest(tmp_path: Path) -> None:
    """The signal goes to the workers too, as in a terminal. The command is gone within 10 s, no sandbox and no worker
    is left, what had finished is kept; the next run does the rest."""
    with agentix_run(tmp_path, "--dask", "local:3", NAP="1") as first:
        eventually(lambda: len(journal(tmp_path / "run")) >= 4, 60)
        workers = workers_of(first)
        began = time.monotonic()
        os.killpg(first.pid, signal.SIGINT)
        _, err = ended(first, 130)
        assert time.monotonic() - began < 10
    assert err.startswith("Ended by SIGINT: ")
    assert len(workers) == 3
    assert alive(workers) == []
    assert sandboxes(tmp_path / "boxes") == []
    finished = journal(tmp_path / "run")
    assert 4 <= len(finished) < 12

    with agentix_run(tmp_path, "--dask", "local:3", "--json") as again:
        out, _ = ended(again, 0)
    assert json.loads(out)["rollouts"] == 12
    assert journal(tmp_path / "run")[: len(finished)] == finished
    assert sorted(journal(tmp_path / "run")) == sorted(f"t{i}" for i in range(12))
    assert sandboxes(tmp_path / "boxes") == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("all_at_once", [False, True])
def test_nothing_is_left_however_the_command_ends(tmp_path: Path, signum: signal.Signals, all_at_once: bool) -> None:
    """Every worker and every sandbox is gone, be the signal for the command alone or for all that belongs to it."""
    with agentix_run(tmp_path, "--dask", "local:2", NAP="60") as command:
        eventually(lambda: len(os.listdir(tmp_path / "boxes")) == 4, 60)
        processes = family(command)
        (os.killpg if all_at_once else os.kill)(command.pid, signum)
        command.communicate(timeout=60)
    assert command.returncode == (-9 if signum == signal.SIGKILL else 128 + signum)
    eventually(lambda: alive(processes) == [], 30)
    if signum == signal.SIGKILL:  # nobody removes the directories
        eventually(lambda: not [line for line in sandboxes(tmp_path / "boxes") if "python" in line], 30)
    else:
        assert sandboxes(tmp_path / "boxes") == []
    assert journal(tmp_path / "run") == []


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGINT,
        pytest.param(
            signal.SIGKILL,
            marks=pytest.mark.skipif(
                sys.platform != "linux", reason="only Linux kills what is stopped with its parent"
            ),
        ),
    ],
)
def test_a_worker_that_is_stuck_keeps_nobody_and_is_not_left(tmp_path: Path, signum: signal.Signals) -> None:
    """One that does not run any more at all, so that it can't see or do anything, ends with the command."""
    with agentix_run(tmp_path, "--dask", "local:2", NAP="60") as command:
        eventually(lambda: len(os.listdir(tmp_path / "boxes")) == 4, 60)
        processes = family(command)
        workers_of(command)[0].suspend()
        command.send_signal(signum)
        began = time.monotonic()
        _, err = command.communicate(timeout=60)
        assert time.monotonic() - began < 25
    assert "Traceback" not in err
    eventually(lambda: alive(processes) == [], 30)


@pytest.mark.parametrize("after_s", [0, 0.3])
def test_ctrl_c_while_workers_start_leaves_none(tmp_path: Path, after_s: float) -> None:
    """From the moment at which there is the first of them; nothing is said but that it has ended."""
    with agentix_run(tmp_path, "--dask", "local:3") as command:
        eventually(lambda: workers_of(command), 60)
        time.sleep(after_s)
        workers = workers_of(command)
        os.killpg(command.pid, signal.SIGINT)
        _, err = ended(command, 130)
    assert err.startswith("Ended by SIGINT: ")
    assert err.count("\n") == 1
    assert alive(workers) == []


def test_workers_end_where_dask_does_not_end_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster whose loop hangs is left after a moment, and its workers are killed."""
    monkeypatch.setattr(dask_command, "CLOSE_S", 0.2)
    hangs, leave = threading.Event(), threading.Event()
    with new_cluster(2) as client:
        eventually(lambda: len(client.cluster.workers) == 2)  # started, in the eyes of Dask too
        workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
        client.loop.add_callback(lambda: (hangs.set(), leave.wait(60)))
        assert hangs.wait(30)
    try:
        eventually(lambda: alive(workers) == [], 30)
        assert len(workers) == 2
    finally:
        leave.set()
    eventually(lambda: client.cluster.status == distributed.Status.closed)


# ---------------------------------------------------------------- a cluster that is there


@contextlib.contextmanager
def scheduler(folder: Path) -> Iterator[tuple[subprocess.Popen[Any], str]]:
    """`dask scheduler`, and its address."""
    where = folder / "scheduler.json"
    with dask(folder, "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(where)) as process:
        eventually(lambda: where.exists() and where.read_text().rstrip().endswith("}"), 60)
        yield process, json.loads(where.read_text())["address"]


@contextlib.contextmanager
def dask(folder: Path, *args: str, **env: str) -> Iterator[subprocess.Popen[Any]]:
    """The command of that name, with its log in `folder`, not in the folder that the run is in."""
    (folder / "elsewhere").mkdir(exist_ok=True)
    with open(folder / f"{args[0]}.log", "ab") as log:
        command = (sys.executable, "-m", "dask", *args, "--dashboard-address", "127.0.0.1:0")
        with started(
            *command,
            cwd=folder / "elsewhere",
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        ) as process:
            yield process


def a_worker(folder: Path, address: str, **env: str) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
    """`dask worker`, with two threads and the runner, but not the modules of the folder that the run is in."""
    local = ("--local-directory", str(folder / "elsewhere"))
    return dask(folder, "worker", address, "--host", "127.0.0.1", "--nthreads", "2", *local, **env)


def test_a_run_on_a_cluster_that_is_there_survives_the_kill_of_a_worker(tmp_path: Path) -> None:
    """The working directory's modules go along, also to workers that come later; one of two is killed with its keeper
    on the way: all rollouts are there, each written once."""
    with scheduler(tmp_path) as (_, address), agentix_run(tmp_path, "--dask", address, "--json") as run:
        eventually(lambda: (tmp_path / "run").exists(), 60)
        with a_worker(tmp_path, address, NAP="0.5"), a_worker(tmp_path, address, NAP="0.5") as second:
            eventually(lambda: len(journal(tmp_path / "run")) >= 4, 60)
            os.killpg(second.pid, signal.SIGKILL)
            out, err = ended(run, 0)
    assert json.loads(out)["resolved"] == 12
    assert "the Dask cluster has no workers yet" in err
    assert sorted(journal(tmp_path / "run")) == sorted(f"t{i}" for i in range(12))
    assert len({line["info"]["pid"] for line in lines(tmp_path / "run")}) == 2
    eventually(lambda: not [line for line in sandboxes(tmp_path / "boxes") if "python" in line], 30)


def test_a_scheduler_that_dies_ends_the_run_which_can_be_finished_on_another(tmp_path: Path) -> None:
    """The reason is one line; what had finished is kept, what was running left nothing."""
    with scheduler(tmp_path) as (process, address), a_worker(tmp_path, address, NAP="0.5"):
        with agentix_run(tmp_path, "--dask", address, "--json") as run:
            eventually(lambda: len(journal(tmp_path / "run")) >= 4, 60)
            process.kill()
            _, err = ended(run, 1)
        eventually(lambda: sandboxes(tmp_path / "boxes") == [], 60)
    assert "the run is stopped: the connection to the Dask scheduler was lost" in err
    assert "distributed" not in err  # its own words about it
    finished = journal(tmp_path / "run")
    assert 4 <= len(finished) < 12
    (tmp_path / "scheduler.json").unlink()
    with scheduler(tmp_path) as (_, address), a_worker(tmp_path, address):
        with agentix_run(tmp_path, "--dask", address) as again:
            ended(again, 0)
    assert journal(tmp_path / "run")[: len(finished)] == finished
    assert sorted(journal(tmp_path / "run")) == sorted(f"t{i}" for i in range(12))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_sandboxes_on_a_cluster_end_with_the_command(tmp_path: Path, signum: signal.Signals) -> None:
    """The workers stay, and are free for the next."""
    with scheduler(tmp_path) as (_, address), a_worker(tmp_path, address, NAP="60"):
        with agentix_run(tmp_path, "--dask", address) as run:
            eventually(lambda: len(os.listdir(tmp_path / "boxes")) == 2, 60)
            run.send_signal(signum)
            run.communicate(timeout=60)
        assert run.returncode == (130 if signum == signal.SIGINT else -9)
        eventually(lambda: sandboxes(tmp_path / "boxes") == [], 60)
        with distributed.Client(address, set_as_default=False) as client:
            assert client.submit(int, "7").result(60) == 7


def test_what_a_cluster_lacks_is_one_line_before_anything_runs(tmp_path: Path) -> None:
    """A resource that no worker offers; a worker without the runner."""
    nothing = tmp_path / "nothing" / "agentix_runner"
    nothing.mkdir(parents=True)
    (nothing / "__init__.py").write_text("raise ModuleNotFoundError('No module named agentix_runner')")
    with scheduler(tmp_path) as (_, address):
        with a_worker(tmp_path, address, PYTHONPATH=str(nothing.parent)) as worker:
            with distributed.Client(address, set_as_default=False) as client:
                client.wait_for_workers(1, timeout=60)
            with agentix_run(tmp_path, "--dask", address, "--dask-resource", "GPU=1") as run:
                _, err = ended(run, 2)
            assert err.startswith(
                "Error: no Dask worker offers 1 of resource 'GPU' (none has any): start workers with "
            )
            with agentix_run(tmp_path, "--dask", address) as run:
                _, err = ended(run, 2)
            assert err.startswith("Error: a Dask worker can't load the adapters (")
            assert "No module named agentix_runner" in err
            assert err.count("\n") == 1
            assert worker.poll() is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dask", "local:none"], "--dask local:none: give local:N with the number of worker processes, local:4 say"),
        (["--dask", "cluster"], "--dask cluster is no address (missing port number in address 'cluster'): give "),
        (["--dask-resource", "GPU=1"], "--dask-resource needs --dask: give the cluster's address, or leave it out"),
        (["--dask-resource", "GPU"], "Invalid value for '--dask-resource': 'GPU' is not a valid K=N"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(tmp_path: Path, args: list[str], message: str) -> None:
    """Nothing is started, and there is no run directory."""
    with agentix_run(tmp_path, *args) as done:
        _, err = ended(done, 2)
    assert err.startswith(f"Error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
