"""Slots and deadlines: a rollout runs on its slot's thread, and its supervisor bounds every phase of it.

A thread can't be cancelled, so that user code never runs on a thread that the runner needs. The supervisor (a thread
of the pool) hands a `Job` to its slot's daemon thread and waits. At a deadline or a stop it ends the sandbox, which
wakes whatever waits for it, and cancels the rollout's task. Code that still does not return is abandoned: the rollout
has its error, the slot gets a new thread, the old one is left behind. Only code that releases the GIL can be bounded.

Guarantees, all by `Job._lock`: a job has one outcome; an interruption hits the phase it was meant for or none; after
a job is abandoned its thread enters no further phase and its sandbox is closed by whoever holds it last.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import PhaseTimeout, Stopped
from ..records import LIMITED_PHASES, Rollout, Timeouts
from ..threads import bounded
from .bridge import LEFT_OVER_S, Session, SlotLoop, sleep

logger = logging.getLogger("agentix_runner")

GRACE_S = LEFT_OVER_S + 3.0
"""How long (seconds) a phase that was ended may take to come back before its thread is abandoned."""

STOP_TEARDOWN_S = 10.0
"""The most (seconds) that removing a sandbox may take once the run is stopping."""

NEVER = float("inf")


class Abandoned(BaseException):
    """In an abandoned thread: the rollout has had its outcome, get out."""


class Clock:
    """The limits of one run, and what is left of them. Shared by all its jobs; nothing in it changes."""

    def __init__(
        self, timeouts: Timeouts, *, grace: float | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = {phase: getattr(timeouts, phase) or NEVER for phase in LIMITED_PHASES}
        self.total = timeouts.total or NEVER
        self.shortest = min(*self.limits.values(), self.total)
        self.grace = GRACE_S if grace is None else grace
        self.now = now


class Job:
    """One rollout on its way: the phase it is in, until when, and what would have to be ended."""

    def __init__(
        self, rollout: Rollout, clock: Clock, stop: threading.Event, stop_error: Callable[[], Stopped]
    ) -> None:
        self.rollout = rollout
        self.clock = clock
        self.session: Session | None = None
        self.sandbox: Any = None
        self.sandbox_is_async = False
        self.loop: SlotLoop | None = None
        self.done = False
        self._stop = stop
        self._stop_error = stop_error
        self._lock = threading.Lock()
        self._serial = 0  # one more at each beginning and end of a phase
        self._in_phase = False
        self._phase = ""
        self._ending: Exception | None = None  # why the current phase was interrupted
        self._abandoned = False
        self._began = clock.now()
        self._phase_began = self._began
        self._look_at = NEVER
        self._total_at = self._began + clock.total
        self._wake: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ on the slot's thread

    def begin(self, phase: str) -> None:
        """Enter a phase. Raises Stopped, PhaseTimeout (the total is used up) or Abandoned instead of starting it."""
        now = self.clock.now()
        limit = self.clock.limits[phase]
        with self._lock:
            if self._abandoned:
                raise Abandoned
            stopping = self._stop.is_set()
            if phase == "teardown":
                # A sandbox is removed whatever ran out: the total does not count here.
                self._look_at = now + (min(limit, STOP_TEARDOWN_S) if stopping else limit)
            else:
                if stopping:
                    raise self._stop_error()
                if now >= self._total_at:
                    raise self._timeout("total", self.clock.total)
                self._look_at = min(now + limit, self._total_at)
            self._serial += 1
            self._in_phase = True
            self._phase = phase
            self._phase_began = now
            self._ending = None

    def end(self) -> Exception | None:
        """Leave the phase. Returns why it was interrupted, if it was. Raises Abandoned."""
        now = self.clock.now()
        with self._lock:
            if self._abandoned:
                raise Abandoned
            self.rollout.phases.append((self._phase, self._phase_began - self._began, now - self._began))
            self._look_at = NEVER
            self._serial += 1
            self._in_phase = False
            return self._ending

    def finish(self) -> None:
        """The rollout is complete. Raises Abandoned."""
        with self._lock:
            if self._abandoned:
                raise Abandoned
            self.rollout.duration_s = self.clock.now() - self._began
            self.done = True

    def opened(self, session: Session, sandbox: Any, sandbox_is_async: bool) -> None:
        """The rollout has a sandbox now."""
        with self._lock:
            self.session, self.sandbox, self.sandbox_is_async = session, sandbox, sandbox_is_async

    def closed(self) -> None:
        """The rollout's sandbox is gone."""
        with self._lock:
            self.session = self.sandbox = None

    def escaped(self, exc: BaseException) -> None:
        """Some other task of the rollout raised SystemExit or KeyboardInterrupt: it ends the current phase."""
        error = RuntimeError(f"a background task of the rollout raised {type(exc).__name__}: {exc}")
        error.__cause__ = exc
        self.interrupt(error)

    async def sleep(self, seconds: float) -> None:
        """Wait within the current phase. Raises why it must end as soon as it must: a stop, or its limit."""
        left = self._look_at - self.clock.now()
        await sleep(min(seconds, max(left, 0.0)), self._stop)
        if self._stop.is_set():
            raise self._stop_error()
        if self._ending is not None:
            raise self._ending
        if seconds >= left:
            raise self._timeout(self._phase, self.clock.limits[self._phase])

    # ------------------------------------------------------------ on the supervisor's thread

    def wait_s(self) -> float | None:
        """How long the supervisor may sleep, None for as long as nothing wakes it.

        A phase that starts while it sleeps ends no sooner than the shortest limit from now, so that nobody has to
        wake it for that.
        """
        now = self.clock.now()
        until = min(self._look_at, now + self.clock.shortest)
        return None if until == NEVER else max(until - now, 0.0)

    def look(self) -> bool:
        """Interrupt what is overdue or stopped. False once the job should be abandoned."""
        now = self.clock.now()
        with self._lock:
            if self.done or not self._in_phase:
                return True
            if self._ending is not None:
                return now < self._look_at
            if self._stop.is_set() and self._phase != "teardown":
                reason: Exception = self._stop_error()
            elif now >= self._look_at:
                over_all = self._phase != "teardown" and self._look_at == self._total_at
                reason = (
                    self._timeout("total", self.clock.total)
                    if over_all
                    else self._timeout(self._phase, self.clock.limits[self._phase])
                )
            else:
                return True
        self.interrupt(reason)
        return True

    def interrupt(self, reason: Exception) -> None:
        """End the current phase: its sandbox, its task, and with them what waits for either."""
        with self._lock:
            if self._ending is not None or not self._in_phase:
                return
            self._ending = reason
            self._look_at = self.clock.now() + self.clock.grace
            serial, sandbox, loop = self._serial, self.sandbox, self.loop
        kill_sandbox(sandbox, loop, self.clock.grace / 2)
        if loop is not None:
            loop.cancel(lambda: self._serial == serial)

    def abandon(self) -> bool:
        """Give up on the job's thread, and close its sandbox in its place. False if it just came to its end."""
        with self._lock:
            if self.done or self._ending is None:
                return False
            self._abandoned = True
            now = self.clock.now()
            kept = self.rollout
            # The thread may come back to life and write on: the outcome is a copy.
            phases = [*kept.phases, (self._phase, self._phase_began - self._began, now - self._began)]
            copy = Rollout(**{name: getattr(kept, name) for name in _FIELDS})
            copy.phases, copy.duration_s = phases, now - self._began
            self.rollout = copy
        logger.warning(
            "instance %s: code in phase %r did not return %.0f s after it was ended; its thread is left behind",
            kept.instance_id,
            self._phase,
            self.clock.grace,
        )
        if self.session is not None:
            bounded(
                f"instance {kept.instance_id}: closing its session",
                self.session.exit_from_elsewhere,
                min(self.clock.limits["teardown"], STOP_TEARDOWN_S),
            )
        return True

    @property
    def ending(self) -> Exception | None:
        return self._ending

    @property
    def phase(self) -> str:
        return self._phase

    def wake(self) -> None:
        """From any thread: make the supervisor look now."""
        self._wake()

    def _timeout(self, phase: str, limit: float) -> PhaseTimeout:
        return PhaseTimeout(f"{phase} ran past its limit of {limit:g} s", phase=phase, limit_s=limit)


