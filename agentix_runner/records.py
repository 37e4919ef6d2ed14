"""The records that travel through a run: what a sandbox should be, what an agent made, what became of an instance.

All are attrs classes. Configurations are frozen and keyword-only. Times are seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from attrs import Factory, define, field, frozen

from .errors import BadArgument
from .text import html_block, html_line, html_table, seconds

LIMITED_PHASES = ("session", "setup", "agent", "score", "teardown")
"""The phases of a rollout, each with a limit of that name in `Timeouts`."""

STATUSES = ("resolved", "unresolved", "empty_patch", "setup_failed", "error", "not_run", "not_scored")
"""What a rollout can have come to; the counts of these add up to all rollouts."""

_COLORS = {"resolved": "#2c9c69", "unresolved": "#d8932a", "error": "#d1453f", "setup_failed": "#8d62c9"}


def _positive(instance: Any, attribute: Any, value: float | None) -> None:
    if value is None:
        return
    name = f"{type(instance).__name__}.{attribute.name}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadArgument(f"{name} is {value!r}: give a number above 0, or None for no limit")
    if not value > 0 or math.isinf(value):
        raise BadArgument(f"{name} is {value!r}: it must be above 0 (None for no limit)")


def _not_negative(instance: Any, attribute: Any, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise BadArgument(f"{type(instance).__name__}.{attribute.name} is {value!r}: give a number, 0 or more")


def _count(instance: Any, attribute: Any, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(f"{type(instance).__name__}.{attribute.name} is {value!r}: give a whole number, 1 or more")


@frozen(kw_only=True)
class Resource:
    """What a sandbox may use. `cpu` is a number of CPUs (0.5 is half of one), `memory` bytes or text such as "4g",
    `gpu` a number of GPUs. None leaves it to the provider."""

    cpu: float | None = field(default=None, validator=_positive)
    memory: int | str | None = field(default=None)
    gpu: int | None = field(default=None, validator=_positive)

    @memory.validator
    def _check_memory(self, attribute: Any, value: int | str | None) -> None:
        if isinstance(value, str):
            if not value.strip():
                raise BadArgument('Resource.memory is empty: give bytes, or text such as "4g"')
        else:
            _positive(self, attribute, value)


@frozen(kw_only=True)
class SandboxConfig:
    """What a provider needs to know to make one sandbox.

    `image`, `bundle`, `platform`, `env` and `resource` are the attribute names that async Agentix providers read, so
    those work here unchanged. The rest is optional for a provider: `network` (None leaves it to the provider),
    `labels` (run, instance, attempt and phase of the rollout that it is for) and `on_log`, which takes what the
    sandbox prints, as bytes, from any thread.
    """

    image: str
    bundle: str | None = None
    platform: str | None = None
    env: Mapping[str, str] | None = None
    resource: Resource | None = None
    network: str | None = None
    labels: Mapping[str, str] = Factory(dict)
    on_log: Callable[[bytes], None] | None = field(default=None, eq=False, repr=False)


@frozen(kw_only=True)
class Timeouts:
    """Limits in seconds, None for no limit.

    `session` is for making one sandbox, retries included; `setup`, `agent` and `score` for the adapters' methods;
    `teardown` for removing one sandbox; `total` for a whole rollout.
    """

    session: float | None = field(default=600, validator=_positive)
    setup: float | None = field(default=1800, validator=_positive)
    agent: float | None = field(default=3600, validator=_positive)
    score: float | None = field(default=1800, validator=_positive)
    teardown: float | None = field(default=60, validator=_positive)
    total: float | None = field(default=None, validator=_positive)


@frozen(kw_only=True)
class RetryPolicy:
    """How the making of a sandbox is tried again; nothing else of a rollout ever is.

    `attempts` counts the first one. Waits are exponential in seconds from `wait_initial` up to `wait_max`, with a
    random part of up to `wait_jitter` added. `is_transient` decides which errors are worth it (default:
    `agentix_runner.errors.is_transient`).
    """

    attempts: int = field(default=4, validator=_count)
    wait_initial: float = field(default=1.0, validator=_not_negative)
    wait_max: float = field(default=30.0, validator=_not_negative)
    wait_jitter: float = field(default=1.0, validator=_not_negative)
    is_transient: Callable[[BaseException], bool] | None = None


@define
class AgentResult:
    """What an agent made of one instance.

    `patch` is a unified diff (text, or bytes), `exit_code` that of the agent's own process, `info` the agent's own
    notes (tokens, cost, a trajectory's path): anything, stored as JSON, with `repr` for what JSON can't hold.
    `files` are kept in the rollout's folder of the run directory, by name.
    """

    patch: str = ""
    exit_code: int | None = None
    info: dict[str, Any] = Factory(dict)
    files: dict[str, str | bytes] = Factory(dict)


@define
class Failure:
    """Why a rollout has an error: the `phase` it was in, the error's `type`, `message` and `traceback` as text, and
    whether it was `transient` (the same may well work another time)."""

    phase: str
    type: str
    message: str
    traceback: str = ""
    transient: bool = False


@define
class Rollout:
    """What became of one attempt at one instance.

    Exactly one of these holds: it has a `score` (or scoring was not asked for), a `skipped` reason ("setup_failed",
    "empty_patch"), or an `error`. An error keeps the patch, if there was one.

    `phases` are (name, start, end) in seconds from `started_at`, which is a Unix time: session, setup, agent,
    teardown, session, score, teardown. `info` is the agent's own, `failure` tells more about `error`.
    """

    instance_id: str
    patch: str = ""
    score: dict[str, Any] | None = None
    agent_exit: int | None = None
    error: str | None = None
    skipped: str | None = None
    duration_s: float = 0.0
    attempt: int = 0
    model: str | None = None
    started_at: float | None = None
    phases: list[tuple[str, float, float]] = Factory(list)
    info: dict[str, Any] = Factory(dict)
    failure: Failure | None = None

    @property
    def resolved(self) -> bool:
        """True when the score says so (`score["resolved"]`) and nothing failed."""
        return self.error is None and bool(self.score and self.score.get("resolved"))

    @property
    def reward(self) -> float | None:
        """`score["reward"]` where it is given, else 1.0 (resolved) or 0.0; None where no scoring happened."""
        if self.score is None or self.error is not None:
            return None
        given = self.score.get("reward")
        if isinstance(given, (int, float)):
            try:
                return float(given)
            except OverflowError:  # a whole number beyond what a float holds
                return math.inf if given > 0 else -math.inf
        return 1.0 if self.resolved else 0.0

    @property
    def status(self) -> str:
        """One word: "error", "setup_failed", "empty_patch", "resolved", "unresolved", or "not_scored"."""
        if self.error is not None:
            return "error"
        if self.skipped is not None:
            return self.skipped
        if self.score is None:
            return "not_scored"
        return "resolved" if self.resolved else "unresolved"

    def _repr_html_(self) -> str:
        """The rollout as Jupyter shows it: all of it, long texts folded."""
        failure = self.failure
        phases = ", ".join(f"{html_line(name, 40)} {seconds(end - start)}" for name, start, end in self.phases)
        return html_table(
            {
                "instance": html_line(self.instance_id, 400),
                "attempt": str(self.attempt or ""),
                "status": status_html(self),
                f"error in {html_line(failure.phase, 40)}" if failure else "error": html_line(self.error or "", 2000),
                "traceback": html_block(failure.traceback) if failure and failure.traceback else "",
                "duration": seconds(self.duration_s),
                "phases": phases,
                "score": _html_of(self.score),
                "info": _html_of(self.info),
                "model": html_line(self.model or "", 200),
                "patch": html_block(self.patch) if self.patch else "",
            }
        )

    @property
    def ran(self) -> bool:
        """False for a rollout that a stop or `max_errors` kept from running or from finishing."""
        return not (self.error or "").startswith(NOT_RUN)


NOT_RUN = "not run: "
"""How the error of a rollout begins that did not run (to its end) because the run was stopped."""


def status_of(rollout: Rollout) -> str:
    """One of `STATUSES`: what the rollout counts as, "not_run" too."""
    return rollout.status if rollout.ran else "not_run"


def status_html(rollout: Rollout) -> str:
    """The status as Jupyter shows it: a dot of its colour, and its words."""
    status = status_of(rollout)
    return f'<span style="color:{_COLORS.get(status, "#8f9bab")}">●</span>&nbsp;{status.replace("_", " ")}'


def _html_of(data: Mapping[str, Any] | None) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False, default=repr) if data else ""
    return text and html_block(text, folded=len(text) > 300)
