"""How many rollouts run at once, and where their outcomes go.

Jobs go to a `ThreadPoolExecutor`; each of its threads supervises one slot. An outcome passes the journal, if there is
one, before anyone is told, and reaches the caller's thread through a queue, where callbacks run.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .deadline import STOP_TEARDOWN_S, Clock, Job, Slot
from .errors import Stopped
from .outcome import fail
from .records import Rollout

if TYPE_CHECKING:
    from .checks import Planned
    from .rundir import RunDir

logger = logging.getLogger("agentix_runner")

TICK_S = 0.2
"""How often (seconds) the caller's thread looks up while nothing happens."""

REFRESH_S = 30.0
"""The least time (seconds) between two refreshes of the files that are derived from the journal."""


JOURNAL_S = 60.0
"""How long (seconds) the last outcomes may take to be written."""


class Item:
    """One rollout of a batch, as it is on its way: what to run, and where what it emits goes."""

    __slots__ = ("attempt", "emit", "index", "instance", "instance_id", "log", "save", "shared")

    def __init__(self, index: int, planned: Planned, batch: Batch) -> None:
        self.index = index
        self.instance = planned.instance
        self.instance_id = planned.instance_id
        self.attempt = planned.attempt
        self.shared = batch
        self.emit: Callable[[str], None] = _ignore
        self.log: Callable[[bytes], None] | None = None
        self.save: Callable[[Mapping[str, str | bytes]], None] = _ignore
        if batch.wants_events:
            self.emit = lambda phase: batch.tell((self.instance_id, phase))
        if batch.journal is not None:
            journal = batch.journal
            self.log = journal.log(self.instance_id, self.attempt)
            self.save = lambda files: journal.save(self.instance_id, self.attempt, files)


def _ignore(value: Any) -> None:
    """Nobody wants to know."""


