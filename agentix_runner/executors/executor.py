"""Where rollouts run: on threads of this process, in other processes, on a Dask cluster.

A place takes jobs and gives a future for each, which ends with the job's rollout or is cancelled where it did not run.
`place_for` chooses by the executor that `run_rollouts` was given.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BadArgument, Stopped

if TYPE_CHECKING:
    from ..batch.checks import Planned
    from ..records import Rollout
    from ..rollout.phases import Item, Spec


class Place(Protocol):
    """Where the rollouts of one run are run."""

    limit: float
    """How many it may hold at once; infinity where it queues by itself and starts them in order."""

    is_here: bool
    """Whether rollouts run in this process, with its limit on open files."""

    def start(self, run: Run) -> None:
        """Get ready. Raises: BadArgument where it can't run what it was given."""

    def submit(self, item: Item) -> Future[Rollout]:
        """Take a job. Raises: RuntimeError where it takes none any more."""

    def stop(self) -> None:
        """The run is stopping: end what runs. From any thread; returns at once."""

    def close(self) -> None:
        """Let go of everything. What has not ended is given up. Every wait is bounded."""


class Run(Protocol):
    """What a place may know of the run that it works for."""

    run_id: str
    stopping: threading.Event
    coming: Sequence[Planned]
    """What is to be run, in order."""

    def stopped(self) -> Stopped:
        """The error of what did not run because the run was stopped."""

    def stop(self, reason: str) -> None:
        """Stop the run."""


def place_for(
    executor: Executor | None, spec: Spec, *, n_concurrent: int, keeps: bool, jobs: Sequence[Planned]
) -> Place:
    """The place that runs rollouts on `executor`; on threads of its own without one.

    `keeps`: there is a run directory, so that logs and files are wanted.

    Raises: BadArgument for what is no executor, or an adapter that can't be sent to one.
    """
    if executor is None or (isinstance(executor, ThreadPoolExecutor) and not isinstance(executor, _INTERPRETERS)):
        from .threads import Threads

        return Threads(executor, spec, n_concurrent=n_concurrent)
    if not isinstance(executor, Executor):
        hint = ": give client.get_executor(pure=False)" if _is_dask(executor) else ""
        raise BadArgument(f"executor is {executor!r:.200}, which is no concurrent.futures.Executor{hint}")
    if _is_dask(executor):
        from .dask import Dask

        return Dask(executor, spec, n_concurrent=n_concurrent, keeps=keeps, jobs=jobs)
    from .processes import Processes

    return Processes(executor, spec, n_concurrent=n_concurrent, keeps=keeps, jobs=jobs)


# Its workers share this process but no objects: what goes to them is pickled (Python >= 3.14).
_INTERPRETERS: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", ())


def _is_dask(executor: Any) -> bool:
    """Told by name, so that distributed is imported only where it is used."""
    return any(cls.__module__.partition(".")[0] == "distributed" for cls in type(executor).__mro__)
