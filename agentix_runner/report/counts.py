"""The numbers behind every way to show progress: how many are done, resolved, failed, and in which phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..records import Rollout
from ..text import plural, whole_seconds

BEFORE = {"setup": None, "agent": "setup", "score": "agent"}
"""The phases that are shown, and which one is left when one is entered."""


class Counts:
    """Counts what the runner tells of a run. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = self.done = self.resolved = self.errors = 0
        self.finished_here = 0
        """How many of those that are done have been run since the start."""
        self._clock = clock
        self._began = clock()
        self._running: dict[str, list[tuple[str, float]]] = {}  # the phase of each attempt, and since when

    def start(self, total: int, finished: Sequence[Rollout]) -> None:
        self.total = total
        self._began = self._clock()
        for rollout in finished:
            self._count(rollout)

    def enter(self, instance_id: str, phase: str) -> None:
        # Attempts at one instance may overlap; each phase is entered from the one before it.
        self._leave(instance_id, BEFORE[phase])
        self._running.setdefault(instance_id, []).append((phase, self._clock()))

    def finish(self, rollout: Rollout) -> None:
        self._count(rollout)
        self.finished_here += 1
        running = [phase for phase, _ in self._running.get(rollout.instance_id, ())]
        entered = [name for name, _, _ in rollout.phases if name in running] or running
        if entered:
            self._leave(rollout.instance_id, entered[-1])

    def running(self) -> list[tuple[str, str, float]]:
        """(instance id, phase, seconds in it) of each that runs, the longest in its phase first."""
        now = self._clock()
        found = [(i, phase, now - since) for i, phases in self._running.items() for phase, since in phases]
        return sorted(found, key=lambda each: -each[2])

    def parts(self) -> list[str]:
        """The pieces of a progress line, the most important ones first."""
        parts = [f"{self.done}/{self.total} done", f"{self.resolved} resolved", plural(self.errors, "error")]
        in_phase = Counter(phase for phases in self._running.values() for phase, _ in phases)
        if in_phase:
            parts.append(" ".join(f"{phase} {in_phase[phase]}" for phase in BEFORE if in_phase[phase]))
        if self.finished_here and self.done < self.total:
            # At the pace so far.
            left = (self._clock() - self._began) / self.finished_here * (self.total - self.done)
            parts.append(f"{whole_seconds(left)} left")
        return parts

    def _count(self, rollout: Rollout) -> None:
        self.done += 1
        self.resolved += rollout.resolved
        self.errors += rollout.error is not None

    def _leave(self, instance_id: str, phase: str | None) -> None:
        running = self._running.get(instance_id, [])
        for entry in running:
            if entry[0] == phase:
                running.remove(entry)
                break
        if not running:
            self._running.pop(instance_id, None)
