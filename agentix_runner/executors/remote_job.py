"""A rollout that runs in another process: what goes there, how it is run there, what comes back.

There go, all pickled: a parcel, which holds what the rollouts of a run share, and an instance for each of them. Back
comes an `Outcome`, plain data. Both ways are between processes that run the user's own code; nothing that a sandbox
has made is ever unpickled.

`Workplace` and what is below it run in the other process.
"""

from __future__ import annotations

import contextvars
import logging
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, frozen

from ..errors import BadArgument, Stopped, describe
from ..records import Rollout
from ..remote.host import calls
from ..remote.host.calls import Reach, by_value
from ..rollout.phases import Item, Spec, run_on_slot
from ..rollout.result import fail
from ..rollout.slots import Clock, Job, Slot
from ..rundir.files import MAX_LOG, files_to_keep
from .lines import Line, collecting, levels, this_process

if TYPE_CHECKING:
    from ..batch.checks import Planned

logger = logging.getLogger("agentix_runner")

PARTS = ("dataset", "agent", "provider", "retry")
"""What of a spec is not plain data."""


@frozen
class Outcome:
    """What comes back: the rollout, the phases that began, what its sandboxes printed, the files that the agent saved,
    and what was logged in that process."""

    rollout: Rollout
    events: Sequence[str] = ()
    log: bytes = b""
    files: Mapping[str, str | bytes] = Factory(dict)
    lines: Sequence[Line] = ()


# ---------------------------------------------------------------- on the way there


def pack(spec: Spec, *, keeps: bool, own_modules: bool = False) -> bytes:
    """What all rollouts of a run share, as a parcel. `keeps`: logs and files are wanted back.

    `own_modules`: also the user's own modules travel, those that are installed nowhere; otherwise they are imported
    there.

    Raises: BadArgument, naming what can't be sent.
    """
    fields = {a.name: getattr(spec, a.name) for a in attrs.fields(Spec) if a.init}
    # What the other side has anyway; the rest of what is loaded here and installed nowhere is the user's own.
    there = Reach(python=sys.version_info[:2], modules=frozenset({"agentix_runner"}))
    with by_value(calls.own_modules(there)) if own_modules else nullcontext():
        try:
            return _dumps((fields, keeps, this_process(), levels()))
        except Exception as exc:
            error = exc
        for part in PARTS:
            try:
                _dumps(fields[part])
            except Exception as exc:
                raise _unsendable(f"{part} {type(fields[part]).__name__}", exc) from exc
        raise _unsendable("what the rollouts share", error) from error


def pack_instance(instance: dict[str, Any], instance_id: str) -> bytes:
    """An instance as it travels. Raises: BadArgument."""
    try:
        return _dumps(instance)
    except Exception as exc:
        raise _unsendable(f"instance {instance_id}", exc) from exc


def check_instances(jobs: Sequence[Planned]) -> None:
    """Raises: BadArgument for the first instance that can't be sent."""
    last = None
    for planned in jobs:
        if planned.instance is not last:
            last = planned.instance
            pack_instance(last, planned.instance_id)


def _dumps(value: Any) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        return pickle.dumps(value, protocol=5)
    return bytes(cloudpickle.dumps(value, protocol=5))


def _unsendable(what: str, exc: Exception) -> BadArgument:
    remedy = "make what it can't hold in the method that uses it, or leave it out in __getstate__"
    if "cloudpickle" not in sys.modules:
        remedy += '; classes and functions of a script or notebook need pip install "agentix-runner[notebook]"'
    return BadArgument(f"{what} can't be sent to other processes: {describe(exc, 500)}: {remedy}")


# ---------------------------------------------------------------- over there


class Workplace:
    """In the process that runs rollouts of one run: what they share, and those that are running."""

    def __init__(self, parcel: bytes, run_id: str) -> None:
        fields, self._keeps, host, wanted = pickle.loads(parcel)
        self._lines = collecting(host, wanted)
        fields["run_id"] = run_id
        self.spec = Spec(**fields)
        self.needs_loop = self.spec.needs_loop
        self._clock = Clock(self.spec.timeouts)
        self._lock = threading.Lock()
        self._running: dict[str, tuple[threading.Event, Job]] = {}
        self._stopped = False

    def run(self, name: str, instance: bytes, instance_id: str, attempt: int) -> Outcome:
        """Run one rollout to its outcome, on this thread and one more. `name` is what `stop` knows it by.

        Never raises: what goes wrong is on the rollout.
        """
        events: list[str] = []
        files: dict[str, str | bytes] = {}
        log = Log()
        item = Item({}, instance_id, attempt)
        item.shared = self
        item.emit = events.append
        if self._keeps:
            item.log = log
            item.save = partial(_save, files, instance_id)
        rollout = item.new_rollout(self.spec.model)
        rollout.started_at = time.time()
        stop = threading.Event()
        job = Job(rollout, self._clock, stop, _stopped)
        with self._lock:
            self._running[name] = (stop, job)
            if self._stopped:
                stop.set()
        try:
            item.instance = pickle.loads(instance)
            self._supervise(item, job)
        except Exception as exc:
            fail(job.rollout, job.phase or "session", exc)
        finally:
            with self._lock:
                del self._running[name]
        lines = [] if self._lines is None else self._lines.take()
        return Outcome(job.rollout, events, log.close(), files, lines)

    def _supervise(self, item: Item, job: Job) -> None:
        # A slot for this rollout alone: beside the way here its thread costs nothing, and nothing is left behind.
        slot = Slot(partial(run_on_slot, self.spec))
        try:
            if not slot.supervise(item, job, contextvars.copy_context()):
                fail(job.rollout, job.phase, job.ending or _stopped())
        finally:
            slot.close()

    def stop(self, name: str | None = None) -> list[str]:
        """End the rollout `name`, or all of them and those that come. From any thread; returns at once, the names of
        those that it ends."""
        with self._lock:
            if name is None:
                self._stopped = True
            ending = [one for one in self._running if name in (None, one)]
            jobs = [self._running[one] for one in ending]
        for stop, job in jobs:
            stop.set()
            job.wake()
        return ending


def _stopped() -> Stopped:
    return Stopped("the run was stopped")


class Log:
    """What the sandboxes of one rollout print, up to what is kept of it anyway."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, data: bytes) -> None:
        with self._lock:
            # One byte too many, so that the file at the other end says that it was cut.
            if not self._closed:
                self._data += data[: MAX_LOG + 1 - len(self._data)]

    def close(self) -> bytes:
        """All of it. What comes later is dropped."""
        with self._lock:
            self._closed = True
            data, self._data = bytes(self._data), bytearray()
            return data


def _save(kept: dict[str, str | bytes], instance_id: str, files: Mapping[str, str | bytes]) -> None:
    """Keep `files` for the way back, as many as the run directory would. Raises: BadOutcome."""
    kept.update(files_to_keep(instance_id, files))