class Batch:
    """One run: made without starting anything, run by iterating over `outcomes()`, ended by `close()`."""

    def __init__(
        self,
        jobs: Sequence[Planned],
        *,
        work: Callable[[Item, Job, Slot], None],
        clock: Clock,
        model: str | None,
        n_concurrent: int,
        needs_loop: bool,
        max_errors: float | None,
        journal: RunDir | None,
        stop: threading.Event | None,
        on_result: Callable[[Rollout], None] | None,
        on_event: Callable[[str, str], None] | None,
        progress: Any,
    ) -> None:
        self.size = len(jobs)
        self.journal = journal
        self.needs_loop = needs_loop
        self.wants_events = on_event is not None or progress is not None
        self._jobs = jobs
        self._work = work
        self._clock = clock
        self._model = model
        self._n_concurrent = n_concurrent
        self._allowed_errors = _allowed(max_errors, len(jobs))
        self._user_stop = stop
        self._on_result = on_result
        self._on_event = on_event
        self._progress = progress

        self._stop = threading.Event()
        self._reason = "the run was stopped"
        self._errors = 0
        self._errors_lock = threading.Lock()
        self._live: set[Job] = set()
        self._slots: set[Slot] = set()
        self._mine = threading.local()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()  # to the caller's thread
        self._ended: queue.SimpleQueue[Any] = self._events if journal is None else queue.SimpleQueue()
        self._index: dict[Future[Rollout], int] = {}
        self._unended: set[Future[Rollout]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._helpers: list[threading.Thread] = []
        self._closed = threading.Event()

    # ------------------------------------------------------------ in the caller's thread

    def outcomes(self) -> Iterator[tuple[int, Rollout]]:
        """Run the batch: (index, rollout) as they end, those of an earlier run first.

        Raises: JournalError. Whatever is raised, or closing this iterator, stops the run.
        """
        earlier = {} if self.journal is None else self.journal.finished
        todo, done = [], []
        for index, planned in enumerate(self._jobs):
            known = earlier.get((planned.instance_id, planned.attempt))
            if known is None:
                todo.append((index, planned))
            else:
                done.append((index, known))
        self._show("start", total=self.size, finished=[rollout for _, rollout in done])
        try:
            yield from done
            yield from self._run(todo)
        finally:
            self.close()

    def _run(self, todo: list[tuple[int, Planned]]) -> Iterator[tuple[int, Rollout]]:
        left = len(todo)
        self._start(todo)
        while left:
            try:
                item = self._events.get(timeout=TICK_S)
            except queue.Empty:
                self._show("tick")
                continue
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, tuple):
                self._show("event", *item)
                self._call(self._on_event, *item)
                continue
            left -= 1
            index = self._index.pop(item)
            rollout = self._rollout_of(item, index)
            if rollout.ran:
                self._show("result", rollout)
                self._call(self._on_result, rollout)
            yield index, rollout

    def _start(self, todo: list[tuple[int, Planned]]) -> None:
        self._pool = ThreadPoolExecutor(self._n_concurrent, thread_name_prefix="agentix-supervisor")
        if self.journal is not None:
            self._help(self._keep_journal)
        if self._user_stop is not None:
            if self._user_stop.is_set():
                self.stop("the run was stopped")
            self._help(self._watch_stop)
        for index, planned in todo:
            future = self._pool.submit(self._supervise, Item(index, planned, self), contextvars.copy_context())
            self._index[future] = index
            self._unended.add(future)
            future.add_done_callback(self._on_end)

    def _on_end(self, future: Future[Rollout]) -> None:
        # In this order: once a future is not among the unended, its outcome is on its way.
        self._ended.put(future)
        self._unended.discard(future)

    def _rollout_of(self, future: Future[Rollout], index: int) -> Rollout:
        if not future.cancelled() and future.exception() is None:
            return future.result()
        rollout = self._new_rollout(self._jobs[index])
        error = None if future.cancelled() else future.exception()
        fail(rollout, "session", error or self._stopped())
        return rollout

    def _new_rollout(self, planned: Planned | Item) -> Rollout:
        return Rollout(planned.instance_id, attempt=planned.attempt, model=self._model)

    def _show(self, what: str, *args: Any, **kwargs: Any) -> None:
        if self._progress is not None:
            self._call(getattr(self._progress, what), *args, **kwargs)

    def _call(self, callback: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> None:
        if callback is None:
            return
        try:
            callback(*args, **kwargs)
        except Exception:
            logger.exception("a callback raised; the run goes on")

    def close(self) -> None:
        """Stop what still runs, wait until it is gone, and release the run directory. Every wait is bounded."""
        if self._closed.is_set():
            return
        try:
            if self._pool is not None:
                if self._index:
                    self.stop("the run was stopped")
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._wait_for_the_rest()
                for slot in list(self._slots):
                    slot.close()
        finally:
            self._closed.set()
            if self.journal is not None:
                self._ended.put(None)
            for helper in self._helpers:
                helper.join(JOURNAL_S)
            if self.journal is not None:
                self.journal.close()
            self._show("close")
        for slot in list(self._slots):
            slot.join(self._clock.grace)

    def _wait_for_the_rest(self) -> None:
        # Each of them comes back by itself: a phase that is ended, the grace to come back, the removal of a sandbox.
        until = time.monotonic() + 2 * self._clock.grace + 2 * STOP_TEARDOWN_S
        while self._unended and time.monotonic() < until:
            time.sleep(0.005)
        if self._unended:
            logger.warning("%d rollouts did not end in time; they are left behind", len(self._unended))

    # ------------------------------------------------------------ from any thread

    def tell(self, event: tuple[str, str]) -> None:
        """Pass a (instance id, phase) on to the caller's thread."""
        self._events.put(event)

    def stop(self, reason: str) -> None:
        """Start nothing more, and end what runs. Returns at once; idempotent."""
        with self._errors_lock:
            if self._stop.is_set():
                return
            self._reason = reason
            self._stop.set()
        for job in list(self._live):
            job.wake()

    def _stopped(self) -> Stopped:
        return Stopped(self._reason)

    # ------------------------------------------------------------ on the pool's threads

    def _supervise(self, item: Item, context: contextvars.Context) -> Rollout:
        rollout = self._new_rollout(item)
        if self._stop.is_set():
            fail(rollout, "session", self._stopped())
            return rollout
        rollout.started_at = time.time()
        job = Job(rollout, self._clock, self._stop, self._stopped)
        self._live.add(job)
        try:
            slot = self._slot()
            if not slot.supervise(item, job, context):
                self._slots.discard(slot)
                del self._mine.slot
                fail(job.rollout, job.phase, job.ending or self._stopped())
        finally:
            self._live.discard(job)
            if self.journal is not None:
                self.journal.close_log(item.instance_id, item.attempt)
        if job.rollout.error is not None and job.rollout.ran:
            self._count_error()
        return job.rollout

    def _slot(self) -> Slot:
        slot: Slot | None = getattr(self._mine, "slot", None)
        if slot is None:
            slot = self._mine.slot = Slot(self._work)
            self._slots.add(slot)
        return slot

    def _count_error(self) -> None:
        with self._errors_lock:
            self._errors += 1
            too_many = self._errors > self._allowed_errors
        if too_many:
            self.stop(f"more than {self._allowed_errors:g} rollouts have an error (max_errors)")

    # ------------------------------------------------------------ on threads of their own

    def _help(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"agentix{target.__name__}", daemon=True)
        thread.start()
        self._helpers.append(thread)

    def _watch_stop(self) -> None:
        assert self._user_stop is not None
        while not self._closed.is_set():
            if self._user_stop.wait(TICK_S):
                self.stop("the run was stopped")
                return

    def _keep_journal(self) -> None:
        """Write what has ended, many at once where they come fast, and only then pass it on."""
        assert self.journal is not None
        refresh_at = time.monotonic() + REFRESH_S
        more = True
        while more:
            try:
                ended = [self._ended.get(timeout=1.0)]
            except queue.Empty:
                ended = []
            while not self._ended.empty():
                ended.append(self._ended.get())
            more = None not in ended
            futures = [future for future in ended if future is not None]
            try:
                self.journal.record([r for r in map(_value, futures) if r is not None and r.ran])
                if time.monotonic() >= refresh_at:
                    began = time.monotonic()
                    self.journal.refresh()
                    # A large run's refresh takes longer: never more than a twentieth of the time goes into it.
                    refresh_at = time.monotonic() + max(REFRESH_S, 20 * (time.monotonic() - began))
            except Exception as exc:
                self.stop(f"the journal can't be written: {exc}")
                self._events.put(exc)
                return
            for future in futures:
                self._events.put(future)


def _value(future: Future[Rollout]) -> Rollout | None:
    return None if future.cancelled() or future.exception() is not None else future.result()


def _allowed(max_errors: float | None, size: int) -> float:
    """How many rollouts may have an error: a count as it is, a fraction of the batch below 1."""
    if max_errors is None:
        return float("inf")
    return max_errors if max_errors >= 1 else max_errors * size
