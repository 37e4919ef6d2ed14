"""How many rollouts run at once, and where their outcomes go.

One job for each rollout goes to a `ThreadPoolExecutor(max_workers=n_concurrent)`, whose threads ask an executor (see
executors/) for its outcome. An outcome passes the journal, if there is one, before anyone is told, and reaches the
caller's thread through a queue; there callbacks run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..executors.executor import Executor
from ..records import Rollout
from ..report.progress import Progress
from ..rollout import slots
from ..rollout.job import Job, Options, Stop
from ..rollout.result import record_failure
from ..rundir.directory import RunDir
from .prefetch import Prefetch

logger = logging.getLogger("agentix_runner")

TICK_S = 0.2
"""How often (seconds) the caller's thread looks up while nothing happens."""

REFRESH_S = 30.0
"""The least time (seconds) between two refreshes of the files that are derived from the journal."""

JOURNAL_S = 60.0
"""How long (seconds) the last outcomes may take to be written."""


class Batch:
    """One run: made without starting anything, run by iterating over `outcomes()`, ended by `close()`."""

    def __init__(
        self,
        options: Options,
        jobs: Sequence[Job],
        *,
        executor: Executor,
        run_dir: RunDir | None,
        progress: Progress | None,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._executor = executor
        self._run_dir = run_dir
        self._progress = progress
        self._stop = Stop(executor.stop)
        self._lock = threading.Lock()  # guards the count of errors
        self._errors = 0
        self._allowed_errors = _allowed(options.max_errors, len(jobs))
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()  # to the caller's thread
        tells = options.on_event is not None or progress is not None
        self._put_event = self._events.put if tells else None
        self._ended: queue.SimpleQueue[Any] = self._events if run_dir is None else queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(options.n_concurrent, thread_name_prefix="agentix-run")
        self._futures: list[Future[None]] = []
        self._left = 0  # outcomes that the caller's thread waits for
        self._prefetch: Prefetch | None = None
        self._helpers: list[threading.Thread] = []
        self._closed = threading.Event()

    # ------------------------------------------------------------ in the caller's thread

    def outcomes(self) -> Iterator[tuple[Job, Rollout]]:
        """Run the batch: each job and its rollout as they end, those of an earlier run first.

        Raises: JournalError. Whatever is raised, or closing this iterator, stops the run.
        """
        earlier = {} if self._run_dir is None else self._run_dir.finished
        done = [(job, earlier[job.key]) for job in self._jobs if job.key in earlier]
        todo = [job for job in self._jobs if job.key not in earlier]
        self._show("start", total=len(self._jobs), finished=[rollout for _, rollout in done])
        try:
            yield from done
            self._start(todo)
            while self._left:
                outcome = self._next_outcome()
                if outcome is not None:
                    self._left -= 1
                    yield outcome
        finally:
            self.close()

    def _start(self, todo: Sequence[Job]) -> None:
        self._executor.start(uuid.uuid4().hex[:12] if self._run_dir is None else self._run_dir.run_id, self._stop)
        self._left = len(todo)
        if self._executor.is_here:
            self._prefetch = Prefetch(self._options, todo)
        if self._run_dir is not None:
            self._help(self._keep_journal)
        if self._options.stop is not None:
            if self._options.stop.is_set():
                self._stop.set()
            self._help(self._watch_stop)
        for job in todo:
            self._futures.append(self._pool.submit(self._run, job))

    def _next_outcome(self) -> tuple[Job, Rollout] | None:
        """Wait for what happens next, and tell of it. None: it was something else than an outcome."""
        try:
            item = self._events.get(timeout=TICK_S)
        except queue.Empty:
            self._show("tick")
            return None
        if isinstance(item, BaseException):
            raise item
        first, second = item
        if isinstance(second, Rollout):
            if second.ran:
                self._show("result", second)
                self._call(self._options.on_result, second)
            return first, second
        self._show("event", first, second)
        self._call(self._options.on_event, first, second)
        return None

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
            if self._left:
                self._stop.set()
                # Each comes back by itself: a phase that is ended, the grace to come back, the removal of a sandbox.
                _, unended = wait(self._futures, 2 * slots.GRACE_S + 2 * slots.STOP_TEARDOWN_S)
                if unended:
                    logger.warning("%d rollouts did not end in time; they are left behind", len(unended))
            self._executor.close()
            if self._prefetch is not None:
                self._prefetch.close()
                self._prefetch.join(slots.GRACE_S)
        finally:
            self._closed.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._ended.put(None)
            for helper in self._helpers:
                helper.join(JOURNAL_S)
            if self._run_dir is not None:
                self._run_dir.close()
            self._show("close")

    # ------------------------------------------------------------ on the pool's threads

    def _run(self, job: Job) -> None:
        """One rollout, to its outcome in the queue."""
        rollout = job.new_rollout(self._options.model)
        try:
            if self._stop.is_set():
                record_failure(rollout, "session", self._stop.error())
            else:
                sink = _RunSink(job, self._run_dir, self._put_event)
                rollout = self._executor.run(job, sink)
                sink.close()
        except BaseException as exc:  # no more threads, say
            record_failure(rollout, "session", exc)
        if rollout.error is not None and rollout.ran:
            self._count_error()
        if self._prefetch is not None:
            self._prefetch.done_with(job)
        self._ended.put((job, rollout))

    def _count_error(self) -> None:
        with self._lock:
            self._errors += 1
            too_many = self._errors > self._allowed_errors
        if too_many:
            self._stop.set(f"more than {self._allowed_errors:g} rollouts have an error (max_errors)")

    # ------------------------------------------------------------ on threads of their own

    def _help(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"agentix{target.__name__}", daemon=True)
        thread.start()
        self._helpers.append(thread)

    def _watch_stop(self) -> None:
        assert self._options.stop is not None
        while not self._closed.is_set():
            if self._options.stop.wait(TICK_S):
                self._stop.set()
                return

    def _keep_journal(self) -> None:
        """Write what has ended, many at once where they come fast, and only then pass it on."""
        assert self._run_dir is not None
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
            outcomes = [outcome for outcome in ended if outcome is not None]
            try:
                self._run_dir.record([rollout for _, rollout in outcomes if rollout.ran])
                if time.monotonic() >= refresh_at:
                    began = time.monotonic()
                    self._run_dir.refresh()
                    # A large run's refresh takes longer: never more than a twentieth of the time goes into it.
                    refresh_at = time.monotonic() + max(REFRESH_S, 20 * (time.monotonic() - began))
            except Exception as exc:
                self._stop.set(f"the journal can't be written: {exc}")
                self._events.put(exc)
                return
            for outcome in outcomes:
                self._events.put(outcome)


class _RunSink:
    """Where what one rollout emits goes: events to the caller's thread, prints and files into the run directory."""

    def __init__(self, job: Job, run_dir: RunDir | None, put: Callable[[tuple[str, str]], None] | None) -> None:
        self._job = job
        self._run_dir = run_dir
        self._put = put
        self.log = None if run_dir is None else run_dir.log(*job.key)

    def event(self, phase: str) -> None:
        if self._put is not None:
            self._put((self._job.instance_id, phase))

    def save(self, files: Mapping[str, str | bytes]) -> None:
        if self._run_dir is not None:
            self._run_dir.save(*self._job.key, files)

    def close(self) -> None:
        if self._run_dir is not None:
            self._run_dir.close_log(*self._job.key)


def _allowed(max_errors: float | None, size: int) -> float:
    """How many rollouts may have an error: a count as it is, a fraction of the batch below 1."""
    if max_errors is None:
        return float("inf")
    return max_errors if max_errors >= 1 else max_errors * size
