"""The journal: one line of JSON for each finished rollout, appended and synced before anyone is told.

A line is whole or it is not there: what a failed or killed writer left of one is cut off, and nothing else is ever
changed. What is read equals what was written, whatever text it holds.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import cattrs
from attrs import frozen

from ..errors import BadOutcome, JournalError
from ..records import Failure, Rollout
from .files import write_all

_MARK = "split_pairs"
"""Key of a line in whose strings a mark stands between two surrogates that JSON would join to one character."""
_PAIR = re.compile("[\ud800-\udbff](?=[\udc00-\udfff])")
_READ = 1 << 20
T = TypeVar("T")

Key = tuple[str, int]
"""(instance id, attempt)."""


@frozen
class Line:
    """Where a rollout's line is: `start` and `length` in bytes, with its newline."""

    start: int
    length: int


class BrokenLine(ValueError):
    """A line of the journal that is no rollout."""


def encode(rollout: Rollout) -> bytes:
    """A rollout's line.

    Raises:
        BadOutcome: it holds what JSON can't; `agentix_runner.rundir.jsonable` is what keeps that out.
    """
    data = _converter.unstructure(rollout)
    where = _wrong(data)
    if where:
        raise BadOutcome(f"rollout of {rollout.instance_id!r}: {where} can't be recorded", where=where)
    try:
        text = _dumps(data)
        if "\\ud" in text and _has_pair(data):
            text = _dumps(_marked(data, text))
    except (ValueError, TypeError, RecursionError) as exc:
        raise BadOutcome(
            f"rollout of {rollout.instance_id!r} can't be recorded: {exc}", where=rollout.instance_id
        ) from None
    return text.encode("ascii") + b"\n"


def decode(line: bytes) -> Rollout:
    """The rollout of a line.

    Raises:
        BrokenLine: it is none.
    """
    return _rollout(_loads(line))


def key_of(line: bytes) -> Key:
    """The instance id and the attempt of a line, without the rest."""
    data = _loads(line)
    key = data.get("instance_id"), data.get("attempt")
    if type(key[0]) is not str or type(key[1]) is not int:
        raise BrokenLine("no instance_id and attempt")
    return key  # type: ignore[return-value]


class Journal:
    """The file, open for appending. `size` is the length in bytes of what is whole in it.

    `fd` is open for reading and appending, and belongs to the journal from here on.
    """

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.size = os.fstat(fd).st_size
        self._damaged = False

    def append(self, lines: Sequence[bytes]) -> list[Line]:
        """Append whole lines and sync them, all or none; where each is.

        Raises:
            JournalError: they could not be written. The file is as it was, or will be before the next line.
        """
        places, size = [], self.size
        for line in lines:
            places.append(Line(size, len(line)))
            size += len(line)
        try:
            if os.fstat(self.fd).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "it was deleted")
            if self._damaged:
                self.cut(self.size)
            self._damaged = True
            write_all(self.fd, b"".join(lines))
            _sync(self.fd)
            self.size, self._damaged = size, False
        except OSError as exc:
            with contextlib.suppress(OSError):  # else before the next line, or by whoever opens the journal next
                self.cut(self.size)
            remedy = "run again with the same directory to go on"
            if not isinstance(exc, FileNotFoundError):
                remedy = f"make room, then {remedy}"
            raise JournalError(
                f"{self.path} can't be written ({exc.strerror or exc}): the run stops here; {remedy}", path=self.path
            ) from exc
        return places

    def cut(self, size: int) -> None:
        """Cut off what comes after `size` bytes."""
        os.ftruncate(self.fd, size)
        _sync(self.fd)
        self.size = size
        self._damaged = False

    def close(self) -> None:
        os.close(self.fd)


def scan(fd: int, parse: Callable[[bytes], T]) -> Iterator[tuple[Line, T]]:
    """All whole lines of a journal, in order: where each is, and what `parse` makes of it.

    What comes after the last newline is not whole and left out; so is a last line that `parse` can't read, which a
    crash of the machine may leave.

    Raises:
        BrokenLine: `parse` can't read a line that others follow; the message says which.
    """
    start = number = 0
    broken: tuple[int, BrokenLine] | None = None
    with open(os.dup(fd), "rb", buffering=_READ) as file:
        file.seek(0)
        for text in file:
            if not text.endswith(b"\n"):
                break
            number += 1
            if broken:
                raise BrokenLine(f"line {broken[0]} is broken ({broken[1]})")
            try:
                parsed = parse(text)
            except BrokenLine as exc:
                broken = number, exc
                continue
            yield Line(start, len(text)), parsed
            start += len(text)


