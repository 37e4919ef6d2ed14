"""What may go into a record: turns whatever an adapter returned into data that JSON gives back equal.

Two manners. `plain` is strict, for a score: a score is a verdict and must not be changed silently, so that what JSON
can't hold is an error naming the place. `plain_lenient` is for an agent's notes: what JSON can't hold becomes its
`repr`. Nothing here trusts the values: their methods may raise, lie, or never have been meant for this.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import itertools
import json
import math
import pathlib
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from ..errors import BadOutcome

MAX_DEPTH = 100
"""How deep a value may be nested."""
MAX_TEXT = 64 * 1024 * 1024
"""How much a value, or a patch, may hold, in characters."""
MAX_DIGITS = 4300
"""How many digits a whole number may have: what Python reads back by default."""
MAX_REPR = 1000
"""How many characters of a `repr` are kept."""

_NODE = 16  # what one value costs of MAX_TEXT besides its text, so that endless small ones end too
_SAFE_BITS = 2000  # whole numbers of so many bits have fewer digits than the lowest limit that Python lets one set,
_TOO_MANY_BITS = 14_286  # and those of so many have more than MAX_DIGITS, which takes long to find out by spelling them
_QUICK = 64  # longest dict, and
_QUICK_TEXT = 64 * 1024  # longest text in it, that skip the bookkeeping
_REMEDY = "return plain data (dict, list, str, int, float, bool, None)"


def plain(value: Any, where: str = "value") -> Any:
    """`value` as plain data: dicts with text keys, lists, str, int, float, bool, None; always a copy.

    Sets become sorted lists, paths and dates text, enums their value, bytes text (surrogateescape), dataclasses and
    attrs objects dicts, numpy's scalars and arrays numbers and lists.

    Raises:
        BadOutcome: something in it can't be recorded; `where` of the error names it, as in `score["tests"][3]`.
    """
    if type(value) is dict and len(value) <= _QUICK:
        quick = _quick_copy(value)
        if quick is not None:
            return quick
    try:
        return _Walk().value(value, 0)
    except _Unfit as unfit:
        place = where + "".join(reversed(unfit.trail))
        raise BadOutcome(f"{place} {unfit.reason}", where=place) from None


def plain_lenient(value: Any) -> Any:
    """`value` as plain data, with `repr` (at most 1,000 characters) for what JSON can't hold. Never raises."""
    walk = _Walk(lenient=True)
    try:
        return walk.value(value, 0)
    except _Unfit as unfit:
        return walk.instead(value, unfit)


def patch_text(value: Any, where: str = "patch") -> str:
    """A patch as text: None is "", bytes are read as UTF-8 with surrogateescape, text is kept as it is.

    Raises:
        BadOutcome: it is neither, or longer than 64 Mi characters.
    """
    if value is None:
        return ""
    kind = type(value)
    if issubclass(kind, str):
        text = str.__str__(value)
    elif issubclass(kind, (bytes, bytearray, memoryview)):
        text = bytes(value).decode("utf-8", "surrogateescape")
    else:
        raise BadOutcome(f"{where} is {_a(value)}: return a unified diff as str or bytes, or None", where=where)
    if len(text) > MAX_TEXT:
        raise BadOutcome(f"{where} has {len(text):,} characters: at most {MAX_TEXT:,} are kept", where=where)
    return text


def patch_bytes(text: str) -> bytes:
    """A patch, or other text, as UTF-8: bytes that surrogateescape stands for come back as they were, other lone
    surrogates are written as surrogatepass does."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        parts = re.split("([\ud800-\udc7f\udd00-\udfff]+)", text)
        ways = itertools.cycle(("surrogateescape", "surrogatepass"))
        return b"".join(part.encode("utf-8", way) for part, way in zip(parts, ways, strict=False))


def _quick_copy(value: dict[Any, Any]) -> dict[str, Any] | None:
    """A copy of the usual score, a small flat dict; None where it takes a closer look."""
    copy: dict[str, Any] = {}
    try:
        for key, item in value.items():
            if type(key) is not str or len(key) > _QUICK_TEXT:
                return None
            kind = type(item)
            if kind is str:
                if len(item) > _QUICK_TEXT:
                    return None
            elif kind is float:
                if item - item != 0.0:
                    return None
            elif kind is int:
                if item.bit_length() > _SAFE_BITS:
                    return None
            elif kind is not bool and item is not None:
                return None
            copy[key] = item
    except RuntimeError:  # another thread changes it meanwhile
        return None
    return copy


class _Unfit(Exception):
    """Something can't be recorded: why, and the way to it from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str] = []


