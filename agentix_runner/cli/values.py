"""Text of the command line as values: the options' own, and `K=V` as the arguments of a factory, by its signature."""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import click

from ..errors import BadArgument

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})
NONE = frozenset({"none", "null"})


# ---------------------------------------------------------------- options


def duration(text: str) -> float:
    """Seconds above 0 ("90", "1.5"), "30m", "2h"; "none", which is no limit, is infinity."""
    if text.lower() == "none":
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([smhd]?)", text.strip().lower())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise click.BadParameter(f"{text!r} is not a valid time: expected seconds above 0, 30m, 2h, or none")
    return seconds


def part(text: str) -> slice:
    """A slice, "A:B", ":B" or "A:", as in Python."""
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return slice(*(int(end) if end.strip() else None for end in (start, stop)))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a valid slice: expected A:B, A: or :B, whole numbers") from None


def error_limit(text: str) -> int | float:
    """How many errors end a run: a count, or a fraction of the batch below 1 ("0.1", "10%")."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text) if "." in text else int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a valid number of errors: expected a count, or a fraction such as 0.1"
        ) from None


def key_value(text: str) -> tuple[str, str]:
    """A `K=V` pair."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip().isidentifier():
        # The value may be a secret, so only what stands before the equals sign is repeated.
        raise click.BadParameter(f"{key!r} is not a valid K=V: expected a name, an equals sign and a value")
    return key.strip(), value


def amount(text: str) -> tuple[str, float]:
    """A `K=N` pair: a resource and how much of it."""
    key, _, value = text.partition("=")
    try:
        number = float(value)
        if not key.strip() or not 0 < number < math.inf:
            raise ValueError
        return key.strip(), number
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a valid K=N: expected a resource and a number above 0, such as GPU=1"
        ) from None


def to_mapping(ctx: click.Context | None, option: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of a repeatable option as a dict. A click callback."""
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise click.UsageError(f"{option.opts[0]} {key} is given twice: give each name once", ctx)
        out[key] = value
    return out


# ---------------------------------------------------------------- arguments of a factory


def convert_arguments(
    factory: Callable[..., Any], args: Mapping[str, str], *, option: str, name: str
) -> dict[str, Any]:
    """`args` converted for `factory(**...)`: by a parameter's annotation, else by the type of its default, else as JSON
    where it is JSON and as text where it is not.

    `option` ("--dataset-arg") and `name` (the factory, as the user calls it) are for the messages.

    Raises:
        BadArgument: a name that `factory` does not take, one that it needs, or a text that does not convert.
    """
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation that only type checkers can resolve
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # no signature to be had (written in C)
        return {key: from_json(text) for key, text in args.items()}
    parameters = signature.parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    rest = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
    out: dict[str, Any] = {}
    for key, text in args.items():
        parameter = named.get(key, rest)
        if parameter is None:
            raise BadArgument(f"{option} {key}: {name} does not take {key!r}; {_accepted(key, list(named))}")
        try:
            out[key] = _convert(text, parameter)
        except ValueError as exc:
            raise BadArgument(f"{option} {key}: {exc}, not {text!r}") from None
    missing = [p.name for p in named.values() if p.default is p.empty and p.name not in out]
    if missing:
        raise BadArgument(f"{name} needs {', '.join(missing)}: give {option} {missing[0]}=VALUE")
    return out


def _accepted(key: str, names: list[str]) -> str:
    if not names:
        return "it takes no arguments"
    close = difflib.get_close_matches(key, names, n=1)
    return f"it takes {', '.join(names)}" + (f" (did you mean {close[0]!r}?)" if close else "")


def _convert(text: str, parameter: inspect.Parameter) -> Any:
    wanted = parameter.annotation
    if wanted is parameter.empty:
        wanted = type(parameter.default)
        if wanted not in (bool, int, float, str):
            return from_json(text)
    return to_type(text, wanted)


def from_json(text: str) -> Any:
    """What `text` is as JSON, else the text itself. NaN and infinities are not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def to_type(text: str, wanted: Any) -> Any:
    """`text` as the annotation `wanted` says; as JSON for a type that is not known here.

    Raises:
        ValueError: it does not convert; the message says what was expected.
    """
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _to_union(text, get_args(wanted))
    if origin is Literal:
        for choice in get_args(wanted):
            if text == str(choice):
                return choice
        raise ValueError(f"it must be one of {', '.join(map(str, get_args(wanted)))}")
    if wanted is None or wanted is type(None):
        return _to_none(text)
    if isinstance(wanted, type):
        if issubclass(wanted, bool):
            return _to_bool(text)
        if issubclass(wanted, Enum):
            return _to_enum(text, wanted)
        if wanted in (int, float):
            return _to_number(text, wanted)
        if wanted in (str, Path):
            return wanted(text)
        if wanted is bytes:
            return text.encode("utf-8", "surrogateescape")
    value = from_json(text)
    kind = origin or wanted
    if isinstance(kind, type) and value is text and issubclass(kind, Mapping):
        raise ValueError('give a JSON object, such as {"A": "b"}')
    if isinstance(kind, type) and value is text and issubclass(kind, Collection) and kind is not str:
        raise ValueError('give a JSON list, such as ["a", "b"]')
    return value


def _to_union(text: str, choices: tuple[Any, ...]) -> Any:
    # str takes everything, so it comes last; None first, so that "none" means it also for `str | None`.
    order = sorted(choices, key=lambda t: (t is not type(None), t is str))
    problems = []
    for choice in order:
        try:
            return to_type(text, choice)
        except ValueError as exc:
            problems.append(str(exc))
    raise ValueError(", or ".join(dict.fromkeys(problems)))


def _to_none(text: str) -> None:
    if text.lower() not in NONE:
        raise ValueError("give none")


def _to_bool(text: str) -> bool:
    if text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    raise ValueError("give true or false")


def _to_number(text: str, wanted: type[int] | type[float]) -> int | float:
    try:
        return wanted(text)
    except ValueError:
        raise ValueError("give a whole number" if wanted is int else "give a number") from None


def _to_enum(text: str, wanted: type[Enum]) -> Enum:
    for member in wanted:
        if text in (member.name, str(member.value)):
            return member
    raise ValueError(f"it must be one of {', '.join(str(m.value) for m in wanted)}")