def read_at(fd: int, line: Line) -> Rollout:
    """The rollout of a line.

    Raises:
        BrokenLine: it is none (any more).
    """
    parts = []
    start, left = line.start, line.length
    while left:
        part = os.pread(fd, left, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        left -= len(part)
    try:
        return decode(b"".join(parts))
    except BrokenLine as exc:
        raise BrokenLine(f"what stood at byte {line.start:,} is broken ({exc})") from None


_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=True).encode
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def _loads(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise BrokenLine(f"not JSON: {exc}") from None
    if type(data) is not dict:
        raise BrokenLine("not a JSON object")
    mark = data.pop(_MARK, None)
    if type(mark) is str and mark:
        data = _each_text(data, lambda text: text.replace(mark, ""))
    bare: dict[str, Any] = data
    return bare


def _rollout(data: dict[str, Any]) -> Rollout:
    try:
        return _converter.structure(data, Rollout)
    except Exception as exc:  # cattrs raises whatever its hooks do
        raise BrokenLine(f"not a rollout: {type(exc).__name__}: {exc}") from None


def _wrong(data: dict[str, Any]) -> str | None:
    """Which field of an unstructured rollout would not be read back, if any: one bad line spoils a whole journal."""
    for name, kinds in _KINDS.items():
        if not isinstance(data[name], kinds):
            return f"{name}, which is a {type(data[name]).__name__},"
    failure = data["failure"]
    if failure is not None:
        for name, kind in _FAILURE_KINDS.items():
            if not isinstance(failure[name], kind):
                return f"failure.{name}, which is a {type(failure[name]).__name__},"
    for phase in data["phases"]:
        if len(phase) != 3 or not isinstance(phase[0], str):
            return f"phases, with {phase!r:.80},"
        if not isinstance(phase[1], (int, float)) or not isinstance(phase[2], (int, float)):
            return f"phases, with {phase!r:.80},"
    return None


_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "instance_id": (str,),
    "patch": (str,),
    "score": (dict, _NONE),
    "agent_exit": (int, _NONE),
    "error": (str, _NONE),
    "skipped": (str, _NONE),
    "duration_s": (float, int),
    "attempt": (int,),
    "model": (str, _NONE),
    "started_at": (float, int, _NONE),
    "phases": (list, tuple),
    "info": (dict,),
}
_FAILURE_KINDS: dict[str, type] = {"phase": str, "type": str, "message": str, "traceback": str, "transient": bool}


def _has_pair(value: Any) -> bool:
    """Whether a string in it has two surrogates side by side, which JSON's readers join to one character."""
    if isinstance(value, str):
        return _PAIR.search(value) is not None
    if isinstance(value, dict):
        return any(map(_has_pair, value)) or any(map(_has_pair, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_pair, value))


def _marked(data: Any, text: str) -> Any:
    mark = next(chr(code) for code in range(0xE000, 0xF900) if f"\\u{code:04x}" not in text)
    data = _each_text(data, lambda part: _PAIR.sub(lambda high: high.group() + mark, part))
    data[_MARK] = mark
    return data


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key) if isinstance(key, str) else key: _each_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_each_text(item, change) for item in value]
    return value


def _make_converter() -> cattrs.Converter:
    """Text stays text, numbers stay numbers, a bag stays as it is: cattrs would turn a null into "None"."""
    converter = cattrs.Converter(detailed_validation=False)

    def text(value: Any, _: Any) -> str:
        if type(value) is not str:
            raise TypeError(f"{value!r:.80} is not text")
        return value

    def whole(value: Any, _: Any) -> int:
        if not isinstance(value, int):
            raise TypeError(f"{value!r:.80} is not a whole number")
        return value

    def number(value: Any, _: Any) -> float:
        if not isinstance(value, (int, float)):
            raise TypeError(f"{value!r:.80} is not a number")
        return float(value)

    def bag(value: Any, _: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise TypeError(f"{value!r:.80} is not an object")
        return value

    def phases(value: Any, _: Any) -> list[tuple[str, float, float]]:
        return [(text(name, None), number(start, None), number(end, None)) for name, start, end in value]

    converter.register_structure_hook(str, text)
    converter.register_structure_hook(int, whole)
    converter.register_structure_hook(float, number)
    for kind, hook in ((dict[str, Any], bag), (list[tuple[str, float, float]], phases)):
        converter.register_structure_hook_func(_is(kind), hook)
        converter.register_unstructure_hook_func(_is(kind), lambda value: value)
    return converter


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda other: other == kind


_converter = _make_converter()
_converter.get_structure_hook(Rollout)
_converter.get_structure_hook(Failure)