class _Walk:
    """One walk through one value, with what it may still take."""

    def __init__(self, *, lenient: bool = False) -> None:
        self.lenient = lenient
        self.left = MAX_TEXT
        self.open: set[int] = set()

    def value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value)
        if kind is bool or value is None:
            return self._spend(value, 0)
        if kind is int:
            return self._whole(value)
        if kind is float:
            return self._number(value)
        if depth > MAX_DEPTH:
            raise _Unfit(f"is nested more than {MAX_DEPTH} deep: {_REMEDY} that is flatter")
        if id(value) in self.open:
            raise _Unfit(f"contains itself: {_REMEDY} without cycles")
        self.open.add(id(value))
        try:
            return self._other(value, kind, depth)
        except _Unfit:
            raise
        except Exception as exc:
            raise _Unfit(f"is {_a(value)} that can't be read ({_type_name(exc)}): {_REMEDY}") from None
        finally:
            self.open.discard(id(value))

    def instead(self, value: Any, unfit: _Unfit) -> str:
        """What stands for `value`, which is unfit, in a lenient walk."""
        text = f"<left out: {unfit.reason.split(':')[0]}>" if self.left < 0 else _repr(value)
        self.left -= len(text)
        return text

    def _other(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, enum.Enum):
            return self.value(value.value, depth + 1)
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        if issubclass(kind, int):
            return self._whole(int.__pos__(value))
        if issubclass(kind, float):
            return self._number(float.__pos__(value))
        if issubclass(kind, dict):
            return self._dict(list(dict.items(value)), depth)
        if issubclass(kind, list):
            return self._list(list.__iter__(value), depth)
        if issubclass(kind, tuple):
            return self._list(tuple.__iter__(value), depth)
        if issubclass(kind, (set, frozenset)):
            base = set if issubclass(kind, set) else frozenset
            return sorted(self._list(base.__iter__(value), depth, set_of=True), key=_rank)
        if issubclass(kind, (bytes, bytearray)):
            self._spend(None, len(value))
            return bytes(value).decode("utf-8", "surrogateescape")
        if issubclass(kind, pathlib.PurePath):
            return self._text(_exact(str(value)))
        if issubclass(kind, (datetime.date, datetime.time)):
            return self._text(_exact(value.isoformat()))
        if dataclasses.is_dataclass(kind):
            return self._dict([(f.name, getattr(value, f.name)) for f in dataclasses.fields(kind)], depth)
        if attrs.has(kind):
            return self._dict([(f.name, getattr(value, f.name)) for f in attrs.fields(kind)], depth)
        if hasattr(kind, "tolist") and hasattr(kind, "dtype"):
            return self._array(value, kind, depth)
        raise _Unfit(f"is {_a(value)}, which can't be recorded: {_REMEDY}")

    def _array(self, value: Any, kind: type, depth: int) -> Any:
        """Numpy's scalars and arrays, and what behaves like them; numpy itself is never imported."""
        size = int(getattr(value, "nbytes", 0))
        if size > MAX_TEXT:
            raise _Unfit(f"is an array of {size:,} bytes: return a summary of it")
        listed = value.tolist()
        if type(listed) is kind:
            raise _Unfit(f"is {_a(value)}, which can't be recorded: {_REMEDY}")
        return self.value(listed, depth + 1)

    def _dict(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items:
            if self.left < 0 and self.lenient:
                out["..."] = "<left out: too large>"
                break
            name = self._fit(key, self._key, key)
            if name in out:
                if not self.lenient:
                    raise _Unfit(f"has two keys that are both {_short(name)} in JSON: give them different names")
                name = _free(name, out)
            out[name] = self._fit(item, self._item, item, depth, f"[{_short(name)}]")
        return out

    def _list(self, items: Iterator[Any], depth: int, set_of: bool = False) -> list[Any]:
        out: list[Any] = []
        for index, item in enumerate(items):
            if self.left < 0 and self.lenient:
                out.append("<left out: too large>")
                break
            out.append(self._fit(item, self._item, item, depth, index if not set_of else "{...}"))
        return out

    def _item(self, item: Any, depth: int, step: str | int) -> Any:
        try:
            return self.value(item, depth + 1)
        except _Unfit as unfit:
            unfit.trail.append(step if isinstance(step, str) else f"[{step}]")
            raise

    def _fit(self, value: Any, convert: Callable[..., Any], *args: Any) -> Any:
        """What `convert` makes of it, or in a lenient walk what stands for `value`."""
        try:
            return convert(*args)
        except _Unfit as unfit:
            if not self.lenient:
                raise
            return self.instead(value, unfit)

    def _key(self, key: Any) -> str:
        """A dict's key as JSON writes it."""
        kind = type(key)
        if kind is str:
            return self._text(key)
        made = key.value if issubclass(kind, enum.Enum) else key
        kind = type(made)
        if issubclass(kind, str):
            return self._text(str.__str__(made))
        if made is None or kind is bool:
            return {None: "null", True: "true", False: "false"}[made]
        if issubclass(kind, int):
            return self._text(str(self._whole(int.__pos__(made))))
        if issubclass(kind, float):
            return self._text(repr(self._number(float.__pos__(made))))
        raise _Unfit(f"has a key that is {_a(key)} ({_repr(key)[:80]}): use text as keys")

    def _text(self, text: str) -> str:
        self._spend(None, len(text))
        return text

    def _whole(self, number: int) -> int:
        bits = number.bit_length()
        self._spend(None, bits // 3)
        if bits > _SAFE_BITS:
            try:
                fits = bits < _TOO_MANY_BITS and len(str(abs(number))) <= MAX_DIGITS
            except ValueError:
                fits = False
            if not fits:
                raise _Unfit(f"has more than {MAX_DIGITS} digits: return it as text or as a float")
        return number

    def _number(self, number: float) -> float:
        self._spend(None, 0)
        if not math.isfinite(number):
            raise _Unfit(f"is {number}, which JSON can't hold: return a finite number, or None")
        return number

    def _spend(self, value: Any, text: int) -> Any:
        self.left -= text + _NODE
        if self.left < 0:
            raise _Unfit(f"goes past {MAX_TEXT:,} characters in all: keep large output in AgentResult.files")
        return value


def _exact(text: Any) -> str:
    if not issubclass(type(text), str):
        raise TypeError("not text")
    return str.__str__(text)


def _rank(item: Any) -> tuple[str, Any]:
    """The place of a set's element: by type, then by value."""
    kind = type(item)
    return (kind.__name__, item if kind in (str, int, float, bool) else json.dumps(item, sort_keys=True))


def _free(name: str, taken: dict[str, Any]) -> str:
    number = 2
    while f"{name} ({number})" in taken:
        number += 1
    return f"{name} ({number})"


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else text[:57] + "...")


def _type_name(value: Any) -> str:
    try:
        return str(type(value).__name__)[:100]
    except Exception:  # a metaclass may do anything
        return "object"


def _a(value: Any) -> str:
    """ "an int", "a Path"."""
    name = _type_name(value)
    return f"{'an' if name[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {name}"


_short_repr = reprlib.Repr()
_short_repr.maxother = _short_repr.maxstring = _short_repr.maxlong = MAX_REPR


def _repr(value: Any) -> str:
    """`repr`, bounded in length and depth, whatever the value's own does."""
    try:
        return _exact(_short_repr.repr(value))[:MAX_REPR]
    except Exception:
        return f"<{_type_name(value)}>"
