"""`--dask`: a Dask cluster for a run, one that is there or one of processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from importlib import import_module
from multiprocessing import resource_tracker
from typing import Any

from ..errors import BadArgument, describe
from ..threads import bounded

CONNECT_S = 10.0
"""How long (seconds) a scheduler may take to answer."""

START_S = 120.0
"""How long (seconds) worker processes may take to start."""

CLOSE_S = 3.0
"""How long (seconds) leaving a cluster may take, and how long worker processes have to end by themselves."""

OURS = (signal.SIGINT, signal.SIGHUP)
"""A terminal sends them to all processes of a command. They are for this one, which tells the workers."""


@contextlib.contextmanager
def dask_executor(where: str, *, resources: Mapping[str, float], n_concurrent: int) -> Iterator[Executor]:
    """An executor on the cluster `where`: the address of a scheduler, or "local:N" for N worker processes here, which
    end with it.

    Raises: BadArgument for an address that is none, or where nothing answers; where distributed is not installed.
    """
    workers = _workers(where)
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise BadArgument('--dask needs Dask: pip install "agentix-runner[dask]"') from None
    if not workers:
        try:
            distributed.comm.get_address_host_port(where)
        except ValueError as exc:
            raise BadArgument(f"--dask {where} is no address ({exc}): give tcp://host:8786, say, or local:N") from exc
    with contextlib.ExitStack() as stack:
        stack.enter_context(_silent())
        if workers:
            client = stack.enter_context(local_client(workers, math.ceil(n_concurrent / workers), resources))
        else:
            try:
                client = distributed.Client(where, timeout=CONNECT_S, set_as_default=False)
            except OSError as exc:
                raise BadArgument(
                    f"--dask {where}: no scheduler answers there ({describe(exc, 300)}): give the address that "
                    "`dask scheduler` tells, or local:N"
                ) from exc
            stack.callback(_leave, client)
        yield client.get_executor(pure=False, **({"resources": dict(resources)} if resources else {}))


def _workers(where: str) -> int:
    kind, _, count = where.partition(":")
    if kind != "local":
        return 0
    if not count.isdigit() or int(count) < 1:
        raise BadArgument(f"--dask {where}: give local:N with the number of worker processes, local:4 say")
    return int(count)


@contextlib.contextmanager
def local_client(workers: int, threads: int, resources: Mapping[str, float] | None = None) -> Iterator[Any]:
    """A client of a cluster of `workers` processes of this machine with `threads` each. They are gone afterwards, and
    whenever this process ends.

    Raises: BadArgument where they don't start.
    """
    distributed: Any = import_module("distributed")
    with contextlib.ExitStack() as stack:
        # A worker that is seen to be gone twice, so many seconds apart, would be given up, not started again.
        stack.enter_context(import_module("dask").config.set({"distributed.deploy.lost-worker-timeout": "1000d"}))
        # What blocks these signals now are the threads that are made now and the workers that those will start, who
        # unblock them once they do nothing.
        resource_tracker.ensure_running()  # whichever thread makes the first worker would start it, and unblock them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
        try:
            cluster = distributed.LocalCluster(
                n_workers=0,  # not yet: nothing would end them where an interrupt comes in here
                threads_per_worker=threads,
                resources=dict(resources or {}) or None,
                memory_limit=0,  # a worker that is over it gets no work any more, without a word
                dashboard_address="127.0.0.1:0",  # a free port; None would be the usual one
                silence_logs=logging.CRITICAL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        stack.callback(_end, cluster)
        client = distributed.Client(cluster, timeout=CONNECT_S, set_as_default=False)
        stack.callback(_leave, client)
        # Before there are workers, so that none is without.
        client.register_plugin(_plugin(), name="ends-with-its-starter")
        cluster.scale(workers)
        try:
            if workers:
                client.wait_for_workers(workers, timeout=START_S)
        except (TimeoutError, distributed.TimeoutError) as exc:
            raise BadArgument(f"--dask: {workers} worker processes did not start in {START_S:g} s: use fewer") from exc
        yield client


def _leave(client: Any) -> None:
    bounded("leaving the Dask cluster", client.close, CLOSE_S)


def _end(cluster: Any) -> None:
    """Close it, and kill the workers that did not end by then. (Dask may wait forever for one that it has just been
    starting again, and a worker may be stopped, or in code that never returns.)"""
    try:
        bounded("closing the Dask workers", cluster.close, CLOSE_S)
    finally:
        cluster.shutdown_on_close = False  # Dask would try once more when this process exits
        for nanny in list(cluster._created):  # `workers` lacks those that are just starting
            process = nanny.process
            pid = None if process is None else process.pid
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _plugin(signals: Sequence[signal.Signals] = OURS) -> Any:
    from distributed import WorkerPlugin

    class Local(WorkerPlugin):
        """Makes a worker end with the process that started it, and not before."""

        def setup(self, worker: Any) -> None:
            import ctypes

            for signum in signals:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    # Not ignored: that would go on to the sandboxes' processes.
                    signal.signal(signum, lambda signum, frame: None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            # Dask has a thread in each worker that sees its parent go. It does not run in one that is stopped, or whose
            # interpreter is busy in C code; there Linux can do it.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    return Local()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Inside, Dask does not log, as a part of this command: what goes wrong ends a rollout or the run, with its reason.
    What it logs besides are tracebacks, of connections to what has just been ended, say."""
    loggers = [
        logging.getLogger(name)
        for name in [*logging.root.manager.loggerDict]
        if name.startswith(("distributed", "tornado"))
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
