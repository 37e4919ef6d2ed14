"""Where rollouts run: on threads of this process, in other processes, on a Dask cluster.

The batch calls an `Executor` from `n_concurrent` threads of its own. `executor_for` chooses it by what `run_rollouts`
was given.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from ..errors import BadArgument
from ..records import Rollout
from ..rollout.job import Job, Options, Sink, Stop


class Executor(Protocol):
    """Where the rollouts of one run are run."""

    is_here: bool
    """Whether rollouts run in this process, with its limit on open files."""

    def start(self, run_id: str, stop: Stop) -> None:
        """Get ready, in the caller's thread. Raises: BadArgument where it can't run what it was given."""

    def run(self, job: Job, sink: Sink) -> Rollout:
        """Run one rollout, and wait for its outcome. A stop of the run brings it about early."""

    def stop(self) -> None:
        """The run is stopping: end what runs. From any thread; returns at once."""

    def close(self) -> None:
        """Let go of everything. What has not ended is given up. Every wait is bounded."""


def executor_for(options: Options, jobs: Sequence[Job]) -> Executor:
    """What runs rollouts on `options.executor`; threads of this process without one.

    Raises: BadArgument for what is no executor, or an adapter or an instance that can't be sent to one.
    """
    given: Any = options.executor
    if given is None:
        from .threads import ThreadExecutor

        return ThreadExecutor(options)
    if isinstance(given, ThreadPoolExecutor) and not isinstance(given, _INTERPRETERS):
        from .threads import PoolExecutor

        return PoolExecutor(options, given)
    # Told by name, so that distributed is imported only where it is used.
    is_dask = any(cls.__module__.partition(".")[0] == "distributed" for cls in type(given).__mro__)
    if not isinstance(given, concurrent.futures.Executor):
        hint = ": give client.get_executor(pure=False)" if is_dask else ""
        raise BadArgument(f"executor is {given!r:.200}, which is no concurrent.futures.Executor{hint}")
    if is_dask:
        from .dask import DaskExecutor

        return DaskExecutor(options, jobs)
    from .processes import ProcessExecutor

    return ProcessExecutor(options, jobs)


# Its workers share this process but no objects: what goes to them is pickled (Python >= 3.14).
_INTERPRETERS: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", ())
