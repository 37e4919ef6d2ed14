"""Providers by name: those that installed packages offer (entry points of group `agentix_runner.providers`)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ..cli.arguments import convert_arguments
from ..errors import BadArgument

GROUP = "agentix_runner.providers"

# For a checkout that is run without being installed.
_BUILT_IN = {
    "docker": "agentix_runner.providers.docker:DockerProvider",
    "local": "agentix_runner.providers.local:LocalProvider",
}


def known_providers() -> list[str]:
    """The names that `load_provider` takes, sorted."""
    return sorted(_places())


def load_provider(name: str, args: Mapping[str, str] | None = None) -> Any:
    """Make the provider `name`, with constructor arguments given as text.

    The text is converted as the constructor's annotations say (see `agentix_runner.cli.arguments`).

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
        factory: Any = import_module(module)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise BadArgument(f"provider {name!r} ({places[name]}) can't be loaded: {error}") from error
    return factory(**convert_arguments(factory, args or {}, option="--provider-arg", name=f"provider {name!r}"))


def _places() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {**_BUILT_IN, **{point.name: point.value for point in entry_points(group=GROUP)}}
