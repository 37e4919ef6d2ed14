"""The three ways to run rollouts: `run_rollouts`, `iter_rollouts`, `rollout_one`.

What one rollout does, step by step, is rollout.py; how many run at once and where their outcomes go is batch.py.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing
from typing import TYPE_CHECKING, Any

from .batch import checks
from .batch.batch import Batch
from .batch.stopping import cleaning_up
from .executors.executor import place_for
from .records import RetryPolicy, Rollout, Timeouts
from .report.notebook import Rollouts
from .rollout.phases import Spec
from .threads import make_room

if TYPE_CHECKING:
    from .protocols import Agent, Dataset, SandboxProvider


def run_rollouts(
    *,
    dataset: Dataset,
    agent: Agent,
    provider: SandboxProvider,
    bundle: str | None = None,
    model: str | None = None,
    instances: Iterable[dict[str, Any]] | None = None,
    n_concurrent: int = 1,
    n_attempts: int = 1,
    platform: str | None = None,
    score: bool = True,
    timeouts: Timeouts | None = None,
    retry: RetryPolicy | None = None,
    max_errors: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    retry_errors: bool = False,
    stop: threading.Event | None = None,
    on_result: Callable[[Rollout], None] | None = None,
    on_event: Callable[[str, str], None] | None = None,
    progress: Any = None,
    arguments: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> Rollouts:
    """Run `agent` over every instance, `n_concurrent` at a time, and return one `Rollout` per job, in input order.

    What goes wrong with one instance is on its rollout (`error`, `failure`), never raised.

    Args:
        instances: the instances to run; default: all of `dataset.instances()`.
        n_attempts: how often each is run (pass@k, group sampling). Its attempts follow each other in the result.
        score: False: keep the patches, score none.
        timeouts: limits in seconds, phase by phase.
        retry: how the making of a sandbox is tried again.
        max_errors: how many rollouts may have an error before the run is stopped: a count, or, below 1, a fraction
            of the batch. None: any number.
        run_dir: where results are kept, each as soon as it is there. Running again with the same directory resumes:
            what has finished is not run again (with `retry_errors`: unless it has an error), and is in the result.
        stop: when set, no new instance starts, live sandboxes are ended, and the call returns; what did not run (to
            its end) has `error="not run: ..."` and is not kept in `run_dir`.
        on_result: called with each rollout that ran, as it ends.
        on_event: called with (instance id, phase) as a phase begins: "setup", "agent", "score".
        progress: "auto" (a bar in Jupyter, a line on a terminal), an object with the methods of
            `agentix_runner.report.progress.Progress`, or None.
        arguments: noted in `run_dir`, and part of what makes it the same run: how the adapters were made, say.
        executor: where rollouts run: any `concurrent.futures.Executor`; default: threads of its own. It is left as it
            is. `n_concurrent` of its workers are used, or as many as there are. With a `ThreadPoolExecutor` everything
            is as without; for others the adapters, the provider and the instances are pickled (with cloudpickle, where
            that is installed), logs, files and events of a rollout come back when it ends, and `run_dir` is here. A
            stop reaches what runs on Dask (`client.get_executor(pure=False)`) and in processes of this machine; on
            other executors it means that nothing new starts.

    Callbacks run in the caller's thread; one that raises is logged. Ctrl-C raises KeyboardInterrupt after everything
    was removed; SIGTERM and SIGHUP, in the main thread, do the same and then end the process.

    Raises:
        BadArgument, BadAdapter, RunDirError: before anything is run.
        JournalError: a finished rollout could not be written to `run_dir`; the run was stopped.
    """
    batch = _prepare(**locals())
    rollouts = dict.fromkeys(range(batch.size), Rollout(instance_id=""))
    with cleaning_up(), closing(batch):
        rollouts.update(batch.outcomes())
    return Rollouts(rollouts.values())


def iter_rollouts(
    *,
    dataset: Dataset,
    agent: Agent,
    provider: SandboxProvider,
    bundle: str | None = None,
    model: str | None = None,
    instances: Iterable[dict[str, Any]] | None = None,
    n_concurrent: int = 1,
    n_attempts: int = 1,
    platform: str | None = None,
    score: bool = True,
    timeouts: Timeouts | None = None,
    retry: RetryPolicy | None = None,
    max_errors: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    retry_errors: bool = False,
    stop: threading.Event | None = None,
    on_result: Callable[[Rollout], None] | None = None,
    on_event: Callable[[str, str], None] | None = None,
    progress: Any = None,
    arguments: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> Iterator[Rollout]:
    """The same as `run_rollouts`, but yields each rollout as it finishes (those of an earlier run of `run_dir` first).

    Arguments are checked, and the run directory is opened, at the call; work starts with the first `next`. Closing
    the iterator (or leaving a `for` over it and dropping it) is a stop.
    """
    rollouts = _rollouts_of(_prepare(**locals()))
    next(rollouts)  # up to where closing the iterator releases what the call has opened
    return rollouts


def _rollouts_of(batch: Batch) -> Iterator[Rollout]:
    with closing(batch):
        yield Rollout(instance_id="")
        for _, rollout in batch.outcomes():
            yield rollout


def _prepare(
    *,
    dataset: Any,
    agent: Any,
    provider: Any,
    bundle: str | None,
    model: str | None,
    instances: Iterable[dict[str, Any]] | None,
    n_concurrent: int,
    n_attempts: int,
    platform: str | None,
    score: bool,
    timeouts: Timeouts | None,
    retry: RetryPolicy | None,
    max_errors: float | None,
    run_dir: str | os.PathLike[str] | None,
    retry_errors: bool,
    stop: threading.Event | None,
    on_result: Callable[[Rollout], None] | None,
    on_event: Callable[[str, str], None] | None,
    progress: Any,
    arguments: Mapping[str, Any] | None,
    executor: Executor | None,
) -> Batch:
    """Check every argument and open the run directory. Nothing is started."""
    checks.adapters(dataset, agent, provider, instances_given=instances is not None)
    checks.counts(n_concurrent=n_concurrent, n_attempts=n_attempts, max_errors=max_errors)
    checks.kinds(
        bundle=bundle, model=model, platform=platform, timeouts=timeouts, retry=retry, stop=stop,
        on_result=on_result, on_event=on_event,
    )  # fmt: skip
    jobs = checks.jobs(dataset.instances() if instances is None else instances, n_attempts)
    spec = Spec(
        dataset=dataset,
        agent=agent,
        provider=provider,
        bundle=bundle,
        model=model,
        platform=platform,
        score=score,
        timeouts=timeouts or Timeouts(),
        retry=retry or RetryPolicy(),
    )
    place = place_for(executor, spec, n_concurrent=n_concurrent, keeps=run_dir is not None, jobs=jobs)
    if place.is_here:
        check = getattr(provider, "check_run", None)
        if check is not None:
            check(bundle=bundle, platform=platform)
        make_room(
            n_loops=min(n_concurrent, len(jobs)) if spec.needs_loop else 0,
            n_sessions=min(n_concurrent, len(jobs)),
            per_session=getattr(provider, "fds_per_session", 0),
        )
    journal = None
    if run_dir is not None:
        from .rundir.directory import RunDir, identity_of

        identity = identity_of(
            dataset=dataset, agent=agent, provider=provider, bundle=bundle, model=model, score=score,
            platform=platform, arguments=arguments,
        )  # fmt: skip
        details = {**checks.details(), "rollouts": len(jobs)}
        journal = RunDir(run_dir, identity=identity, details=details, retry_errors=retry_errors)
    try:
        return Batch(
            jobs,
            place=place,
            run_id=journal.run_id if journal is not None else uuid.uuid4().hex[:12],
            model=model,
            max_errors=max_errors,
            journal=journal,
            stop=stop,
            on_result=on_result,
            on_event=on_event,
            progress=_progress(progress),
        )
    except BaseException:
        if journal is not None:
            journal.close()
        raise


def rollout_one(
    instance: dict[str, Any],
    *,
    dataset: Dataset,
    agent: Agent,
    provider: SandboxProvider,
    bundle: str | None = None,
    model: str | None = None,
    platform: str | None = None,
    score: bool = True,
    timeouts: Timeouts | None = None,
    retry: RetryPolicy | None = None,
    stop: threading.Event | None = None,
    on_event: Callable[[str, str], None] | None = None,
) -> Rollout:
    """Run one instance, once. Arguments and errors as of `run_rollouts`."""
    [rollout] = run_rollouts(
        dataset=dataset,
        agent=agent,
        provider=provider,
        bundle=bundle,
        model=model,
        instances=[instance],
        platform=platform,
        score=score,
        timeouts=timeouts,
        retry=retry,
        stop=stop,
        on_event=on_event,
    )
    return rollout


def _progress(progress: Any) -> Any:
    if not isinstance(progress, str):
        return progress
    from .report.progress import make_progress  # a library call without progress needs nothing of the command line

    return make_progress(progress, sys.stderr)
