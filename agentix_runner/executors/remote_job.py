"""A rollout that runs in another process: what goes there, how it is run there, what comes back.

There go, all pickled: a parcel, which holds what the rollouts of a run share, and an instance for each of them. Back
comes a `JobResult`, plain data. Both ways are between processes that run the user's own code; nothing that a sandbox
has made is ever unpickled.

`JobRunner` and what is below it run in the other process.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import pickle
import queue
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging.handlers import QueueHandler
from typing import Any

from attrs import Factory, evolve, frozen

from ..errors import BadArgument, describe
from ..records import Rollout
from ..remote.host import calls
from ..remote.host.calls import ImportableModules, by_value
from ..rollout.job import Job, Options, Sink, Stop
from ..rollout.result import record_failure
from ..rundir.files import MAX_LOG, files_to_keep
from .threads import ThreadExecutor

logger = logging.getLogger("agentix_runner")

LOGGERS = ("agentix_runner", "agentix_runner.sandbox")
MOST_RECORDS = 2000
"""How many log records are kept between two rollouts: the newest."""

_TOKEN = secrets.token_hex(8)


def this_process() -> str:
    """Names this process, among those on other machines and its own forks too."""
    return f"{_TOKEN}-{os.getpid()}"


@frozen(kw_only=True)
class JobResult:
    """What comes back: the rollout, and what it has emitted: the phases that began, what its sandboxes printed, the
    files that the agent saved, and what was logged in that process."""

    rollout: Rollout
    events: Sequence[str] = ()
    log: bytes = b""
    files: Mapping[str, str | bytes] = Factory(dict)
    log_records: Sequence[Mapping[str, Any]] = ()

    def emit(self, sink: Sink) -> None:
        """Put it where it would have gone here."""
        for fields in self.log_records:
            record = logging.makeLogRecord(fields)
            target = logging.getLogger(record.name)
            if target.isEnabledFor(record.levelno):
                target.handle(record)
        for phase in self.events:
            sink.event(phase)
        if self.log and sink.log is not None:
            sink.log(self.log)
        if self.files:
            sink.save(self.files)


# ---------------------------------------------------------------- on the way there


def pack(options: Options, *, own_modules: bool = False) -> bytes:
    """What all rollouts of a run share, as a parcel.

    `own_modules`: what is of the user's own modules, those that are installed nowhere, goes by value; otherwise they
    are imported there.

    Raises: BadArgument, naming what can't be sent.
    """
    shared = evolve(
        options, instances=(), run_dir=None, stop=None, on_result=None, on_event=None, progress=None, arguments=None,
        executor=None,
    )  # fmt: skip
    levels = {name: logging.getLogger(name).getEffectiveLevel() for name in LOGGERS}
    # What the other side has anyway; the rest of what is loaded here and installed nowhere is the user's own.
    there = ImportableModules(python=sys.version_info[:2], modules=frozenset({"agentix_runner"}))
    with by_value(calls.own_modules(there)) if own_modules else contextlib.nullcontext():
        try:
            # Logs and files are wanted where there is a run directory.
            return _dumps((shared, options.run_dir is not None, this_process(), levels))
        except Exception as exc:
            error = exc
        for name in ("dataset", "agent", "provider", "retry"):
            part = getattr(options, name)
            try:
                _dumps(part)
            except Exception as exc:
                raise _unsendable(f"{name} {type(part).__name__}", exc) from exc
        raise _unsendable("what the rollouts share", error) from error


def pack_job(job: Job) -> tuple[Job, bytes]:
    """A job without its instance, and the instance pickled apart: it may fail to load. Raises: BadArgument."""
    try:
        return evolve(job, instance={}), _dumps(job.instance)
    except Exception as exc:
        raise _unsendable(f"instance {job.instance_id}", exc) from exc


def check_jobs(jobs: Iterable[Job]) -> None:
    """Raises: BadArgument for the first instance that can't be sent."""
    last = None
    for job in jobs:
        if job.instance is not last:
            last = job.instance
            pack_job(job)


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


