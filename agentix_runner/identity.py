"""What a run is: the part of its arguments that must be the same for a run to be resumed, without any secret.

Adapters are told by their class, and by those of their declared fields that are plain values. Object addresses,
limits, timeouts and versions are no part of it: they may differ between two halves of one run.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .plain import plain_lenient

_SECRET_NAME = re.compile(
    r"key(s|_|$)|tokens?(_|$)|secret|passw|passphrase|authorization|(^|_)auth(_|$)|credential|bearer|cookie"
)
_SECRET_VALUE = re.compile(
    r"\b(sk|rk|pk|ak)-[\w-]{8,}"  # OpenAI, Anthropic and their like
    r"|\b(bearer|basic)\s+[\w+/=.~-]{8,}"
    r"|\b(ghp|gho|ghu|ghs|ghr|github_pat|glpat|hf|xox[abprs]|pypi|npm|gsk|xai)[-_][\w-]{8,}"
    r"|\bA(KIA|SIA)[0-9A-Z]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}"  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s@]+@"  # a password in a URL
    r"|(api[-_]?key|access[-_]?token|secret|password)[\"']?\s*[=:]\s*\S",
    re.IGNORECASE,
)
_MAY_CHANGE = re.compile(r"limit|timeout|retr(y|ies)|version|concurren|(^|_)(verbose|debug|quiet|progress)(_|$)")
_MAX_VALUE = 10_000  # characters of one field: an identity is for reading, too
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
    roles: dict[str, Any] = {}
    for role, adapter in zip(_ROLES, (dataset, agent, provider), strict=True):
        path, args = given.get(role), given.get(f"{role}_args")
        about: dict[str, Any] = {"adapter": path if isinstance(path, str) else _class_path(adapter)}
        fields = {**_fields(adapter), **(args if isinstance(args, Mapping) else {})}
        about.update({name: value for name, value in fields.items() if not _MAY_CHANGE.search(_snake(name))})
        roles[role] = about
    identity = {**roles, "bundle": bundle, "model": model, "score": bool(score), "platform": platform}
    cleaned: dict[str, Any] = without_secrets(identity)
    return cleaned


def without_secrets(value: Any) -> Any:
    """A copy of `value` as plain data, without what is secret by its name or by its looks.

    A number is never a secret ("max_tokens"). A secret is left out, not masked.
    """
    return _clean(plain_lenient(value))


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
    return text if len(text) <= 80 else text[:77] + "..."


def _class_path(adapter: Any) -> str:
    kind = adapter if isinstance(adapter, type) else type(adapter)
    return f"{kind.__module__}:{kind.__qualname__}"


def _fields(adapter: Any) -> dict[str, Any]:
    """The declared, public fields of an attrs or dataclass object that are plain values and not kept from its repr."""
    kind = type(adapter)
    declared: Any = ()
    if attrs.has(kind):
        declared = attrs.fields(kind)
    elif dataclasses.is_dataclass(kind):
        declared = dataclasses.fields(kind)
    found = {}
    for field in declared:
        if field.init and field.repr and not field.name.startswith("_"):
            value = getattr(adapter, field.name, None)
            if _is_plain(value):
                found[field.name] = value
    return found


def _is_plain(value: Any, depth: int = 0) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, str):
        return len(value) <= _MAX_VALUE
    if depth > 5:
        return False
    if isinstance(value, dict):
        return len(value) <= 100 and all(
            isinstance(key, str) and _is_plain(item, depth + 1) for key, item in value.items()
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        return len(value) <= 100 and all(_is_plain(item, depth + 1) for item in value)
    return hasattr(value, "__fspath__")


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _clean(item)
            for name, item in value.items()
            if not _is_secret(item) and (_is_number(item) or not _SECRET_NAME.search(_snake(name)))
        }
    if isinstance(value, list):
        return [_clean(item) for item in value if not _is_secret(item)]
    return None if _is_secret(value) else value


def _is_secret(value: Any) -> bool:
    return isinstance(value, str) and _SECRET_VALUE.search(value) is not None


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s.-]+", "_", name).lower()
