"""The choreography of one rollout, from its first sandbox to its last. Read `_rollout` top to bottom.

    session (retried) -> setup -> solve -> remove the sandbox -> session (retried) -> score -> remove the sandbox

It is a coroutine so that plain and async adapters share it; where nothing is async no event loop takes part (see
bridge.py). Which thread it is on and what ends its phases is deadline.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from attrs import field, frozen

from ..errors import BadOutcome, PhaseTimeout, Stopped
from ..records import Failure, Resource, RetryPolicy, Rollout, SandboxConfig, Timeouts
from .bridge import Method, NeedsLoop, Session, drive, is_async_provider, is_async_sandbox, uncancel
from .result import fail, take_agent_result, take_score, take_setup, tell
from .retry import retrying
from .slots import Abandoned, Job, Slot

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
    run_id: str = ""
    setup: Method = field(init=False)
    solve: Method = field(init=False)
    grade: Method = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "setup", Method("setup", self.dataset.setup))
        object.__setattr__(self, "solve", Method("solve", self.agent.solve))
        object.__setattr__(self, "grade", Method("score", self.dataset.score))

    @property
    def needs_loop(self) -> bool:
        """Whether anything is known to be async before a session is asked for."""
        return is_async_provider(self.provider) or self.setup.is_async or self.solve.is_async or self.grade.is_async


class Shared(Protocol):
    """What the rollouts of one place learn from each other."""

    needs_loop: bool


class Item:
    """One rollout on its way: what to run, and where what it emits goes."""

    __slots__ = ("attempt", "done", "emit", "instance", "instance_id", "log", "save", "shared")

    def __init__(self, instance: dict[str, Any], instance_id: str, attempt: int) -> None:
        self.instance = instance
        self.instance_id = instance_id
        self.attempt = attempt
        self.emit: Callable[[str], None] = _ignore
        self.log: Callable[[bytes], None] | None = None
        self.save: Callable[[Mapping[str, str | bytes]], None] = _ignore
        self.done: Callable[[], None] = _nothing
        self.shared: Shared

    def new_rollout(self, model: str | None) -> Rollout:
        return Rollout(self.instance_id, attempt=self.attempt, model=model)


def _ignore(value: Any) -> None:
    """Nobody wants to know."""


def _nothing() -> None:
    """There is nothing to let go of."""


class PhaseFailed(Exception):
    """A phase of a rollout ended with `error`; `told` is all that is kept of it."""

    def __init__(self, phase: str, error: BaseException, told: Failure) -> None:
        super().__init__(phase)
        self.phase = phase
        self.error = error
        self.told = told


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
            raise lingering
        await _open(spec, item, job, "score")
        try:
            item.emit("score")
            await _phase(job, "score", _grade(spec, job, instance))
        finally:
            await _close(job)
    except PhaseFailed as failed:
        fail(rollout, failed.phase, failed.error, failed.told)


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
    value, error, told = None, None, None
    try:
        job.begin(phase)
    except BaseException as exc:
        body.close()
        if isinstance(exc, (Stopped, PhaseTimeout)):
            raise PhaseFailed(phase, exc, tell(phase, exc)) from None
        raise
    try:
        value = await body
    except (Abandoned, GeneratorExit, NeedsLoop):
        raise
    except BaseException as exc:
        # Also what is no Exception: SystemExit, KeyboardInterrupt or a cancellation that came out of an adapter.
        error = exc
        told = tell(phase, exc)  # within the limit: its str() is an adapter's code too
    reason = job.end()
    if reason is not None:
        uncancel()
        ending = tell(phase, reason)
        if told is not None:
            ending.traceback += f"\nWhat ran when it was ended:\n{told.traceback}"
        raise PhaseFailed(phase, reason, ending) from None
    if error is not None and told is not None:
        raise PhaseFailed(phase, error, told) from None
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


async def _close(job: Job) -> PhaseFailed | None:
    """Remove the sandbox. Returns what went wrong: it never replaces the rollout's own outcome."""
    session = job.session
    assert session is not None
    try:
        await _phase(job, "teardown", session.exit())
    except PhaseFailed as failed:
        logger.warning("instance %s: removing its sandbox failed: %s", job.rollout.instance_id, failed.told.traceback)
        return failed
    except Abandoned:
        await session.exit()
        raise
    finally:
        job.closed()
    return None


def run_on_slot(spec: Spec, item: Item, job: Job, slot: Slot) -> None:
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
