"""Providers by name: those that installed packages offer (entry points of group `agentix_runner.providers`)."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from ..errors import BadArgument

GROUP = "agentix_runner.providers"

# For a checkout that is run without being installed.
_BUILT_IN = {
    "docker": "agentix_runner.providers.docker:DockerProvider",
    "local": "agentix_runner.providers.local:LocalProvider",
}


def known_providers() -> list[str]:
    """The names that `provider_factory` takes, sorted."""
    return sorted(_entry_points())


def provider_factory(name: str) -> Any:
    """What makes the provider `name`: its class, say.

    Raises:
        BadArgument: there is no such provider (the message lists those that there are), or it can't be imported.
    """
    found = _entry_points()
    if name not in found:
        close = difflib.get_close_matches(name, found, 3, 0.6)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise BadArgument(f"unknown provider {name!r}: there are {', '.join(sorted(found))}{hint}")
    module, _, attribute = found[name].partition(":")
    try:
        factory: Any = import_module(module)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise BadArgument(f"provider {name!r} ({found[name]}) can't be loaded: {error}") from error
    return factory


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {**_BUILT_IN, **{point.name: point.value for point in entry_points(group=GROUP)}}