class JobRunner:
    """In the process that runs rollouts of one run: what they share, and a stop for each that runs."""

    def __init__(self, parcel: bytes, run_id: str) -> None:
        self.options, self._keeps, host, levels = pickle.loads(parcel)
        self._records = None if host == this_process() else _collect_log_records(levels)
        self._threads = ThreadExecutor(self.options)
        self._threads.start(run_id, Stop())
        # Guards what follows: a rollout that comes while all are stopped is stopped too.
        self._lock = threading.Lock()
        self._stops: dict[int, Stop] = {}
        self._stopped = False

    def run(self, job: Job, instance: bytes) -> JobResult:
        """Run one rollout to its outcome, on this thread and one more.

        Never raises: what goes wrong is on the rollout.
        """
        sink = _CollectingSink(job.instance_id, self._keeps)
        stop = Stop()
        with self._lock:
            self._stops[job.number] = stop
            if self._stopped:
                stop.set()
        try:
            job = evolve(job, instance=pickle.loads(instance))
            rollout = self._threads.supervise(job, sink, stop, contextvars.copy_context())
        except Exception as exc:
            rollout = job.new_rollout(self.options.model)
            record_failure(rollout, "session", exc)
        finally:
            with self._lock:
                del self._stops[job.number]
        return sink.result(rollout, [] if self._records is None else self._records.take())

    def stop(self, number: int | None = None) -> list[int]:
        """End the rollout of that number, or all of them and those that come. From any thread; returns at once, the
        numbers of those that it ends."""
        with self._lock:
            if number is None:
                self._stopped = True
            ending = [one for one in self._stops if number in (None, one)]
            for one in ending:
                self._stops[one].set()
        self._threads.stop()
        return ending

    def close(self) -> None:
        """Stop what runs, and let the threads end. Returns at once."""
        self.stop()
        self._threads.end()


class _CollectingSink:
    """Keeps what one rollout emits for the way back, up to what is kept of it anyway."""

    def __init__(self, instance_id: str, keeps: bool) -> None:
        self.log: Callable[[bytes], None] | None = self._log if keeps else None
        self._instance_id = instance_id
        self._keeps = keeps
        self._lock = threading.Lock()  # an abandoned thread may write on
        self._events: list[str] = []
        self._printed = bytearray()
        self._files: dict[str, str | bytes] = {}

    def event(self, phase: str) -> None:
        self._events.append(phase)

    def save(self, files: Mapping[str, str | bytes]) -> None:
        if self._keeps:
            kept = files_to_keep(self._instance_id, files)
            with self._lock:
                self._files.update(kept)

    def close(self) -> None:
        """Nothing to do: who wants what is kept asks for a copy."""

    def result(self, rollout: Rollout, log_records: Sequence[Mapping[str, Any]]) -> JobResult:
        with self._lock:
            return JobResult(
                rollout=rollout, events=[*self._events], log=bytes(self._printed), files={**self._files},
                log_records=log_records,
            )  # fmt: skip

    def _log(self, data: bytes) -> None:
        with self._lock:
            # One byte too many, so that the file at the other end says that it was cut.
            self._printed += data[: MAX_LOG + 1 - len(self._printed)]


class _LogRecords(QueueHandler):
    """Collects the runner's log records in a process that only works for another one, as plain data."""

    def __init__(self) -> None:
        super().__init__(queue.SimpleQueue())  # never used: `enqueue` is our own
        self._kept: deque[Mapping[str, Any]] = deque(maxlen=MOST_RECORDS)

    def enqueue(self, record: logging.LogRecord) -> None:
        # What users put on a record may not be fit for pickling.
        fields = vars(record).items()
        self._kept.append({name: value for name, value in fields if isinstance(value, (str, int, float))})

    def take(self) -> list[Mapping[str, Any]]:
        """What has come since the last time."""
        taken = []
        with contextlib.suppress(IndexError):  # others may take at the same time
            while True:
                taken.append(self._kept.popleft())
        return taken


_log_records = _LogRecords()


def _collect_log_records(levels: Mapping[str, int]) -> _LogRecords:
    """Log into the collector of this process alone, at these levels: a worker's own log would tell everything a second
    time, and a fork has copies of the handlers of the process that started the run."""
    root = logging.getLogger(LOGGERS[0])
    root.handlers[:] = [_log_records]
    root.propagate = False
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    return _log_records
