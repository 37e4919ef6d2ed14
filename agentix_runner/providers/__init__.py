"""Providers by name: those that installed packages offer (entry points of group `agentix_runner.providers`)."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..errors import BadArgument

GROUP = "agentix_runner.providers"

# For a checkout that is run without being installed.
_BUILT_IN = {
    "docker": "agentix_runner.providers.docker:DockerProvider",
    "local": "agentix_runner.providers.local:LocalProvider",
}

_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))


def known_providers() -> list[str]:
    """The names that `load_provider` takes, sorted."""
    return sorted(_places())


def load_provider(name: str, args: Mapping[str, str] | None = None) -> Any:
    """Make the provider `name`, with constructor arguments given as text.

    The text is converted as the constructor's annotations say: int, float, bool, str, None ("none" or empty).

    Raises:
        BadArgument: there is no such provider (the message lists those that there are), it takes no such argument, or
            the text is not of its type.
    """
    places = _places()
    if name not in places:
        close = difflib.get_close_matches(name, places, 3, 0.6)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise BadArgument(f"unknown provider {name!r}: there are {', '.join(sorted(places))}{hint}")
    module, _, attribute = places[name].partition(":")
    try:
        factory = import_module(module)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise BadArgument(f"provider {name!r} ({places[name]}) can't be loaded: {error}") from error
    return typing.cast("Callable[..., Any]", factory)(**_convert(name, factory, args or {}))


def _places() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {**_BUILT_IN, **{point.name: point.value for point in entry_points(group=GROUP)}}


def _convert(name: str, factory: Any, args: Mapping[str, str]) -> dict[str, Any]:
    if not args:
        return {}
    parameters = inspect.signature(factory).parameters
    accepted = [key for key, one in parameters.items() if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    hints = _hints(factory)
    converted = {}
    for key, text in args.items():
        if key not in accepted and not open_ended:
            raise BadArgument(f"provider {name!r} takes no argument {key!r}: it takes {', '.join(accepted) or 'none'}")
        try:
            converted[key] = _value(text, hints.get(key, str))
        except ValueError as error:
            raise BadArgument(f"argument {key}={text!r} of provider {name!r}: {error}") from None
    return converted


def _hints(factory: Any) -> dict[str, Any]:
    for place in (factory, getattr(factory, "__init__", None)):
        try:
            hints = typing.get_type_hints(place)
        except Exception:
            continue
        if hints:
            return hints
    return {}


def _value(text: str, hint: Any) -> Any:
    """`text` as the first of the hint's types that takes it. Raises ValueError."""
    kinds = _kinds(hint)
    if type(None) in kinds and text.lower() in ("", "none"):
        return None
    if bool in kinds and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in kinds or Any in kinds:
        return text
    names = [kind.__name__ for kind in (bool, int, float) if kind in kinds]
    if not names:
        raise ValueError("it can't be given as text; make the provider in Python")
    raise ValueError(f"give {' or '.join(names)}")


def _kinds(hint: Any) -> set[Any]:
    inner = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if inner and (origin is typing.Union or type(hint).__name__ == "UnionType"):
        return set().union(*map(_kinds, inner))
    return {origin or hint}
