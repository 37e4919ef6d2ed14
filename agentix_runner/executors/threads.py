"""Rollouts in this process: each is supervised by the thread that asks for it, and runs on the thread of a slot."""

from __future__ import annotations

import contextvars
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from ..records import Rollout, Timeouts
from ..rollout import slots
from ..rollout.job import Job, Options, Sink, Stop
from ..rollout.phases import Adapters, run_on_slot
from ..rollout.result import record_failure
from ..rollout.slots import Slot, Supervision
from .handover import Handover


class ThreadExecutor:
    """Runs rollouts in this process, as many at once as threads ask for one."""

    is_here = True

    def __init__(self, options: Options) -> None:
        self._adapters = Adapters(options)
        self._limits = slots.limits_of(options.timeouts or Timeouts())
        self._running: set[Supervision] = set()
        self._slots: set[Slot] = set()
        self._idle: list[Slot] = []  # those without work, for whoever comes next
        self._ended = False

    @property
    def needs_loop(self) -> bool:
        return self._adapters.needs_loop

    def start(self, run_id: str, stop: Stop) -> None:
        self._adapters.run_id = run_id
        self._stop = stop
        self._context = contextvars.copy_context()

    def run(self, job: Job, sink: Sink) -> Rollout:
        return self.supervise(job, sink, self._stop, self._context.copy())

    def supervise(self, job: Job, sink: Sink, stop: Stop, context: contextvars.Context) -> Rollout:
        """Run one rollout to its outcome, which `stop` may bring about early."""
        rollout = job.new_rollout(self._adapters.options.model)
        rollout.started_at = time.time()
        supervision = Supervision(rollout, self._limits, stop)
        slot = self._take_slot()
        self._running.add(supervision)
        try:
            if slot.run(partial(run_on_slot, self._adapters, job, sink, supervision), supervision, context):
                self._idle.append(slot)
                if self._ended:
                    self.end()  # which may not have seen this one
            else:
                self._slots.discard(slot)
                record_failure(supervision.rollout, supervision.phase, supervision.ending or stop.error())
        finally:
            self._running.discard(supervision)
        return supervision.rollout

    def stop(self) -> None:
        for supervision in list(self._running):
            supervision.wake()

    def end(self) -> None:
        """Let the threads of slots without work end, now and from now on. Waits for nothing."""
        self._ended = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def close(self) -> None:
        self.end()
        until = time.monotonic() + slots.GRACE_S
        for slot in list(self._slots):
            slot.join(max(until - time.monotonic(), 0))

    def _take_slot(self) -> Slot:
        try:
            return self._idle.pop()
        except IndexError:
            slot = Slot()
            self._slots.add(slot)
            return slot


class PoolExecutor(ThreadExecutor):
    """The same, but the threads of somebody's pool supervise. The pool is left as it is."""

    def __init__(self, options: Options, pool: ThreadPoolExecutor) -> None:
        super().__init__(options)
        self._pool = pool

    def start(self, run_id: str, stop: Stop) -> None:
        super().start(run_id, stop)
        self._handover = Handover(stop)

    def run(self, job: Job, sink: Sink) -> Rollout:
        run = super().run
        future = self._handover.wait(job.number, lambda: self._pool.submit(run, job, sink))
        if future is not None:
            return future.result()
        rollout = job.new_rollout(self._adapters.options.model)
        record_failure(rollout, "session", self._stop.error())
        return rollout

    def stop(self) -> None:
        super().stop()
        self._handover.cancel()

    def close(self) -> None:
        self._handover.release()
        super().close()
