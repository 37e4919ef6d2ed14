"""Rollouts on threads of this process: a pool of one's own, or one that was handed in.

Each of the pool's threads supervises one slot (see deadline.py).
"""

from __future__ import annotations

import contextvars
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from ..batch.prefetch import Ahead
from ..records import Rollout
from ..rollout.phases import Item, Spec, run_on_slot
from ..rollout.result import fail
from ..rollout.slots import Clock, Job, Slot

if TYPE_CHECKING:
    from .executor import Run


class Threads:
    """A place: threads of this process. Ends its slots, and its pool unless that is somebody else's."""

    is_here = True

    def __init__(self, pool: ThreadPoolExecutor | None, spec: Spec, *, n_concurrent: int) -> None:
        self.needs_loop = spec.needs_loop
        # A pool of its own has the threads that the run may use, and queues the rest. In another's the run holds back.
        self.limit = float("inf") if pool is None else n_concurrent
        self._n_concurrent = n_concurrent
        self._given = pool
        self._pool = pool
        self._spec = spec
        self._clock = Clock(spec.timeouts)
        self._live: set[Job] = set()
        self._slots: set[Slot] = set()
        self._mine = threading.local()
        self._waiting: set[Future[Rollout]] = set()

    def start(self, run: Run) -> None:
        self._run = run
        self._spec = evolve(self._spec, run_id=run.run_id)
        self._context = contextvars.copy_context()
        self._ahead = Ahead(self._spec, run.coming, self._context.copy())
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._n_concurrent, thread_name_prefix="agentix-supervisor")

    def submit(self, item: Item) -> Future[Rollout]:
        assert self._pool is not None
        item.shared = self
        future = self._pool.submit(self._supervise, item, self._context.copy())
        future.add_done_callback(lambda _: self._ahead.over(item.instance_id, item.attempt))
        if self._given is not None:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
        return future

    def stop(self) -> None:
        for job in list(self._live):
            job.wake()
        if self._given is None:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
        else:
            # It may be busy with something else: what waits in it is taken back.
            for future in list(self._waiting):
                future.cancel()

    def close(self) -> None:
        if self._pool is not None and self._given is None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._ahead.close()
        for slot in list(self._slots):
            slot.close()
        until = time.monotonic() + self._clock.grace
        for slot in list(self._slots):
            slot.join(max(until - time.monotonic(), 0))
        self._ahead.join(max(until - time.monotonic(), 0))

    def _supervise(self, item: Item, context: contextvars.Context) -> Rollout:
        rollout = item.new_rollout(self._spec.model)
        if self._run.stopping.is_set():
            fail(rollout, "session", self._run.stopped())
            return rollout
        rollout.started_at = time.time()
        job = Job(rollout, self._clock, self._run.stopping, self._run.stopped)
        self._live.add(job)
        try:
            slot = self._slot()
            if not slot.supervise(item, job, context):
                self._slots.discard(slot)
                del self._mine.slot
                fail(job.rollout, job.phase, job.ending or self._run.stopped())
        finally:
            self._live.discard(job)
            item.done()
        return job.rollout

    def _slot(self) -> Slot:
        slot: Slot | None = getattr(self._mine, "slot", None)
        if slot is None:
            slot = self._mine.slot = Slot(partial(run_on_slot, self._spec))
            self._slots.add(slot)
        return slot
