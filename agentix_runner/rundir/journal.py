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
from typing import Any

import cattrs
from attrs import frozen

from ..errors import BadOutcome, JournalError
from ..records import Rollout
from .files import write_all

_MARK = "split_pairs"
"""Key of a line in whose strings a mark stands between two surrogates that JSON would join to one character."""
_PAIR = re.compile("[\ud800-\udbff](?=[\udc00-\udfff])")
_READ = 1 << 20

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
    try:
        data = _converter.unstructure(rollout)
        _converter.structure(data, Rollout)  # what can't be read again would spoil the whole journal
        text = _dumps(data)
        if "\\ud" in text:
            text = _without_pairs(data, text)
    except Exception as exc:  # cattrs raises whatever its hooks do
        raise BadOutcome(
            f"rollout of {rollout.instance_id!r} can't be recorded: {exc}", where=rollout.instance_id
        ) from None
    return text.encode("ascii") + b"\n"


def decode(line: bytes) -> Rollout:
    """The rollout of a line.

    Raises:
        BrokenLine: it is none.
    """
    try:
        return _converter.structure(_loads(line), Rollout)
    except BrokenLine:
        raise
    except Exception as exc:  # cattrs raises whatever its hooks do
        raise BrokenLine(f"not a rollout: {type(exc).__name__}: {exc}") from None


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


def scan(fd: int) -> Iterator[tuple[Line, Rollout]]:
    """All whole lines of a journal, in order: where each is, and its rollout.

    What comes after the last newline is not whole and left out; so is a last line that is no rollout, which a crash of
    the machine may leave.

    Raises:
        BrokenLine: a line that others follow is no rollout; the message says which.
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
                rollout = decode(text)
            except BrokenLine as exc:
                broken = number, exc
                continue
            yield Line(start, len(text)), rollout
            start += len(text)


def read_at(fd: int, line: Line) -> Rollout:
    """The rollout of a line.

    Raises:
        BrokenLine: it is none (any more).
    """
    try:
        return decode(os.pread(fd, line.length, line.start))
    except BrokenLine as exc:
        raise BrokenLine(f"what stood at byte {line.start:,} is broken ({exc})") from None


_dumps = json.JSONEncoder(allow_nan=False).encode
_dumps_unescaped = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def _loads(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
        mark = data.pop(_MARK, None) if type(data) is dict else None
        if mark:
            data = json.loads(_dumps_unescaped(data).replace(mark, ""))
    except (ValueError, TypeError, RecursionError) as exc:
        raise BrokenLine(f"not JSON: {exc}") from None
    if type(data) is not dict:
        raise BrokenLine("not a JSON object")
    return data


def _without_pairs(data: dict[str, Any], text: str) -> str:
    """`text`, the JSON of `data`. Where two surrogates stand side by side, which JSON's readers join to one character,
    a mark that is nowhere else in it is put between them, and named."""
    unescaped = _dumps_unescaped(data)
    if not _PAIR.search(unescaped):
        return text
    mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in unescaped)
    marked = json.loads(_PAIR.sub(lambda high: high.group() + mark, unescaped))
    return _dumps({**marked, _MARK: mark})


def _make_converter() -> cattrs.Converter:
    """Text stays text, numbers stay numbers, a dict stays as it is: cattrs alone would turn a null into "None"."""
    converter = cattrs.Converter(detailed_validation=False)

    def only(*kinds: type) -> Callable[[Any, Any], Any]:
        def check(value: Any, wanted: Any) -> Any:
            if not isinstance(value, kinds):
                raise TypeError(f"{value!r:.80} is not a {kinds[0].__name__}")
            return value

        return check

    number = only(float, int)

    def is_plain_dict(kind: Any) -> bool:
        return bool(kind == dict[str, Any])

    converter.register_structure_hook(str, only(str))
    converter.register_structure_hook(int, only(int))
    converter.register_structure_hook(bool, only(bool))
    converter.register_structure_hook(float, lambda value, wanted: float(number(value, wanted)))
    converter.register_structure_hook_func(is_plain_dict, only(dict))
    converter.register_unstructure_hook_func(is_plain_dict, lambda value: value)
    return converter


_converter = _make_converter()
