"""Rollouts on a Dask cluster.

What the rollouts share goes to each worker once, as a worker plugin; Dask gives it to workers that come later, too.
The plugin is also how an end reaches what is running. A stop is told to it, so that rollouts still come back and
nothing is left when the run returns. Where the process that started the run is gone, Dask takes back the tasks, and the
plugin sees that: cancelling a running task does nothing else.

`Rollouts` and what is below it run on the workers.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from distributed import KilledWorker, Reschedule, WorkerPlugin, get_worker
from distributed.utils import sync

from .._version import __version__
from ..errors import BadAdapter, BadArgument, WorkerDied, describe
from ..records import RetryPolicy
from ..rollout.job import Job, Options
from ..rollout.result import record_failure
from ..threads import DaemonExecutor
from .handover import Handover
from .processes import ProcessExecutor
from .remote_job import JobResult, JobRunner, pack

if TYPE_CHECKING:
    from distributed import Client, Worker

logger = logging.getLogger("agentix_runner")

T = TypeVar("T")

RPC_S = 10.0
"""How long (seconds) a question to the scheduler may take."""

INSTALL_S = 30.0
"""How long (seconds) what the rollouts share may take to all workers."""

TOLD_S = 5.0
"""How long (seconds) workers have to answer that they end what they run. One that is stuck never does."""

ON_THE_WAY_S = 1.0
"""How long (seconds) an outcome may take from its worker to here."""

JOINING_S = 10.0
"""How long (seconds) a worker that has just joined may take to get what the rollouts share."""


class DaskExecutor(ProcessExecutor):
    """Runs rollouts on the workers of a Dask cluster, by way of `client.get_executor(...)`."""

    def __init__(self, options: Options, jobs: Sequence[Job]) -> None:
        super().__init__(options, jobs)
        self._client: Client = self.executor._client
        self._name = f"agentix-{secrets.token_hex(6)}-{self._client.id}"
        self._attempts = (options.retry or RetryPolicy()).attempts
        self._prepared = False
        self._stuck = False
        check_offers(self._client, self.executor._kwargs)

    def pack(self) -> bytes:
        """With the user's own modules, which workers may lack; where something of them can't be sent (a client, a
        lock), workers must have them."""
        try:
            return pack(self.options, own_modules=True)
        except BadArgument:
            return pack(self.options)

    def prepare(self) -> None:
        self._prepared = True
        try:
            counts = self._look_around()
            plugin = Rollouts(self.parcel, self.run_id, self._name, counts=counts)
            _ask(lambda: self._client.register_plugin(plugin, name=self._name), INSTALL_S)
        except futures.TimeoutError:
            self._stuck = True
            raise BadArgument(
                "a Dask worker does not answer: see the workers' logs, and end the one that is stuck"
            ) from None
        except Exception as exc:
            raise _cant_load(exc) from exc

    def _look_around(self) -> bool:
        """Remove what runs have left there that were killed. Whether Dask by itself tries a task more often than is
        wanted when its workers die."""
        client: Any = self._client
        try:
            left_behind, dask_tries = _ask(lambda: client.run_on_scheduler(_look_around), RPC_S)
            for name in left_behind:
                self._forget(name)
        except futures.TimeoutError:
            raise
        except Exception as exc:  # a scheduler without agentix-runner, say
            logger.debug("the Dask cluster can't be cleaned up: %s", describe(exc))
            return True
        return bool(dask_tries > self._attempts)

    def _forget(self, name: str) -> None:
        client: Any = self._client
        _ask(lambda: client.set_metadata([name], None), RPC_S)
        _ask(lambda: client.unregister_worker_plugin(name), RPC_S)

    def new_handover(self) -> Handover:
        dropped = "the connection to the Dask scheduler was lost, or the client was closed"
        return Handover(self.run_stop, dropped=dropped, look=self._look)

    def submit(self, job: Job, instance: bytes) -> Future[JobResult]:
        key = f"{self._name}-{job.number}"
        future: Future[JobResult] = self.executor.submit(run_on_worker, self._name, job, instance, key=key)
        return future

    def reach(self) -> None:
        if self._client.status != "running":
            return
        running: dict[str, list[int]] = {}
        try:
            running = _ask(lambda: self._client.run(_stop, self._name, on_error="ignore"), TOLD_S)
        except futures.TimeoutError:
            self._stuck = True
            logger.warning("not all Dask workers have answered that they stop; what they run is left to them")
        # What waits for a worker would wait on. What has just ended may be on its way.
        time.sleep(ON_THE_WAY_S)
        self.handover.cancel(but={number for numbers in running.values() for number in numbers})

    def explain(self, error: BaseException) -> BaseException:
        if isinstance(error, KilledWorker):
            return _workers_died(error.allowed_failures + 1)
        return super().explain(error)

    def _look(self) -> None:
        if self._client.status == "running" and not _workers(self._client):
            logger.warning("the Dask cluster has no workers; the run goes on when there are some")

    def clean_up(self) -> None:
        # A worker that is stuck would keep this waiting; the next run removes what is there.
        if self._prepared and not self._stuck and self._client.status == "running":
            try:
                self._forget(self._name)
            except Exception as exc:  # where a worker has not even taken it
                logger.debug("the Dask workers can't be cleaned up: %s", describe(exc))


def _ask(question: Callable[[], T], limit_s: float) -> T:
    """What `question()` returns. Dask itself would wait forever for the answer of a worker that is stuck.

    Raises: concurrent.futures.TimeoutError.
    """
    threads = DaemonExecutor(1)
    try:
        answer: Future[T] = threads.submit(question)
        return answer.result(limit_s)
    finally:
        threads.shutdown()


def check_offers(client: Client, wanted: dict[str, Any]) -> None:
    """Raises BadArgument where no worker offers what the executor asks for: Dask would wait for one, silently."""
    workers = _workers(client)
    if not workers:
        logger.warning("the Dask cluster has no workers yet; the run begins when there are some")
        return
    for name, amount in (wanted.get("resources") or {}).items():
        most = max(worker.get("resources", {}).get(name, 0) for worker in workers.values())
        if most < amount:
            has = f"the most that one has is {most:g}" if most else "none has any"
            raise BadArgument(
                f"no Dask worker offers {amount:g} of resource {name!r} ({has}): start workers with "
                f"--resources {name}={amount:g}, or ask for less"
            )
    chosen = wanted.get("workers") or []
    chosen = [chosen] if isinstance(chosen, str) else list(chosen)
    known = {str(at) for address, worker in workers.items() for at in (address, worker.get("name"), worker.get("host"))}
    if chosen and not wanted.get("allow_other_workers") and not known & set(map(str, chosen)):
        raise BadArgument(f"none of the Dask workers {', '.join(map(str, chosen))} is there: name some that are")


def _workers(client: Client) -> dict[str, Any]:
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return workers


def _cant_load(exc: Exception) -> BadArgument:
    if isinstance(exc, BadArgument):
        return exc
    return BadArgument(
        f"a Dask worker can't load the adapters ({describe(exc, 500)}): "
        "install there what they need, the same agentix-runner too"
    )


def _workers_died(tries: int) -> WorkerDied:
    return WorkerDied(f"the workers that ran it are gone, {tries} in a row: see their logs", tries=tries)


def _look_around(dask_scheduler: Any) -> tuple[list[str], int]:
    """On the scheduler: the names of runs whose client is gone, and how often a task is tried whose workers die."""
    runs = [name for name in dask_scheduler.worker_plugins if name.startswith("agentix-")]
    left_behind = [name for name in runs if name.split("-", 2)[2] not in dask_scheduler.clients]
    return left_behind, dask_scheduler.allowed_failures + 1


# ---------------------------------------------------------------- on the workers


class Rollouts(WorkerPlugin):
    """What one worker has of a run: what runs its rollouts, and an ear for tasks that are taken back.

    `counts`: whether tries are counted here, since Dask would try more often than is wanted.
    """

    def __init__(self, parcel: bytes, run_id: str, name: str, *, counts: bool) -> None:
        self.name = name
        self.counts = counts
        self._parcel = parcel
        self._run_id = run_id
        self._version = (__version__, sys.version_info[:2])
        self.runner: JobRunner | None = None
        self.error: Exception | None = None
        self.leaving = False

    def setup(self, worker: Worker) -> None:
        here = (__version__, sys.version_info[:2])
        try:
            if self._version != here:
                raise BadArgument(
                    "a Dask worker has {} on Python {}.{}, and this process {} on Python {}.{}: make them the "
                    "same".format(here[0], *here[1], self._version[0], *self._version[1])
                )
            self.runner = JobRunner(self._parcel, self._run_id)
        except Exception as exc:
            self.error = exc
            raise

    def teardown(self, worker: Worker) -> None:
        self.leaving = True
        if self.runner is not None:
            self.runner.close()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        # A task that is still running is released when nobody wants it any more.
        if finish == "released" and self.runner is not None and str(key).startswith(f"{self.name}-"):
            self.runner.stop(int(str(key).removeprefix(f"{self.name}-")))


def run_on_worker(run: str, job: Job, instance: bytes) -> JobResult:
    """Run one rollout on this worker.

    Raises: Reschedule, where the worker leaves before the rollout has ended; BadAdapter, where it can run none.
    """
    worker = get_worker()
    plugin, runner = _of_run(worker, run)
    most = (runner.options.retry or RetryPolicy()).attempts
    tries = _count(worker, run, job.number) if plugin.counts else 1
    if tries > most:
        rollout = job.new_rollout(runner.options.model)
        record_failure(rollout, "session", _workers_died(most))
        return JobResult(rollout=rollout)
    if tries > 1:
        logger.warning(
            "instance %s: the worker that ran it is gone; this is try %d of %d", job.instance_id, tries, most
        )
    result = runner.run(job, instance)
    if plugin.leaving and not result.rollout.ran:
        raise Reschedule
    return result


def _of_run(worker: Worker, run: str) -> tuple[Rollouts, JobRunner]:
    until = time.monotonic() + JOINING_S
    while True:
        plugin = worker.plugins.get(run)
        if isinstance(plugin, Rollouts) and plugin.runner is not None:
            return plugin, plugin.runner
        if isinstance(plugin, Rollouts) and plugin.error is not None:
            raise BadAdapter(str(_cant_load(plugin.error)))
        if time.monotonic() > until:
            raise RuntimeError("this worker did not get what the rollouts share: see its log")
        time.sleep(0.05)


def _count(worker: Worker, run: str, number: int) -> int:
    """Which try at the rollout this is. The scheduler keeps the count, which outlives the workers."""

    def ask(question: Callable[..., Any], **kwargs: Any) -> Any:
        return sync(worker.loop, question, callback_timeout=RPC_S, **kwargs)

    keys = [run, str(number)]
    tries = 1
    with contextlib.suppress(Exception):  # the scheduler is gone, and nobody will get the outcome
        tries = ask(worker.scheduler.get_metadata, keys=keys, default=0) + 1
        ask(worker.scheduler.set_metadata, keys=keys, value=tries)
    return tries


def _stop(run: str, dask_worker: Worker) -> list[int]:
    """On a worker: stop what is running there. Gives the numbers of it."""
    plugin = dask_worker.plugins.get(run)
    if isinstance(plugin, Rollouts) and plugin.runner is not None:
        return plugin.runner.stop()
    return []
