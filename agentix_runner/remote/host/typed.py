"""Rebuilds a result as the function's own return annotation says: the sandbox sends plain data and names no class."""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import inspect
import logging
import pathlib
import types
import typing
import uuid
import weakref
from collections import abc
from collections.abc import Callable
from typing import Any

from ...errors import BadResult

if typing.TYPE_CHECKING:
    from cattrs import Converter

_log = logging.getLogger("agentix_runner.remote")

ANYTHING: Any = object()
"""Stands for no annotation: the result stays plain data."""

# Understanding an annotation that is text takes longer than a short call.
_known: weakref.WeakKeyDictionary[types.FunctionType, Any] = weakref.WeakKeyDictionary()

_COLLECTIONS: dict[Any, type] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
}
_PLAIN: dict[Any, tuple[type, ...]] = {
    type(None): (type(None),),
    bool: (bool,),
    int: (int,),
    float: (float, int),
    complex: (complex, float, int),
    str: (str,),
    bytes: (bytes,),
}


def annotation_of(function: Callable[..., Any]) -> Any:
    """What `function` says that it returns; ANYTHING where it says nothing that can be understood."""
    if not isinstance(function, types.FunctionType):
        return _annotation_of(function)
    found = _known.get(function)
    if found is None:
        found = _known[function] = _annotation_of(function)
    return found


def _annotation_of(function: Callable[..., Any]) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        return function
    try:
        annotation = function.__annotations__["return"]
    except Exception:
        return ANYTHING
    if annotation is None:
        return type(None)
    if isinstance(annotation, str) or typing.get_args(annotation):
        # The return annotation alone: another one that can't be resolved must not cost this one.
        holder = types.FunctionType(_nothing.__code__, getattr(inspect.unwrap(function), "__globals__", {}))
        holder.__annotations__ = {"return": annotation}
        try:
            annotation = typing.get_type_hints(holder, include_extras=True)["return"]
        except Exception as error:
            _log.debug("the return annotation %r is not understood: %s", annotation, error)
            return ANYTHING
    if annotation in (Any, object, typing.NoReturn) or isinstance(annotation, typing.TypeVar):
        return ANYTHING
    return annotation


def _nothing() -> None: ...


def rebuild(value: Any, annotation: Any, name: str) -> Any:
    """`value`, which is plain data, as `annotation` says. Raises BadResult, where it is something else; `name` is the
    function's."""
    if annotation is ANYTHING:
        return value
    plain = _PLAIN.get(annotation) if isinstance(annotation, type) else None
    if plain is not None:
        if not _is(value, plain):
            raise BadResult(f"{name} is said to return {annotation.__name__}, and returned {_show(value)}")
        return value
    if annotation in (dict, list, tuple, set, frozenset) and type(value) is annotation:
        return value
    from cattrs import transform_error

    try:
        return _converter().structure(value, annotation)
    except Exception as error:
        why = "; ".join(transform_error(error, path="result")) if hasattr(error, "exceptions") else str(error)
        raise BadResult(f"{name} returned what its annotation doesn't say: {why[:500]}") from error


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _show(value: Any) -> str:
    """A short text for `value`, made in a short time, however large it is."""
    name = type(value).__name__
    if isinstance(value, (str, bytes)):
        return f"{name} {value[:60]!r}{'...' if len(value) > 60 else ''}"
    if isinstance(value, int):
        return f"{name} {value!r}" if value.bit_length() <= 256 else f"{name} of {value.bit_length()} bits"
    if hasattr(value, "__len__"):
        return f"{name} of {len(value)}"
    return f"{name} {value!r}"


@functools.lru_cache(maxsize=1)
def _converter() -> Converter:
    from cattrs import Converter
    from cattrs.strategies import configure_union_passthrough

    # A protocol, an iterator, a class that says nothing of its fields: what is there stays plain data.
    converter = Converter(structure_fallback_factory=lambda _: lambda value, _: value)
    for kind, kinds in _PLAIN.items():
        converter.register_structure_hook(kind, _exactly(kind, kinds))
    for kind, read in (
        (datetime.datetime, datetime.datetime.fromisoformat),
        (datetime.date, datetime.date.fromisoformat),
        (datetime.time, datetime.time.fromisoformat),
        (decimal.Decimal, decimal.Decimal),
        (fractions.Fraction, fractions.Fraction),
        (uuid.UUID, uuid.UUID),
        (pathlib.Path, pathlib.Path),
        (pathlib.PurePath, pathlib.PurePath),
        (pathlib.PosixPath, pathlib.Path),
        (pathlib.PurePosixPath, pathlib.PurePosixPath),
    ):
        converter.register_structure_hook(kind, _from_text(kind, read))
    converter.register_structure_hook(datetime.timedelta, _seconds)
    converter.register_structure_hook(bytearray, lambda value, _: bytearray(_exactly(bytes, (bytes,))(value, bytes)))
    converter.register_structure_hook_factory(lambda kind: typing.get_origin(kind) in _COLLECTIONS, _collection)
    converter.register_structure_hook_factory(_is_named_tuple, _named_tuple)
    configure_union_passthrough(bool | int | float | complex | str | bytes | None, converter)
    return converter


def _collection(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """cattrs takes anything that can be iterated for a list: text too, character by character."""
    made = _COLLECTIONS[typing.get_origin(kind)]
    inner = (typing.get_args(kind) or (Any,))[0]

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise ValueError(f"a {made.__name__} wanted, got {_show(value)}")
        structure = converter.structure
        return made([structure(item, inner) for item in value])

    return hook


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _named_tuple(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """cattrs does not understand the annotations of one where they are text."""
    hints = typing.get_type_hints(kind)
    kinds = [hints.get(name, Any) for name in kind._fields]

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(kinds):
            raise ValueError(f"the {len(kinds)} values of a {kind.__name__} wanted, got {_show(value)}")
        return kind(*map(converter.structure, value, kinds))

    return hook


def _exactly(kind: type, kinds: tuple[type, ...]) -> Callable[[Any, Any], Any]:
    def hook(value: Any, _: Any) -> Any:
        if not _is(value, kinds):
            raise ValueError(f"{kind.__name__} wanted, got {_show(value)}")
        return value

    return hook


def _from_text(kind: type, read: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, str) or len(value) > 64 * 1024:
            raise ValueError(f"the text of a {kind.__name__} wanted, got {_show(value)}")
        try:
            return read(value)
        except ArithmeticError as error:
            raise ValueError(f"the text of a {kind.__name__} wanted, got {_show(value)}") from error

    return hook


def _seconds(value: Any, _: Any) -> datetime.timedelta:
    if not _is(value, (int, float)):
        raise ValueError(f"a number of seconds wanted, got {_show(value)}")
    return datetime.timedelta(seconds=value)
