"""The numbers behind every way to show progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..records import Rollout
from ..text import plural, whole_seconds

PHASES = ("setup", "agent", "score")


class Tally:
    """The numbers behind every way to show them: how many are done, resolved, failed, and in which phase."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = self.done = self.resolved = self.errors = 0
        self._clock = clock
        self._began = clock()
        self._done_here = 0
        self._running: dict[str, list[tuple[str, float]]] = {}  # the phases of each, and since when
        self._in_phase: Counter[str] = Counter()

    def start(self, total: int, finished: Sequence[Rollout]) -> None:
        self.total = total
        self._began = self._clock()
        for rollout in finished:
            self._count(rollout)

    def enter(self, instance_id: str, phase: str) -> None:
        running = self._running.setdefault(instance_id, [])
        # Attempts at one instance may overlap; each phase is entered from the one before it.
        for before in reversed(PHASES[: PHASES.index(phase)] if phase in PHASES else ()):
            if any(name == before for name, _ in running):
                self._leave(instance_id, before)
                break
        self._running.setdefault(instance_id, []).append((phase, self._clock()))
        self._in_phase[phase] += 1

    def finish(self, rollout: Rollout) -> None:
        self._count(rollout)
        self._done_here += 1
        running = self._running.get(rollout.instance_id)
        if running:
            phases = [name for name, _ in running]
            entered = [name for name, _, _ in rollout.phases if name in phases]
            self._leave(rollout.instance_id, entered[-1] if entered else phases[-1])

    def running(self) -> list[tuple[str, str, float]]:
        """(instance id, phase, seconds in it) of each that runs, the longest in its phase first."""
        now = self._clock()
        found = [(i, phase, now - since) for i, phases in self._running.items() for phase, since in phases]
        return sorted(found, key=lambda each: -each[2])

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take at the pace so far; None before anything has finished."""
        if not self._done_here:
            return None
        return (self._clock() - self._began) / self._done_here * (self.total - self.done)

    def _count(self, rollout: Rollout) -> None:
        self.done += 1
        self.resolved += rollout.resolved
        self.errors += rollout.error is not None

    def _leave(self, instance_id: str, phase: str) -> None:
        running = self._running[instance_id]
        del running[[name for name, _ in running].index(phase)]
        if not running:
            del self._running[instance_id]
        self._in_phase[phase] -= 1

    def parts(self) -> list[str]:
        """The pieces of a progress line, the most important ones first."""
        parts = [f"{self.done}/{self.total} done", f"{self.resolved} resolved", plural(self.errors, "error")]
        active = [f"{phase} {self._in_phase[phase]}" for phase in PHASES if self._in_phase[phase]]
        if active:
            parts.append(" ".join(active))
        left = self.left_s
        if left is not None and self.done < self.total:
            parts.append(f"{whole_seconds(left)} left")
        return parts
