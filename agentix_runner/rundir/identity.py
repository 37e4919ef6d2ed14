"""What a run is: the part of its arguments that must be the same for a run to be resumed, without any secret.

Adapters are told by their class, and by those of their declared fields that are plain values. Object addresses,
limits, timeouts and versions are no part of it: they may differ between two halves of one run.
"""

from __future__ import annotations

import enum
import hashlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..text import is_secret, snake_case
from .jsonable import fields_of, patch_bytes, to_jsonable_or_repr

_MAY_CHANGE = re.compile(r"limit|timeout|retr(y|ies)|version|concurren|(^|_)(verbose|debug|quiet|progress)(_|$)")
_MAX_VALUE = 2_000  # characters of a text; a longer one stands there as its hash, since run.json is for reading, too
_ROLES = ("dataset", "agent", "provider")


def identity_of(
    *,
    dataset: Any,
    agent: Any,
    provider: Any,
    bundle: str | None,
    model: str | None,
    score: bool,
    platform: str | None,
    arguments: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a run is, as JSON-able data: equal for two runs that may share a run directory.

    `arguments` are those of the command line, if there was one: `arguments["agent"]` is the path of the agent as it
    was given ("module:attr") and stands for its class here, `arguments["agent_args"]` is what was given to its
    factory; likewise for dataset and provider.
    """
    given = arguments or {}
    roles = {}
    for role, adapter in zip(_ROLES, (dataset, agent, provider), strict=True):
        path, args = given.get(role), given.get(f"{role}_args")
        about = {**_declared(adapter), **(_plain_items(args, 0) if isinstance(args, Mapping) else {})}
        if role == "provider":  # its maxima are limits, which an agent's ("max_tokens") are not
            about = {name: value for name, value in about.items() if not name.startswith("max_")}
        roles[role] = {"adapter": path if isinstance(path, str) else _class_path(adapter), **about}
    identity = {**roles, "bundle": bundle, "model": model, "score": bool(score), "platform": platform}
    cleaned: dict[str, Any] = without_secrets(identity)
    return cleaned


def without_secrets(value: Any) -> Any:
    """A copy of `value` as plain data, without what is secret by its name or by its looks.

    A secret is left out, not masked.
    """
    return _clean(to_jsonable_or_repr(value))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(name, value in `old`, value in `new`) of each thing that differs, with names such as `agent.steps`."""
    for name in sorted({*old, *new}):
        there, here = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from differences(there, here, f"{prefix}{name}.")
        elif there is _ABSENT or here is _ABSENT or _text(there) != _text(here):
            yield f"{prefix}{name}", _show(there), _show(here)


_ABSENT = object()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "not given"
    text = _text(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _class_path(adapter: Any) -> str:
    kind = adapter if isinstance(adapter, type) else type(adapter)
    return f"{kind.__module__}:{kind.__qualname__}"


def _declared(value: Any, depth: int = 0) -> dict[str, Any]:
    """The public fields of an attrs or dataclass object that are plain values and not kept from its repr."""
    fields = fields_of(type(value)) or ()
    public = [field.name for field in fields if field.init and field.repr and not field.name.startswith("_")]
    return _plain_items({name: getattr(value, name, _ABSENT) for name in public}, depth)


def _plain_items(items: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    """Those of `items` that are plain, and may not change between two halves of a run."""
    plain = {}
    for name, item in items.items():
        if isinstance(name, str) and not _MAY_CHANGE.search(snake_case(name)):
            value = _plain_value(item, depth + 1)
            if value is not _ABSENT:
                plain[name] = value
    return plain


def _plain_value(value: Any, depth: int) -> Any:
    """`value` where it says the same in another process; what has only an address there is absent."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MAX_VALUE else hashlib.sha256(patch_bytes(value)).hexdigest()
    if isinstance(value, (enum.Enum, pathlib.PurePath)):
        return to_jsonable_or_repr(value)
    if depth > 5:
        return _ABSENT
    if isinstance(value, Mapping):
        return _plain_items(value, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_plain_value(item, depth + 1) for item in value]
        if any(item is _ABSENT for item in items):
            return _ABSENT
        return sorted(items, key=_text) if isinstance(value, (set, frozenset)) else items
    if fields_of(type(value)) is not None:
        return {"class": _class_path(value), **_declared(value, depth)}
    return _ABSENT


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items() if not is_secret(item, name)}
    if isinstance(value, list):
        return [_clean(item) for item in value if not is_secret(item)]
    return None if is_secret(value) else value
