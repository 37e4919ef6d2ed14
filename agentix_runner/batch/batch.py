"""How many rollouts run at once, and where their outcomes go.

Jobs go to a place (see executors/), as many as it takes. An outcome passes the journal, if there is one, before anyone
is told, and reaches the caller's thread through a queue, where callbacks run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import Stopped, describe
from ..records import Rollout
from ..rollout import slots
from ..rollout.phases import Item
from ..rollout.result import fail

if TYPE_CHECKING:
    from ..executors.executor import Place
    from ..rundir.directory import RunDir
    from .checks import Planned

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
        jobs: Sequence[Planned],
        *,
        place: Place,
        run_id: str,
        model: str | None,
        max_errors: float | None,
        journal: RunDir | None,
        stop: threading.Event | None,
        on_result: Callable[[Rollout], None] | None,
        on_event: Callable[[str, str], None] | None,
        progress: Any,
    ) -> None:
        self.size = len(jobs)
        self.run_id = run_id
        self.stopping = threading.Event()
        self.coming: Sequence[Planned] = ()
        self._jobs = jobs
        self._place = place
        self._model = model
        self._journal = journal
        self._allowed_errors = _allowed(max_errors, len(jobs))
        self._user_stop = stop
        self._on_result = on_result
        self._on_event = on_event
        self._progress = progress

        self._reason = "the run was stopped"
        self._lock = threading.Lock()
        self._errors = 0
        self._todo: deque[tuple[int, Planned]] = deque()
        self._handed_over = 0  # and not ended yet
        self._filling = False
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()  # to the caller's thread
        self._ended: queue.SimpleQueue[Any] = self._events if journal is None else queue.SimpleQueue()
        self._index: dict[Future[Rollout], int] = {}
        self._unended: set[Future[Rollout]] = set()
        self._started = False
        self._helpers: list[threading.Thread] = []
        self._closed = threading.Event()

    # ------------------------------------------------------------ in the caller's thread

    def outcomes(self) -> Iterator[tuple[int, Rollout]]:
        """Run the batch: (index, rollout) as they end, those of an earlier run first.

        Raises: JournalError. Whatever is raised, or closing this iterator, stops the run.
        """
        earlier = {} if self._journal is None else self._journal.finished
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
        self._started = True
        self.coming = [planned for _, planned in todo]
        self._place.start(self)
        self._todo.extend(todo)
        if self._journal is not None:
            self._help(self._keep_journal)
        if self._user_stop is not None:
            if self._user_stop.is_set():
                self.stop("the run was stopped")
            self._help(self._watch_stop)
        self._fill()

    def _rollout_of(self, future: Future[Rollout], index: int) -> Rollout:
        if not future.cancelled() and future.exception() is None:
            return future.result()
        planned = self._jobs[index]
        rollout = Rollout(planned.instance_id, attempt=planned.attempt, model=self._model)
        error = None if future.cancelled() else future.exception()
        fail(rollout, "session", error or self.stopped())
        return rollout

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
            if self._started:
                if self._index or self._todo:
                    self.stop("the run was stopped")
                    self._wait_for_the_rest()
                self._place.close()
        finally:
            self._closed.set()
            if self._journal is not None:
                self._ended.put(None)
            for helper in self._helpers:
                helper.join(JOURNAL_S)
            if self._journal is not None:
                self._journal.close()
            self._show("close")

    def _wait_for_the_rest(self) -> None:
        # Each of them comes back by itself: a phase that is ended, the grace to come back, the removal of a sandbox.
        until = time.monotonic() + 2 * slots.GRACE_S + 2 * slots.STOP_TEARDOWN_S
        while self._unended and time.monotonic() < until:
            time.sleep(0.005)
        if self._unended:
            logger.warning("%d rollouts did not end in time; they are left behind", len(self._unended))

    # ------------------------------------------------------------ from any thread

    def stop(self, reason: str) -> None:
        """Start nothing more, and end what runs. Returns at once; idempotent."""
        with self._lock:
            if self.stopping.is_set():
                return
            self._reason = reason
            self.stopping.set()
        self._place.stop()

    def stopped(self) -> Stopped:
        """The error of what did not run because the run was stopped."""
        return Stopped(self._reason)

    def _fill(self) -> None:
        """Hand over as many jobs as the place takes. Once the run is stopping, the rest come back as they are."""
        with self._lock:
            if self._filling:
                return  # whoever is at it looks again before it leaves
            self._filling = True
        while (job := self._next_job()) is not None:
            index, planned = job
            future = self._hand_over(planned)
            self._index[future] = index
            self._unended.add(future)
            future.add_done_callback(self._on_end)

    def _next_job(self) -> tuple[int, Planned] | None:
        with self._lock:
            if self._todo and (self._handed_over < self._place.limit or self.stopping.is_set()):
                self._handed_over += 1
                return self._todo.popleft()
            self._filling = False
            return None

    def _hand_over(self, planned: Planned) -> Future[Rollout]:
        if not self.stopping.is_set():
            try:
                return self._place.submit(self._item(planned))
            except RuntimeError as exc:  # shut down, or broken
                self.stop(f"the executor takes no more work ({describe(exc)})")
            except Exception as exc:
                self.stop(describe(exc))
                self._events.put(exc)
        future: Future[Rollout] = Future()
        future.cancel()
        return future

    def _item(self, planned: Planned) -> Item:
        item = Item(planned.instance, planned.instance_id, planned.attempt)
        if self._on_event is not None or self._progress is not None:
            item.emit = lambda phase: self._events.put((item.instance_id, phase))
        if self._journal is not None:
            journal, key = self._journal, (item.instance_id, item.attempt)
            item.log = journal.log(*key)
            item.save = partial(journal.save, *key)
            item.done = partial(journal.close_log, *key)
        return item

    def _on_end(self, future: Future[Rollout]) -> None:
        rollout = _value(future)
        if rollout is not None and rollout.error is not None and rollout.ran:
            self._count_error()
        # In this order: once a future is not among the unended, its outcome is on its way.
        self._ended.put(future)
        self._unended.discard(future)
        with self._lock:
            self._handed_over -= 1
        self._fill()

    def _count_error(self) -> None:
        with self._lock:
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
        assert self._journal is not None
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
                self._journal.record([r for r in map(_value, futures) if r is not None and r.ran])
                if time.monotonic() >= refresh_at:
                    began = time.monotonic()
                    self._journal.refresh()
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
