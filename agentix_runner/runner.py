"""The choreography of a rollout, and the three ways to run it: `run_rollouts`, `iter_rollouts`, `rollout_one`.

    session (retried) -> setup -> solve -> remove the sandbox -> session (retried) -> score -> remove the sandbox

Read `_rollout` top to bottom. It is a coroutine so that plain and async adapters share it; where nothing is async no
event loop takes part (see bridge.py). Which thread it is on and what ends its phases is deadline.py; how many run at
once and where their outcomes go is batch.py.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from . import checks
from .batch import Batch, Item
from .bridge import Method, NeedsLoop, Session, drive, is_async, is_async_provider, is_async_sandbox, uncancel
from .deadline import Abandoned, Clock, Job, Slot
from .errors import BadOutcome, PhaseTimeout, Stopped
from .outcome import fail, take_agent_result, take_score, take_setup
from .records import Resource, RetryPolicy, Rollout, SandboxConfig, Timeouts
from .retry import retrying
from .signals import cleaning_up

if TYPE_CHECKING:
    from .protocols import Agent, Dataset, SandboxProvider

logger = logging.getLogger("agentix_runner")


@frozen(kw_only=True)
class Spec:
    """What every rollout of a run shares. Nothing in it changes while the run goes on."""

    dataset: Any
    agent: Any
    provider: Any
    bundle: str | None
    model: str | None
    platform: str | None
    score: bool
    timeouts: Timeouts
    retry: RetryPolicy
    run_id: str
    setup: Method = field(init=False)
    solve: Method = field(init=False)
    grade: Method = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "setup", Method("setup", self.dataset.setup))
        object.__setattr__(self, "solve", Method("solve", self.agent.solve))
        object.__setattr__(self, "grade", Method("score", self.dataset.score))


class PhaseFailed(Exception):
    """A phase of a rollout ended with `error`."""

    def __init__(self, phase: str, error: BaseException) -> None:
        super().__init__(phase)
        self.phase = phase
        self.error = error


# ---------------------------------------------------------------- one rollout


async def _rollout(spec: Spec, item: Item, job: Job) -> None:
    """Run one instance to its outcome, on `job.rollout`."""
    rollout, instance = job.rollout, item.instance
    try:
        await _open(spec, item, job, "agent")
        try:
            item.emit("setup")
            if not await _phase(job, "setup", _set_up(spec, job, instance)):
                rollout.skipped = "setup_failed"
                return
            item.emit("agent")
            await _phase(job, "agent", _solve(spec, item, job, instance))
        finally:
            lingering = await _close(job)
        if not rollout.patch.strip():
            rollout.skipped = "empty_patch"
            return
        if not spec.score:
            return
        if lingering is not None:
            # What the agent left running could still touch the score: there is none.
            raise PhaseFailed("teardown", lingering)
        await _open(spec, item, job, "score")
        try:
            item.emit("score")
            await _phase(job, "score", _grade(spec, job, instance))
        finally:
            await _close(job)
    except PhaseFailed as failed:
        fail(rollout, failed.phase, failed.error)


async def _set_up(spec: Spec, job: Job, instance: dict[str, Any]) -> bool:
    return take_setup(await spec.setup(job.sandbox, job.sandbox_is_async, instance))


async def _solve(spec: Spec, item: Item, job: Job, instance: dict[str, Any]) -> None:
    rollout = job.rollout  # an abandoned job's outcome is another object: this one may still be written to
    result = await spec.solve(job.sandbox, job.sandbox_is_async, instance, model=spec.model)
    take_agent_result(rollout, result)
    files = getattr(result, "files", None)
    if files:
        item.save(files)


async def _grade(spec: Spec, job: Job, instance: dict[str, Any]) -> None:
    rollout = job.rollout
    take_score(rollout, await spec.grade(job.sandbox, job.sandbox_is_async, instance, rollout.patch))


async def _phase(job: Job, phase: str, body: Coroutine[Any, Any, Any]) -> Any:
    """Await `body` as a phase with its limit. Raises PhaseFailed, whatever comes out of it."""
    value, error = None, None
    try:
        job.begin(phase)
    except BaseException as exc:
        body.close()
        if isinstance(exc, (Stopped, PhaseTimeout)):
            raise PhaseFailed(phase, exc) from None
        raise
    try:
        value = await body
    except (Abandoned, GeneratorExit, NeedsLoop):
        raise
    except BaseException as exc:
        # Also what is no Exception: SystemExit, KeyboardInterrupt or a cancellation that came out of an adapter.
        error = exc
    reason = job.end()
    if reason is not None:
        uncancel()
        reason.__cause__ = error or reason.__cause__  # where the code was that had to be ended
        raise PhaseFailed(phase, reason) from None
    if error is not None:
        raise PhaseFailed(phase, error) from None
    return value


async def _open(spec: Spec, item: Item, job: Job, phase: str) -> None:
    """Make the sandbox for a phase, "agent" or "score": `job.sandbox`."""
    try:
        await _phase(job, "session", _enter(spec, item, job, phase))
    except (PhaseFailed, Abandoned):
        # The limit may have run out just when the sandbox was ready; an abandoned enter may still succeed, late.
        if job.session is not None:
            await _close(job)
        raise


async def _enter(spec: Spec, item: Item, job: Job, phase: str) -> None:
    config = _config(spec, item, phase)

    async def enter() -> tuple[Session, Any]:
        session = Session(spec.provider.session(config))
        return session, await session.enter()

    session, sandbox = await retrying(enter, spec.retry, sleep=job.sleep)
    job.opened(session, sandbox, session.is_async_only or is_async_sandbox(sandbox))


def _config(spec: Spec, item: Item, phase: str) -> SandboxConfig:
    image = spec.dataset.image(item.instance)
    if not isinstance(image, str):
        raise BadOutcome(f"image() returned {type(image).__name__}: return the image's name as a str", where="image")
    choose = getattr(spec.dataset, "sandbox", None)
    chosen = {} if choose is None else dict(choose(item.instance, phase) or {})
    unknown = sorted(set(chosen) - {"resource", "env", "network"})
    if unknown:
        raise BadOutcome(f"sandbox() returned {unknown[0]!r}: it may give resource, env and network", where="sandbox")
    if isinstance(chosen.get("resource"), Mapping):
        chosen["resource"] = Resource(**chosen["resource"])
    return SandboxConfig(
        image=image,
        bundle=spec.bundle,
        platform=spec.platform,
        labels={
            "run_id": spec.run_id,
            "instance_id": item.instance_id,
            "attempt": str(item.attempt),
            "phase": phase,
        },
        on_log=item.log,
        **chosen,
    )


async def _close(job: Job) -> BaseException | None:
    """Remove the sandbox. Returns what went wrong: it never replaces the rollout's own outcome."""
    session = job.session
    assert session is not None
    try:
        await _phase(job, "teardown", session.exit())
    except PhaseFailed as failed:
        logger.warning("instance %s: removing its sandbox failed", job.rollout.instance_id, exc_info=failed.error)
        return failed.error
    except Abandoned:
        await session.exit()
        raise
    finally:
        job.closed()
    return None


