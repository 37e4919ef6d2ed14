"""The records of a run: what it was asked (`Options`), one rollout to run (`Job`), why it stops (`Stop`), and where
what a rollout emits goes (`Sink`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

from attrs import field, frozen

from ..errors import BadArgument, Stopped
from ..protocols import Agent, Dataset, SandboxProvider
from ..records import RetryPolicy, Rollout, Timeouts


def _of(kind: type, what: str) -> Any:
    """A validator: the value is None, or a `kind`."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if value is not None and not isinstance(value, kind):
            raise BadArgument(f"{attribute.name} is {value!r}: give {what}, or None")

    return check


def _function(instance: Any, attribute: Any, value: Any) -> None:
    if value is not None and not callable(value):
        raise BadArgument(f"{attribute.name} is {value!r}: give a function, or None")


def _count(instance: Any, attribute: Any, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadArgument(f"{attribute.name} is {value!r}: give a whole number, 1 or more")
    if value < 1:
        raise BadArgument(f"{attribute.name} is {value}: it must be 1 or more")


def _count_or_fraction(instance: Any, attribute: Any, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise BadArgument(f"{attribute.name} is {value!r}: give a count, a fraction below 1, or None for no limit")
    if value > 1 and value != int(value):
        raise BadArgument(f"{attribute.name} is {value!r}: from 1 on it is a count, a whole number")


@frozen(kw_only=True)
class Options:
    """What a run was asked: the arguments of `run_rollouts`, which says what each means. Nothing in it changes.

    Raises: BadArgument, when it is made, for a value of the wrong kind. Adapters are checked by batch/checks.py.
    """

    dataset: Dataset
    agent: Agent
    provider: SandboxProvider
    bundle: str | None = field(default=None, validator=_of(str, "a str"))
    model: str | None = field(default=None, validator=_of(str, "a str"))
    instances: Iterable[dict[str, Any]] | None = None
    n_concurrent: int = field(default=1, validator=_count)
    n_attempts: int = field(default=1, validator=_count)
    platform: str | None = field(default=None, validator=_of(str, 'a str such as "linux/amd64"'))
    score: bool = True
    timeouts: Timeouts | None = field(default=None, validator=_of(Timeouts, "Timeouts(agent=600, ...)"))
    retry: RetryPolicy | None = field(default=None, validator=_of(RetryPolicy, "RetryPolicy(attempts=4, ...)"))
    max_errors: float | None = field(default=None, validator=_count_or_fraction)
    run_dir: str | os.PathLike[str] | None = None
    retry_errors: bool = False
    stop: threading.Event | None = field(default=None, validator=_of(threading.Event, "a threading.Event"))
    on_result: Callable[[Rollout], None] | None = field(default=None, validator=_function)
    on_event: Callable[[str, str], None] | None = field(default=None, validator=_function)
    progress: Any = None
    arguments: Mapping[str, Any] | None = None
    executor: Executor | None = None


@frozen
class Job:
    """One rollout to run. It can be pickled where its instance can.

    `number` is its place in the result, `attempt` which attempt at the instance it is.
    """

    number: int
    instance: dict[str, Any]
    instance_id: str
    attempt: int

    @property
    def key(self) -> tuple[str, int]:
        """What it is called in a run directory."""
        return self.instance_id, self.attempt

    def new_rollout(self, model: str | None) -> Rollout:
        """Its outcome, as long as there is none."""
        return Rollout(self.instance_id, attempt=self.attempt, model=model)


class Sink(Protocol):
    """Where what one rollout emits goes. All of it can be called from any thread."""

    log: Callable[[bytes], None] | None
    """Takes what its sandboxes print; None where nobody wants it."""

    def event(self, phase: str) -> None:
        """The rollout enters "setup", "agent" or "score"."""

    def save(self, files: Mapping[str, str | bytes]) -> None:
        """Keep what the agent saved. Raises: BadOutcome for files that are not text or bytes."""

    def close(self) -> None:
        """The rollout has ended: what still comes is dropped."""


class Stop:
    """Whether something is to stop, and why: a run, or one rollout. The first reason counts. From any thread.

    `on_set` is called once, by the thread that sets it; it must return at once.
    """

    def __init__(self, on_set: Callable[[], None] | None = None) -> None:
        self._on_set = on_set
        self._event = threading.Event()
        self._lock = threading.Lock()  # one thread sets it, the others find it set
        self._reason = ""

    def set(self, reason: str = "the run was stopped") -> None:
        with self._lock:
            if self._event.is_set():
                return
            self._reason = reason
            self._event.set()
        if self._on_set is not None:
            self._on_set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most `seconds`. Whether it is."""
        return self._event.wait(seconds)

    def error(self) -> Stopped:
        """The error of what does not run, or not to its end, because of it."""
        return Stopped(self._reason)
