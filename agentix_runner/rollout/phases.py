"""The phases of one rollout, from its first sandbox to its last. Read `_Rollout.run` top to bottom.

    session (retried) -> setup -> solve -> remove the sandbox -> session (retried) -> score -> remove the sandbox

They are coroutines so that plain and async adapters share them; where nothing is async no event loop takes part (see
bridge.py). Which thread they run on, and what ends a phase, is slots.py.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from ..errors import BadOutcome, PhaseTimeout, Stopped
from ..records import Failure, Resource, RetryPolicy, SandboxConfig
from .bridge import Method, drive, is_async_provider, is_async_sandbox, uncancel
from .job import Job, Options, Sink
from .result import failure_of, record_failure, take_agent_result, take_score, take_setup
from .retry import NeedsLoop, Session, retrying
from .slots import Abandoned, Slot, Supervision

logger = logging.getLogger("agentix_runner")


class Adapters:
    """The dataset, agent and provider of a run, ready to be called: made once in each process that runs rollouts.

    `needs_loop` says whether anything is known to be async; that a provider is may turn out when a session is made.
    """

    def __init__(self, options: Options, run_id: str = "") -> None:
        self.options = options
        self.run_id = run_id
        self.retry = options.retry or RetryPolicy()
        self.setup = Method("setup", options.dataset.setup)
        self.solve = Method("solve", options.agent.solve)
        self.score = Method("score", options.dataset.score)
        methods = (self.setup, self.solve, self.score)
        self.needs_loop = is_async_provider(options.provider) or any(method.is_async for method in methods)


def run_on_slot(adapters: Adapters, job: Job, sink: Sink, supervision: Supervision, slot: Slot) -> None:
    """Run a rollout on its slot's thread, on the slot's loop if anything is async. Raises only Abandoned."""
    rollout = supervision.rollout
    try:
        if not adapters.needs_loop:
            try:
                drive(_Rollout(adapters, job, sink, supervision).run())
            except NeedsLoop:
                adapters.needs_loop = True
                rollout.phases.clear()
        if adapters.needs_loop:
            supervision.loop = slot.loop()
            supervision.loop.run(_Rollout(adapters, job, sink, supervision).run(), supervision.escaped)
    except Abandoned:
        raise
    except BaseException as exc:
        logger.exception("instance %s: an error of the runner's own", job.instance_id)
        record_failure(rollout, supervision.phase, exc)
    finally:
        supervision.loop = None
    supervision.finish()


class PhaseFailed(Exception):
    """A phase of a rollout ended with `error`; `failure` is all that is kept of it."""

    def __init__(self, phase: str, error: BaseException, failure: Failure | None = None) -> None:
        super().__init__(phase)
        self.phase = phase
        self.error = error
        self.failure = failure or failure_of(phase, error)


class _Rollout:
    """One rollout on its way."""

    def __init__(self, adapters: Adapters, job: Job, sink: Sink, supervision: Supervision) -> None:
        self.adapters = adapters
        self.options = adapters.options
        self.job = job
        self.sink = sink
        self.supervision = supervision
        # Once it is abandoned the outcome is another object: this one may still be written to.
        self.rollout = supervision.rollout

    async def run(self) -> None:
        """Run the instance to its outcome, on `rollout`."""
        rollout = self.rollout
        try:
            await self._open("agent")
            try:
                if not await self._phase("setup", self._set_up()):
                    rollout.skipped = "setup_failed"
                    return
                await self._phase("agent", self._solve())
            finally:
                not_removed = await self._close()
            if not rollout.patch.strip():
                rollout.skipped = "empty_patch"
                return
            if not self.options.score:
                return
            if not_removed is not None:
                # What the agent left running could still touch the score: there is none.
                raise not_removed
            await self._open("score")
            try:
                await self._phase("score", self._score())
            finally:
                await self._close()
        except PhaseFailed as failed:
            record_failure(rollout, failed.phase, failed.error, failed.failure)

    async def _set_up(self) -> bool:
        return take_setup(await self.adapters.setup(*self._sandbox, self.job.instance))

    async def _solve(self) -> None:
        result = await self.adapters.solve(*self._sandbox, self.job.instance, model=self.options.model)
        take_agent_result(self.rollout, result)
        files = getattr(result, "files", None)
        if files:
            self.sink.save(files)

    async def _score(self) -> None:
        take_score(self.rollout, await self.adapters.score(*self._sandbox, self.job.instance, self.rollout.patch))

    @property
    def _sandbox(self) -> tuple[Any, bool]:
        return self.supervision.sandbox, self.supervision.sandbox_is_async

    async def _phase(self, phase: str, body: Coroutine[Any, Any, Any]) -> Any:
        """Await `body` as a phase with its limit. Raises PhaseFailed, whatever comes out of it."""
        value, failed = None, None
        if phase in ("setup", "agent", "score"):
            self.sink.event(phase)
        try:
            self.supervision.begin(phase)
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
            failed = PhaseFailed(phase, exc)  # within the limit: its str() is an adapter's code too
        reason = self.supervision.end()
        if reason is not None:
            uncancel()
            ended = PhaseFailed(phase, reason)
            if failed is not None:
                ended.failure.traceback += f"\nWhat ran when it was ended:\n{failed.failure.traceback}"
            failed = ended
        if failed is not None:
            raise failed from None
        return value

    async def _open(self, phase: str) -> None:
        """Make the sandbox for a phase, "agent" or "score": `supervision.sandbox`."""
        try:
            await self._phase("session", self._enter(phase))
        except (PhaseFailed, Abandoned):
            # The limit may have run out just when the sandbox was ready; an abandoned enter may still succeed, late.
            if self.supervision.session is not None:
                await self._close()
            raise

    async def _enter(self, phase: str) -> None:
        config = self._config(phase)

        async def enter() -> tuple[Session, Any]:
            session = Session(self.options.provider.session(config))
            return session, await session.enter()

        session, sandbox = await retrying(enter, self.adapters.retry, sleep=self.supervision.sleep)
        self.supervision.opened(session, sandbox, session.is_async_only or is_async_sandbox(sandbox))

    def _config(self, phase: str) -> SandboxConfig:
        dataset, job = self.options.dataset, self.job
        image: Any = dataset.image(job.instance)
        if not isinstance(image, str):
            raise BadOutcome(
                f"image() returned {type(image).__name__}: return the image's name as a str", where="image"
            )
        choose = getattr(dataset, "sandbox", None)
        chosen = {} if choose is None else dict(choose(job.instance, phase) or {})
        unknown = sorted(set(chosen) - {"resource", "env", "network"})
        if unknown:
            raise BadOutcome(
                f"sandbox() returned {unknown[0]!r}: it may give resource, env and network", where="sandbox"
            )
        if isinstance(chosen.get("resource"), Mapping):
            chosen["resource"] = Resource(**chosen["resource"])
        labels = {"run_id": self.adapters.run_id, "instance_id": job.instance_id}
        return SandboxConfig(
            image=image,
            bundle=self.options.bundle,
            platform=self.options.platform,
            labels={**labels, "attempt": str(job.attempt), "phase": phase},
            on_log=self.sink.log,
            **chosen,
        )

    async def _close(self) -> PhaseFailed | None:
        """Remove the sandbox. Returns what went wrong: it never replaces the rollout's own outcome."""
        session = self.supervision.session
        assert session is not None
        try:
            await self._phase("teardown", session.exit())
        except PhaseFailed as failed:
            text = failed.failure.traceback
            logger.warning("instance %s: removing its sandbox failed: %s", self.job.instance_id, text)
            return failed
        except Abandoned:
            await session.exit()
            raise
        finally:
            self.supervision.closed()
        return None
