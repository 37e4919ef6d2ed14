"""The three ways to run rollouts: `run_rollouts`, `iter_rollouts`, `rollout_one`. Each makes its arguments `Options`.

What one rollout does, step by step, is rollout/phases.py; how many run at once and where their outcomes go is
batch/batch.py.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .batch import checks
from .batch.batch import Batch
from .batch.stopping import cleaning_up
from .executors.executor import executor_for
from .executors.threads import ThreadExecutor
from .records import RetryPolicy, Rollout, Timeouts
from .report.notebook import Rollouts
from .report.progress import make_progress
from .rollout.job import Options
from .rundir.directory import RunDir, identity_of
from .threads import make_room

if TYPE_CHECKING:
    from .protocols import Agent, Dataset, SandboxProvider

P = ParamSpec("P")
T = TypeVar("T")


def _with_arguments_of(options: Callable[P, Options]) -> Callable[[Callable[[Options], T]], Callable[P, T]]:
    """Makes of a function of `Options` one that takes the options themselves, as its keyword arguments."""

    def decorate(function: Callable[[Options], T]) -> Callable[P, T]:
        own = inspect.signature(function)
        signature = inspect.signature(options).replace(return_annotation=own.return_annotation)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            signature.bind(*args, **kwargs)  # a wrong name is this function's error
            return function(options(*args, **kwargs))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


@_with_arguments_of(Options)
def run_rollouts(options: Options) -> Rollouts:
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
    batch = _prepare(options)
    rollouts: dict[int, Rollout] = {}
    with cleaning_up(), closing(batch):
        for job, rollout in batch.outcomes():
            rollouts[job.number] = rollout
    return Rollouts(rollouts[number] for number in sorted(rollouts))


@_with_arguments_of(Options)
def iter_rollouts(options: Options) -> Iterator[Rollout]:
    """The same as `run_rollouts`, but yields each rollout as it finishes (those of an earlier run of `run_dir` first).

    Arguments are checked, and the run directory is opened, at the call; work starts with the first `next`. Closing
    the iterator (or leaving a `for` over it and dropping it) is a stop.
    """
    rollouts = _rollouts_of(_prepare(options))
    next(rollouts)  # up to where closing the iterator releases what the call has opened
    return rollouts


def _rollouts_of(batch: Batch) -> Iterator[Rollout]:
    with closing(batch):
        yield Rollout(instance_id="")
        for _, rollout in batch.outcomes():
            yield rollout


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


def _prepare(options: Options) -> Batch:
    """Check the adapters and the instances, and open the run directory. Nothing is started."""
    checks.check_adapters(options)
    instances = options.dataset.instances() if options.instances is None else options.instances
    jobs = checks.jobs_of(instances, options.n_attempts)
    executor = executor_for(options, jobs)
    if isinstance(executor, ThreadExecutor):
        provider: Any = options.provider
        check_run = getattr(provider, "check_run", None)
        if check_run is not None:
            check_run(bundle=options.bundle, platform=options.platform)
        at_once = min(options.n_concurrent, len(jobs))
        make_room(
            n_loops=at_once if executor.needs_loop else 0,
            n_sessions=at_once,
            per_session=getattr(provider, "fds_per_session", 0),
        )
    run_dir = None
    if options.run_dir is not None:
        identity = identity_of(
            dataset=options.dataset, agent=options.agent, provider=options.provider, bundle=options.bundle,
            model=options.model, score=options.score, platform=options.platform, arguments=options.arguments,
        )  # fmt: skip
        details = {**checks.details(), "rollouts": len(jobs)}
        run_dir = RunDir(options.run_dir, identity=identity, details=details, retry_errors=options.retry_errors)
    try:
        progress = options.progress
        if isinstance(progress, str):
            progress = make_progress(progress, sys.stderr)
        return Batch(options, jobs, executor=executor, run_dir=run_dir, progress=progress)
    except BaseException:
        if run_dir is not None:
            run_dir.close()
        raise