def _on_slot(spec: Spec, item: Item, job: Job, slot: Slot) -> None:
    """Run a rollout on its slot's thread, on the slot's loop if anything is async. Raises only Abandoned."""
    rollout = job.rollout
    try:
        if not item.shared.needs_loop:
            try:
                drive(_rollout(spec, item, job))
            except NeedsLoop:
                # A provider that can't be told to be async before it is asked for a session.
                item.shared.needs_loop = True
                rollout.phases.clear()
        if item.shared.needs_loop:
            job.loop = slot.loop()
            job.loop.run(_rollout(spec, item, job), job.escaped)
    except Abandoned:
        raise
    except BaseException as exc:
        logger.exception("instance %s: an error of the runner's own", item.instance_id)
        fail(rollout, job.phase, exc)
    finally:
        job.loop = None
    job.finish()


# ---------------------------------------------------------------- many rollouts


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
) -> list[Rollout]:
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
            `agentix_runner.cli.progress.Progress`, or None.
        arguments: noted in `run_dir`, and part of what makes it the same run: how the adapters were made, say.

    Callbacks run in the caller's thread; one that raises is logged. Ctrl-C raises KeyboardInterrupt after everything
    was removed; SIGTERM and SIGHUP, in the main thread, do the same and then end the process.

    Raises:
        BadArgument, BadAdapter, RunDirError: before anything is started.
        JournalError: a finished rollout could not be written to `run_dir`; the run was stopped.
    """
    batch = _prepare(**locals())
    rollouts = dict.fromkeys(range(batch.size), Rollout(instance_id=""))
    with cleaning_up(), closing(batch):
        rollouts.update(batch.outcomes())
    return list(rollouts.values())


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
) -> Batch:
    """Check every argument and open the run directory. Nothing is started."""
    checks.adapters(dataset, agent, provider, instances_given=instances is not None)
    checks.counts(n_concurrent=n_concurrent, n_attempts=n_attempts, max_errors=max_errors)
    checks.kinds(
        bundle=bundle, model=model, platform=platform, timeouts=timeouts, retry=retry, stop=stop,
        on_result=on_result, on_event=on_event,
    )  # fmt: skip
    jobs = checks.jobs(dataset.instances() if instances is None else instances, n_attempts)
    needs_loop = is_async_provider(provider) or any(map(is_async, (dataset.setup, dataset.score, agent.solve)))
    checks.file_descriptors(
        n_loops=min(n_concurrent, len(jobs)) if needs_loop else 0,
        n_sessions=min(n_concurrent, len(jobs)),
        per_session=getattr(provider, "fds_per_session", 0),
    )
    journal = None
    if run_dir is not None:
        from .rundir import RunDir, identity_of

        identity = identity_of(
            dataset=dataset, agent=agent, provider=provider, bundle=bundle, model=model, score=score,
            platform=platform, arguments=arguments,
        )  # fmt: skip
        journal = RunDir.open(run_dir, identity=identity, details=checks.details(), retry_errors=retry_errors)
    try:
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
            run_id=journal.run_id if journal is not None else uuid.uuid4().hex[:12],
        )
        return Batch(
            jobs,
            work=partial(_on_slot, spec),
            clock=Clock(spec.timeouts),
            model=model,
            n_concurrent=n_concurrent,
            needs_loop=needs_loop,
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
    from .cli.progress import make_progress  # a library call without progress needs nothing of the command line

    return make_progress(progress, sys.stderr)
