"""What an argument must be: one line that names the culprit and the remedy, before anything is started."""

from __future__ import annotations

import inspect
import logging
import os
import platform as host
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from ..errors import BadAdapter, BadArgument
from ..records import RetryPolicy, Timeouts

logger = logging.getLogger("agentix_runner")

DATASET_METHODS = ("image", "setup", "score")


@frozen
class Planned:
    """One rollout to be: the instance, its id, and which attempt at it this is."""

    instance: dict[str, Any]
    instance_id: str
    attempt: int


def adapters(dataset: Any, agent: Any, provider: Any, *, instances_given: bool = False) -> None:
    """Raises BadAdapter for an adapter that is a class, or lacks a method of its Protocol, or has one with other
    parameters."""
    wanted = DATASET_METHODS if instances_given else ("instances", *DATASET_METHODS)
    for role, adapter, methods in (
        ("dataset", dataset, wanted),
        ("agent", agent, ("solve",)),
        ("provider", provider, ("session",)),
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


def counts(*, n_concurrent: Any, n_attempts: Any, max_errors: Any) -> None:
    """Raises BadArgument for a number that is none, or out of range."""
    for name, value in (("n_concurrent", n_concurrent), ("n_attempts", n_attempts)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadArgument(f"{name} is {value!r}: give a whole number, 1 or more")
        if value < 1:
            raise BadArgument(f"{name} is {value}: it must be 1 or more")
    if max_errors is None:
        return
    if isinstance(max_errors, bool) or not isinstance(max_errors, (int, float)) or not max_errors >= 0:
        raise BadArgument(f"max_errors is {max_errors!r}: give a count, a fraction below 1, or None for no limit")
    if max_errors > 1 and max_errors != int(max_errors):
        raise BadArgument(f"max_errors is {max_errors!r}: from 1 on it is a count, a whole number")


def kinds(**arguments: Any) -> None:
    """Raises BadArgument for an argument of the wrong type."""
    wanted: dict[str, tuple[Any, str]] = {
        "bundle": (str, "a str"),
        "model": (str, "a str"),
        "platform": (str, 'a str such as "linux/amd64"'),
        "timeouts": (Timeouts, "Timeouts(agent=600, ...)"),
        "retry": (RetryPolicy, "RetryPolicy(attempts=4, ...)"),
        "stop": (threading.Event, "a threading.Event"),
    }
    for name, value in arguments.items():
        if value is None:
            continue
        if name not in wanted:
            if not callable(value):
                raise BadArgument(f"{name} is {value!r}: give a function, or None")
        elif not isinstance(value, wanted[name][0]):
            raise BadArgument(f"{name} is {value!r}: give {wanted[name][1]}, or None")


def jobs(instances: Any, n_attempts: int) -> list[Planned]:
    """Every rollout of the batch, in the order of the result: each instance's attempts follow each other.

    The same id again is that instance's next attempt.

    Raises: BadArgument for an instance that is no dict, or has no id.
    """
    if isinstance(instances, (str, bytes, Mapping)) or not isinstance(instances, Iterable):
        raise BadArgument(f"instances is of type {type(instances).__name__}: give a list of dicts")
    planned = []
    seen: Counter[str] = Counter()
    first: dict[str, dict[str, Any]] = {}
    odd: list[str] = []
    for index, instance in enumerate(instances):
        instance_id = instance_id_of(instance, index)
        if first.setdefault(instance_id, instance) is not instance and _differ(first[instance_id], instance):
            odd.append(instance_id)
        for _ in range(n_attempts):
            planned.append(Planned(instance, instance_id, seen[instance_id]))
            seen[instance_id] += 1
    if odd:
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        logger.warning("instances that differ have the same id, %r%s: they count as attempts at one", odd[0], more)
    return planned


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
