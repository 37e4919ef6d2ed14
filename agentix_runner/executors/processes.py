"""Rollouts by any other executor, a `ProcessPoolExecutor` for one.

What the rollouts share is in a file, which is there for as long as the run wants them: a process of this machine
reads it there, and stops what it is at when the file goes, or the process that started it does. Elsewhere, with an
executor that leads to other machines, it goes along with each rollout, and a stop means that no new one starts.

What comes back is put where it would have gone here, all at once, when the rollout has ended. `run_remote_job` and what
is below it run in the other process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any

from attrs import frozen

from ..errors import BadAdapter, Stopped, WorkerDied, describe
from ..providers.owners import Owner
from ..records import Rollout
from ..rollout.job import Job, Options, Sink, Stop
from ..rollout.result import record_failure
from ..rollout.slots import STOP_TEARDOWN_S
from ..threads import bounded
from .handover import Handover
from .remote_job import JobResult, JobRunner, check_jobs, pack, pack_job, this_process

logger = logging.getLogger("agentix_runner")

WATCH_S = 0.2
"""How often (seconds) a process looks whether the run goes on."""


class ProcessExecutor:
    """Runs rollouts in other processes, by way of an executor of which nothing is known but that it runs functions.

    Another kind of executor may add how a rollout gets there (`submit`) and how a stop does (`reach`).
    """

    is_here = False

    def __init__(self, options: Options, jobs: Sequence[Job]) -> None:
        check_jobs(jobs)
        self.executor: Any = options.executor
        self.options = options
        self.parcel = self.pack()
        self.run_id = ""
        self.handover: Handover
        self.run_stop: Stop
        self._reaching: threading.Thread | None = None
        self._folder = ""

    # ------------------------------------------------------------ each kind's own

    def pack(self) -> bytes:
        """What the rollouts share. Raises: BadArgument."""
        return pack(self.options)

    def prepare(self) -> None:
        """Get ready, when the run starts. Raises: BadArgument."""
        self._folder = tempfile.mkdtemp(prefix="agentix-run-")
        path = os.path.join(self._folder, "parcel")
        with open(path, "wb") as file:
            file.write(self.parcel)
        parcel = None if isinstance(self.executor, ProcessPoolExecutor) else self.parcel
        self._ticket = Ticket(this_process(), Owner.current(), path, self.run_id, parcel)

    def submit(self, job: Job, instance: bytes) -> Future[JobResult]:
        """Give a rollout to the executor. Raises: RuntimeError where it takes none."""
        future: Future[JobResult] = self.executor.submit(run_remote_job, self._ticket, job, instance)
        return future

    def reach(self) -> None:
        """Let the rollouts that are running know that the run is stopping. May take its time."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._ticket.path)
        self.handover.cancel()  # what has not begun

    def explain(self, error: BaseException) -> BaseException:
        """The error of a rollout whose future ended with `error` and not with an outcome."""
        if isinstance(error, BrokenExecutor):
            return WorkerDied(f"a process of the executor died: {error}")
        return error

    def new_handover(self) -> Handover:
        return Handover(self.run_stop)

    def clean_up(self) -> None:
        """Undo `prepare`."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------ as an executor

    def start(self, run_id: str, stop: Stop) -> None:
        self.run_id = run_id
        self.run_stop = stop
        self.handover = self.new_handover()
        self.prepare()

    def run(self, job: Job, sink: Sink) -> Rollout:
        rollout = job.new_rollout(self.options.model)
        future = self.handover.wait(job.number, lambda: self.submit(*pack_job(job)))
        error = None if future is None else future.exception()
        if future is None:
            record_failure(rollout, "session", self.run_stop.error())
        elif error is None:
            result = future.result()
            result.emit(sink)
            rollout = result.rollout
            rollout.model = self.options.model  # a process that could load nothing does not know it
        elif isinstance(error, BadAdapter):
            # A worker that can run none of them would fail them all, faster than others run them.
            self.handover.stop_run(str(error))
            record_failure(rollout, "session", self.run_stop.error())
        else:
            record_failure(rollout, "session", self.explain(error))
        if error is not None:
            error.__traceback__ = None  # its frames hold the future, for whose life Dask keeps the error
        if not rollout.ran and self.run_stop.is_set():
            record_failure(rollout, "session", self.run_stop.error())  # which knows why
        elif not rollout.ran:
            record_failure(rollout, "session", WorkerDied("the worker process ended before the rollout did"))
        return rollout

    def stop(self) -> None:
        reaching = threading.Thread(target=self._reach, name="agentix-stop", daemon=True)
        reaching.start()
        self._reaching = reaching  # only now: close() may be on its way in another thread, and joins what is there

    def _reach(self) -> None:
        try:
            self.reach()
        except Exception as exc:
            logger.warning("the running rollouts could not be told to stop: %s", describe(exc))

    def close(self) -> None:
        if self._reaching is not None:
            self._reaching.join(STOP_TEARDOWN_S)
            bounded("taking back what the executor has not run", self.handover.cancel, STOP_TEARDOWN_S)
            self.handover.release()
        bounded("leaving the executor", self.clean_up, STOP_TEARDOWN_S)


# ---------------------------------------------------------------- over there


@frozen
class Ticket:
    """How to get at what the rollouts of a run share: in the file `path`, or else in `parcel`."""

    host: str
    owner: Owner
    path: str
    run_id: str
    parcel: bytes | None


_runners: dict[str, JobRunner] = {}
_opening = threading.Lock()  # one runner for a run


def run_remote_job(ticket: Ticket, job: Job, instance: bytes) -> JobResult:
    """Run one rollout in this process. Never raises."""
    try:
        runner = _runner(ticket)
    except Exception as exc:
        error = exc
        if not isinstance(exc, Stopped):
            error = BadAdapter(f"the adapters can't be loaded in the executor's process: {describe(exc, 500)}")
            error.__cause__ = exc
        rollout = job.new_rollout(None)
        record_failure(rollout, "session", error)
        return JobResult(rollout=rollout)
    with _ignoring_interrupts(ticket.host):
        result = runner.run(job, instance)
    if ticket.path not in _runners:
        runner.close()  # made for this rollout alone
    return result


def _runner(ticket: Ticket) -> JobRunner:
    with _opening:
        runner = _runners.get(ticket.path)
        if runner is None:
            shared = os.path.exists(ticket.path)
            parcel = ticket.parcel
            if parcel is None:
                if not shared:
                    raise Stopped("the run was stopped")
                with open(ticket.path, "rb") as file:
                    parcel = file.read()
            runner = JobRunner(parcel, ticket.run_id)
            if shared:
                # Without a watch nobody would know when to let go of it.
                _runners[ticket.path] = runner
                threading.Thread(target=_watch, args=(ticket.path, runner, ticket.owner), daemon=True).start()
        return runner


def _watch(path: str, runner: JobRunner, owner: Owner) -> None:
    # By the owner's number, not by this process's parent, which may be a fork server that outlives the owner.
    while os.path.exists(path) and not owner.is_dead:
        time.sleep(WATCH_S)
    runner.close()
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)  # where nobody else is left to do it
    with _opening:
        del _runners[path]


@contextlib.contextmanager
def _ignoring_interrupts(host: str) -> Iterator[None]:
    """Inside, Ctrl-C is not for this process: a terminal sends it to all, and the one at the other end decides."""
    if host == this_process() or threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that does nothing, since what is ignored would be ignored in the sandbox's processes too.
    before = signal.signal(signal.SIGINT, lambda signum, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
