"""`--dask`: a Dask cluster for a run, one that is there or one of processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from importlib import import_module
from typing import Any

from ..errors import BadArgument, describe

CONNECT_S = 10.0
"""How long (seconds) a scheduler may take to answer."""


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
        stack.enter_context(_warnings_only())
        cluster: Any = where
        if workers:
            # A worker that is seen to be gone twice, so many seconds apart, would be given up, not started again.
            stack.enter_context(import_module("dask").config.set({"distributed.deploy.lost-worker-timeout": "1000d"}))
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=math.ceil(n_concurrent / workers),
                resources=dict(resources) or None,
                dashboard_address="127.0.0.1:0",  # a free port; None would be the usual one
                silence_logs=logging.ERROR,
            )
            stack.callback(cluster.close, timeout=CONNECT_S)
        try:
            client = distributed.Client(cluster, timeout=CONNECT_S, set_as_default=False)
        except OSError as exc:
            raise BadArgument(
                f"--dask {where}: no scheduler answers there ({describe(exc, 300)}): give the address that "
                "`dask scheduler` tells, or local:N"
            ) from exc
        stack.callback(client.close, timeout=CONNECT_S)
        if workers:
            client.register_plugin(_deaf_plugin(), name="agentix-deaf")
        yield client.get_executor(pure=False, **({"resources": dict(resources)} if resources else {}))


def _workers(where: str) -> int:
    kind, _, count = where.partition(":")
    if kind != "local":
        return 0
    if not count.isdigit() or int(count) < 1:
        raise BadArgument(f"--dask {where}: give local:N with the number of worker processes, local:4 say")
    return int(count)


def _deaf_plugin() -> Any:
    from distributed import WorkerPlugin

    class Deaf(WorkerPlugin):
        """Ctrl-C in a terminal goes to the workers too. They go on, and end what they run when they are told."""

        def setup(self, worker: Any) -> None:
            # Not ignored: that would go on to the sandboxes' processes.
            signal.signal(signal.SIGINT, lambda signum, frame: None)

    return Deaf()


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    """Inside, Dask logs warnings and worse only, as a part of this command."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