_FIELDS = tuple(name for name in Rollout.__slots__ if name != "__weakref__")


def kill_sandbox(sandbox: Any, loop: SlotLoop | None, limit_s: float) -> None:
    """Call the sandbox's `kill`, if it has one, plain or async, for at most `limit_s` seconds."""
    kill = getattr(sandbox, "kill", None)
    if kill is None:
        return

    def run() -> None:
        result = kill()
        if loop is not None and hasattr(result, "__await__"):
            loop.call(lambda: result).result(limit_s)

    bounded("killing a sandbox", run, limit_s)


class Slot:
    """One daemon thread that runs jobs one after the other, and the thread of its own event loop if one is needed."""

    def __init__(self, run: Callable[[Any, Job, Slot], None]) -> None:
        self._run = run
        self._loop: SlotLoop | None = None
        self._in: queue.SimpleQueue[tuple[Any, Job, contextvars.Context] | None] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="agentix-slot", daemon=True)
        self._thread.start()

    def loop(self) -> SlotLoop:
        """The slot's event loop. On the slot's thread."""
        if self._loop is None:
            self._loop = SlotLoop()
        return self._loop

    def supervise(self, item: Any, job: Job, context: contextvars.Context) -> bool:
        """On the supervisor's thread: run `job` to its outcome. False: it was abandoned, and the slot with it."""
        job._wake = self._wake
        self._in.put((item, job, context))
        while True:
            try:
                if self._out.get(timeout=job.wait_s()) is job:
                    return True
            except queue.Empty:
                pass
            if not job.look() and job.abandon():
                self._in.put(None)
                return False

    def close(self) -> None:
        """Let the thread end once it is idle."""
        self._in.put(None)

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _wake(self) -> None:
        self._out.put(None)

    def _serve(self) -> None:
        while (item := self._in.get()) is not None:
            what, job, context = item
            try:
                context.run(self._run, what, job, self)
            except Abandoned:
                break
            self._out.put(job)
            del item, what, job, context
        if self._loop is not None:
            self._loop.close()
