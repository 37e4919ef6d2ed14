"""What adapters and instances must be: one line that names the culprit and the remedy, before anything is started."""

from __future__ import annotations

import inspect
import logging
import os
import platform as host
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadAdapter, BadArgument
from ..rollout.job import Job, Options

logger = logging.getLogger("agentix_runner")

DATASET_METHODS = ("image", "setup", "score")


def check_adapters(options: Options) -> None:
    """Raises BadAdapter for an adapter that is a class, or lacks a method of its Protocol, or has one with other
    parameters."""
    wanted = DATASET_METHODS if options.instances is not None else ("instances", *DATASET_METHODS)
    for role, adapter, methods in (
        ("dataset", options.dataset, wanted),
        ("agent", options.agent, ("solve",)),
        ("provider", options.provider, ("session",)),
    ):
        name = adapter.__qualname__ if isinstance(adapter, type) else type(adapter).__name__
        missing = [method for method in methods if not callable(getattr(adapter, method, None))]
        if missing:
            raise BadAdapter(f"{role} {name} has no method {missing[0]}(): see agentix_runner.{_PROTOCOLS[role]}")
        if isinstance(adapter, type):
            raise BadAdapter(f"{role} is the class {name}: pass an instance of it, {name}(...)")
        for method in (*methods, *_OPTIONAL[role]):
            problem = _call_problem(getattr(adapter, method, None), *_CALLS[method])
            if problem:
                called = ", ".join((*_CALLS[method][0], *(f"{key}={key}" for key in _CALLS[method][1])))
                raise BadAdapter(f"{role} {name}: {method}() is called as {method}({called}): {problem}")


def _call_problem(function: Any, positional: tuple[str, ...], named: tuple[str, ...]) -> str | None:
    """Why `function` can't be called so, as far as that can be told beforehand."""
    if not callable(function):
        return None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*positional, **dict.fromkeys(named))
    except TypeError as exc:
        return f"it takes {signature}, {exc}"
    return None


_CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "instances": ((), ()),
    "image": (("instance",), ()),
    "setup": (("sandbox", "instance"), ()),
    "score": (("sandbox", "instance", "patch"), ()),
    "sandbox": (("instance", "phase"), ()),
    "solve": (("sandbox", "instance"), ("model",)),
    "session": (("config",), ()),
}
"""How each method is called: positional arguments, and those by name."""
_OPTIONAL: dict[str, tuple[str, ...]] = {"dataset": ("sandbox",), "agent": (), "provider": ()}
_PROTOCOLS = {"dataset": "Dataset", "agent": "Agent", "provider": "SandboxProvider"}


def jobs_of(instances: Any, n_attempts: int) -> list[Job]:
    """Every rollout of the batch, in the order of the result: each instance's attempts follow each other.

    The same id again is that instance's next attempt.

    Raises: BadArgument for an instance that is no dict, or has no id.
    """
    if isinstance(instances, (str, bytes, Mapping)) or not isinstance(instances, Iterable):
        raise BadArgument(f"instances is of type {type(instances).__name__}: give a list of dicts")
    jobs: list[Job] = []
    seen: Counter[str] = Counter()
    first: dict[str, dict[str, Any]] = {}
    odd: list[str] = []
    for index, instance in enumerate(instances):
        instance_id = instance_id_of(instance, index)
        if first.setdefault(instance_id, instance) is not instance and _differ(first[instance_id], instance):
            odd.append(instance_id)
        for _ in range(n_attempts):
            jobs.append(Job(len(jobs), instance, instance_id, seen[instance_id]))
            seen[instance_id] += 1
    if odd:
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        logger.warning("instances that differ have the same id, %r%s: they count as attempts at one", odd[0], more)
    return jobs


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # arrays, for example, compare one by one
        return False


def instance_id_of(instance: Any, index: int) -> str:
    """The id of `instance`: its "instance_id", else its "id", a non-empty str or an int.

    Raises: BadArgument, naming it by its `index`.
    """
    if not isinstance(instance, dict):
        raise BadArgument(f"instance {index} is of type {type(instance).__name__}: every instance must be a dict")
    for key in ("instance_id", "id"):
        value = instance.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value:
            return str(value)
        if value is not None and value != "":
            raise BadArgument(f"instance {index} has {key}={value!r}: an id must be a str or an int")
    keys = ", ".join(map(repr, list(instance)[:5])) or "none"
    raise BadArgument(f'instance {index} has no id: give it an "instance_id" or "id" (its keys: {keys})')


def details() -> dict[str, str]:
    """For the reader of a run directory: where it ran. Never compared."""
    return {"platform": host.platform(), "program": os.path.basename(sys.argv[0]) if sys.argv else ""}
