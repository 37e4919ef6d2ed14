"""The near end of rollouts that run in other processes: jobs out, outcomes in.

What comes back is put where it would have gone here: events to the callbacks, prints and files into the run directory,
log records into this process's log. It comes with the outcome, all at once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import TYPE_CHECKING

from ..errors import BadAdapter, WorkerDied, describe
from ..records import Rollout
from ..rollout.phases import Item, Spec
from ..rollout.result import fail
from ..rollout.slots import STOP_TEARDOWN_S
from ..threads import bounded
from .lines import log_again
from .remote_job import Outcome, check_instances

if TYPE_CHECKING:
    from ..batch.checks import Planned
    from .executor import Run

logger = logging.getLogger("agentix_runner")

QUIET_S = 30.0
"""How long (seconds) nothing may come back before it is asked why."""


class Trip:
    """A job that is out there."""

    __slots__ = ("item", "name", "promise")

    def __init__(self, name: str, item: Item) -> None:
        self.name = name
        self.item = item
        self.promise: Future[Rollout] = Future()


class Elsewhere:
    """A place in other processes, by way of an executor. Each kind of executor adds how a job gets there (`send`) and
    how a stop does (`reach`)."""

    is_here = False

    def __init__(
        self, executor: Executor, spec: Spec, *, n_concurrent: int, keeps: bool, jobs: Sequence[Planned]
    ) -> None:
        check_instances(jobs)
        self.limit: float = n_concurrent
        self.executor = executor
        self.spec = spec
        self.keeps = keeps
        self.run: Run
        self._sent = 0
        self._out: dict[Future[Outcome], Trip] = {}
        self._arrived: queue.SimpleQueue[Future[Outcome] | None] = queue.SimpleQueue()
        self._receiver = threading.Thread(target=self._receive, name="agentix-outcomes", daemon=True)
        self._reaching: threading.Thread | None = None

    # ------------------------------------------------------------ each kind's own

    def prepare(self) -> None:
        """Get ready, when the run starts. Raises: BadArgument."""

    def send(self, name: str, item: Item) -> Future[Outcome]:
        """Give the job to the executor, to run by the name of `name`. Raises: RuntimeError where it takes none."""
        raise NotImplementedError

    def reach(self) -> None:
        """Let the rollouts that are running know that the run is stopping. May take its time."""

    def explain(self, error: BaseException) -> BaseException:
        """The error of a rollout whose future ended with `error` and not with an outcome."""
        if isinstance(error, BrokenExecutor):
            return WorkerDied(f"a process of the executor died: {error}")
        return error

    def dropped(self) -> str:
        """Why a future was cancelled, though not by this."""
        return "the executor was shut down, or has dropped what it was to run"

    def look(self) -> None:
        """Nothing has come back for a while: tell if something is wrong."""

    def clean_up(self) -> None:
        """Undo `prepare`."""

    # ------------------------------------------------------------ as a place

    def start(self, run: Run) -> None:
        self.run = run
        self.prepare()
        self._receiver.start()

    def submit(self, item: Item) -> Future[Rollout]:
        self._sent += 1
        trip = Trip(str(self._sent), item)
        future = self.send(trip.name, item)
        self._out[future] = trip
        future.add_done_callback(self._arrived.put)
        return trip.promise

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
        bounded("taking back what the executor has not run", self.take_back, STOP_TEARDOWN_S)
        if self._receiver.ident is not None:
            self._arrived.put(None)
            self._receiver.join(STOP_TEARDOWN_S)
        for trip in list(self._out.values()):
            trip.promise.cancel()
        bounded("leaving the executor", self.clean_up, STOP_TEARDOWN_S)

    def take_back(self, *, but: Collection[str] = ()) -> None:
        """Cancel what is out there, `but` for those of these names. What is running does not notice."""
        for future, trip in list(self._out.items()):
            if trip.name not in but:
                future.cancel()

    # ------------------------------------------------------------ on the receiver's thread

    def _receive(self) -> None:
        while True:
            try:
                future = self._arrived.get(timeout=QUIET_S)
            except queue.Empty:
                self.look()
                continue
            if future is None:
                return
            trip = self._out.pop(future)
            self._take(trip.item, trip.promise, future)
            del future, trip  # an executor may hold on to what it has made for as long as somebody might ask for it

    def _take(self, item: Item, promise: Future[Rollout], future: Future[Outcome]) -> None:
        if future.cancelled():
            self._stop_run(self.dropped())
            item.done()
            promise.cancel()
            return
        try:
            outcome = future.result()
            rollout = outcome.rollout
            self._unpack(item, outcome)
        except BaseException as exc:
            rollout = item.new_rollout(self.spec.model)
            if isinstance(exc, BadAdapter):
                # A worker that can run none of them would fail them all, faster than others run them.
                self._stop_run(str(exc))
            fail(rollout, "session", self.run.stopped() if isinstance(exc, BadAdapter) else self.explain(exc))
            exc.__traceback__ = None  # Dask keeps the error for as long as the future lives, which its frames hold
        item.done()
        if not rollout.ran:
            if self.run.stopping.is_set():
                fail(rollout, "session", self.run.stopped())  # which knows why
            else:
                fail(rollout, "session", WorkerDied("the worker process ended before the rollout did"))
        promise.set_result(rollout)

    def _stop_run(self, reason: str) -> None:
        if not self.run.stopping.is_set():
            logger.error("the run is stopped: %s", reason)
            self.run.stop(reason)

    def _unpack(self, item: Item, outcome: Outcome) -> None:
        log_again(outcome.lines)
        for phase in outcome.events:
            item.emit(phase)
        if outcome.log and item.log is not None:
            item.log(outcome.log)
        if outcome.files:
            item.save(outcome.files)
