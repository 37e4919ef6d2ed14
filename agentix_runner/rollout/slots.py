"""Slots and deadlines: a rollout runs on its slot's thread, and its supervisor bounds every phase of it.

A thread can't be cancelled, so that user code never runs on a thread that the runner needs. The supervisor hands the
rollout to a slot's daemon thread and waits. At a deadline or a stop it ends the sandbox, which wakes whatever waits for
it, and cancels the rollout's task. Code that still does not return is abandoned: the rollout has its error, its slot is
given up, thread and all, and the next rollout gets a new one. Only code that releases the GIL can be bounded.

Guarantees, all by `Supervision._lock`: a rollout has one outcome; an interruption hits the phase it was meant for or
none; after a rollout is abandoned its thread enters no further phase, and its sandbox is closed by whoever holds it
last.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..errors import PhaseTimeout
from ..records import LIMITED_PHASES, Rollout, Timeouts
from ..threads import bounded
from .bridge import LEFT_OVER_S, SlotLoop, sleep
from .job import Stop
from .retry import Session

logger = logging.getLogger("agentix_runner")

GRACE_S = LEFT_OVER_S + 3.0
"""How long (seconds) a phase that was ended may take to come back before its thread is abandoned."""

STOP_TEARDOWN_S = 10.0
"""The most (seconds) that removing a sandbox may take once the run is stopping."""

NEVER = float("inf")


class Abandoned(BaseException):
    """In an abandoned thread: the rollout has had its outcome, get out."""


def limits_of(timeouts: Timeouts) -> dict[str, float]:
    """The limit of each phase, and of them all ("total"), in seconds; infinity for no limit."""
    return {phase: getattr(timeouts, phase) or NEVER for phase in (*LIMITED_PHASES, "total")}


class Supervision:
    """One rollout that runs: the phase it is in, until when, and what would have to be ended."""

    def __init__(self, rollout: Rollout, limits: Mapping[str, float], stop: Stop) -> None:
        self.rollout = rollout
        self.limits = limits
        self.session: Session | None = None
        self.sandbox: Any = None
        self.sandbox_is_async = False
        self.loop: SlotLoop | None = None
        self.done = False
        self.phase = ""
        self.ending: Exception | None = None  # why the current phase was interrupted
        self.wake: Callable[[], None] = lambda: None
        """Makes the supervisor look now. From any thread."""
        self._stop = stop
        self._lock = threading.Lock()
        self._serial = 0  # one more at each beginning and end of a phase
        self._in_phase = False
        self._abandoned = False
        self._began = time.monotonic()
        self._phase_began = self._began
        self._look_at = NEVER
        self._total_at = self._began + self.limits["total"]
        self._shortest = min(self.limits.values())

    # ------------------------------------------------------------ on the slot's thread

    def begin(self, phase: str) -> None:
        """Enter a phase. Raises Stopped, PhaseTimeout (the total is used up) or Abandoned instead of starting it."""
        now = time.monotonic()
        limit = self.limits[phase]
        with self._lock:
            self._unless_abandoned()
            stopping = self._stop.is_set()
            if phase == "teardown":
                # A sandbox is removed whatever ran out: the total does not count here.
                self._look_at = now + (min(limit, STOP_TEARDOWN_S) if stopping else limit)
            else:
                if stopping:
                    raise self._stop.error()
                if now >= self._total_at:
                    raise self._timeout("total")
                self._look_at = min(now + limit, self._total_at)
            self._serial += 1
            self._in_phase = True
            self.phase = phase
            self._phase_began = now
            self.ending = None

    def end(self) -> Exception | None:
        """Leave the phase. Returns why it was interrupted, if it was. Raises Abandoned."""
        with self._lock:
            self._unless_abandoned()
            self.rollout.phases.append(self._timed_phase())
            self._look_at = NEVER
            self._serial += 1
            self._in_phase = False
            return self.ending

    def finish(self) -> None:
        """The rollout is complete. Raises Abandoned."""
        with self._lock:
            self._unless_abandoned()
            self.rollout.duration_s = time.monotonic() - self._began
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
        left = self._look_at - time.monotonic()
        await sleep(min(seconds, max(left, 0.0)), self._stop.wait)
        if self._stop.is_set():
            raise self._stop.error()
        if self.ending is not None:
            raise self.ending
        if seconds >= left:
            raise self._timeout(self.phase)

    def _unless_abandoned(self) -> None:
        if self._abandoned:
            raise Abandoned

    def _timed_phase(self) -> tuple[str, float, float]:
        return self.phase, self._phase_began - self._began, time.monotonic() - self._began

    # ------------------------------------------------------------ on the supervisor's thread

    def wait_s(self) -> float | None:
        """How long the supervisor may sleep, None for as long as nothing wakes it.

        A phase that starts while it sleeps ends no sooner than the shortest limit from now, so that nobody has to
        wake it for that.
        """
        now = time.monotonic()
        until = min(self._look_at, now + self._shortest)
        return None if until == NEVER else max(until - now, 0.0)

    def look(self) -> bool:
        """Interrupt what is overdue or stopped. False once the rollout should be abandoned."""
        now = time.monotonic()
        with self._lock:
            if self.done or not self._in_phase:
                return True
            if self.ending is not None:
                return now < self._look_at
            tearing_down = self.phase == "teardown"
            reason: Exception
            if self._stop.is_set() and not tearing_down:
                reason = self._stop.error()
            elif now >= self._look_at:
                reason = self._timeout("total" if self._look_at == self._total_at and not tearing_down else self.phase)
            else:
                return True
        self.interrupt(reason)
        return True

    def interrupt(self, reason: Exception) -> None:
        """End the current phase: its sandbox, its task, and with them what waits for either."""
        with self._lock:
            if self.ending is not None or not self._in_phase:
                return
            self.ending = reason
            self._look_at = time.monotonic() + GRACE_S
            serial, sandbox, loop = self._serial, self.sandbox, self.loop
        kill_sandbox(sandbox, loop, GRACE_S / 2)
        if loop is not None:
            loop.cancel(lambda: self._serial == serial)

    def abandon(self) -> bool:
        """Give up on the rollout's thread, and close its sandbox in its place. False if it just came to its end."""
        with self._lock:
            if self.done or self.ending is None:
                return False
            self._abandoned = True
            last = self._timed_phase()
            # The thread may come back to life and write on: the outcome is a copy.
            self.rollout = attrs.evolve(self.rollout, phases=[*self.rollout.phases, last], duration_s=last[2])
        instance_id = self.rollout.instance_id
        logger.warning(
            "instance %s: code in phase %r did not return %.0f s after it was ended; its thread is left behind",
            instance_id,
            self.phase,
            GRACE_S,
        )
        if self.session is not None:
            limit_s = min(self.limits["teardown"], STOP_TEARDOWN_S)
            bounded(f"instance {instance_id}: closing its session", self.session.exit_from_elsewhere, limit_s)
        return True

    def _timeout(self, phase: str) -> PhaseTimeout:
        limit = self.limits[phase]
        return PhaseTimeout(f"{phase} ran past its limit of {limit:g} s", phase=phase, limit_s=limit)


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
    """One daemon thread that runs rollouts one after the other. It is also that of its event loop, if one is needed."""

    def __init__(self) -> None:
        self._loop: SlotLoop | None = None
        self._in: queue.SimpleQueue[tuple[Callable[[Slot], None], Supervision, contextvars.Context] | None]
        self._in = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Supervision | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="agentix-slot", daemon=True)
        self._thread.start()

    def loop(self) -> SlotLoop:
        """The slot's event loop. On the slot's thread."""
        if self._loop is None:
            self._loop = SlotLoop()
        return self._loop

    def run(self, work: Callable[[Slot], None], supervision: Supervision, context: contextvars.Context) -> bool:
        """On the supervisor's thread: run `work(slot)` to its end. False: it was abandoned, and the slot with it."""
        supervision.wake = self._wake
        self._in.put((work, supervision, context))
        while True:
            try:
                if self._out.get(timeout=supervision.wait_s()) is supervision:
                    return True
            except queue.Empty:
                pass
            if not supervision.look() and supervision.abandon():
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
            work, supervision, context = item
            try:
                context.run(work, self)
            except Abandoned:
                break
            self._out.put(supervision)
            del item, work, supervision, context
        if self._loop is not None:
            self._loop.close()
