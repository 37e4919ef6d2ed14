"""The record of a tunnel: one JSON line for each exchange, in a file that many tunnels may share.

Lines are whole and never mixed up, whoever writes to the file at the same time: threads, other tunnels, other
processes. What could be written only in part is taken back.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

from ..errors import BadArgument

_LOCK_LIMIT_S = 10.0
_PIECE = 64 * 1024
_INFLATED_LIMIT = 64 * 1024 * 1024
# One writer of this process at a time; others are kept out by a lock on the file.
_writing = threading.Lock()


class Record:
    """A file that exchanges are appended to, once it is open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._file = -1

    def open(self) -> None:
        """Open it, or make it. Raises BadArgument where it can't be written."""
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(self.path, flags, 0o666)
        except (OSError, TypeError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            if getattr(error, "errno", None) == errno.EMFILE:
                why = f"{why}: raise `ulimit -n`"
            raise BadArgument(f"the tunnel's record {self.path!r} can't be written: {why}") from None
        try:
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()
            raise BadArgument(f"the tunnel's record {self.path!r} is not a regular file") from None

    def append(self, entry: dict[str, Any]) -> None:
        """Append one line. Raises OSError; then nothing of it is in the file."""
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        with _writing:
            self._lock()
            try:
                size = os.fstat(self._file).st_size
                if size and os.pread(self._file, 1, size - 1) != b"\n":
                    # Somebody was killed while writing.
                    line = b"\n" + line
                try:
                    view = memoryview(line)
                    while view:
                        view = view[os.write(self._file, view) :]
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(self._file, size)
                    raise
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)

    def _lock(self) -> None:
        end = time.monotonic() + _LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                # Not for ever: whoever has it may have been stopped.
                if time.monotonic() >= end:
                    raise TimeoutError(f"{self.path} has been locked by another process for too long") from None
                time.sleep(0.002)


class BodyCopy:
    """The beginning of a body, at most `limit` bytes of it, for a record."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.size = 0

    def feed(self, data: bytes) -> None:
        """A part of the body."""
        self.size += len(data)
        room = self._limit - len(self._data)
        if room > 0:
            self._data += data[:room]

    def entry(self, name: str, hide: Any) -> dict[str, Any]:
        """How it stands in a record: `{name}_body` as text, else `{name}_body_base64`; and whether it was cut."""
        data = hide(bytes(self._data))
        cut = self.size > len(data)
        entry: dict[str, Any]
        try:
            # A cut may go through a character.
            entry = {f"{name}_body": _text(data, cut)}
        except UnicodeDecodeError:
            entry = {f"{name}_body_base64": base64.b64encode(data).decode()}
        if cut:
            entry |= {f"{name}_cut": True, f"{name}_bytes": self.size}
        return entry


def _text(data: bytes, cut: bool) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        raise


class Inflater:
    """What a compressed body says, as it comes: of gzip and deflate; of any other coding the bytes as they are.

    It says nothing more once it is larger than `limit` bytes, or broken.
    """

    def __init__(self, coding: str, limit: int = _INFLATED_LIMIT) -> None:
        coding = coding.strip().lower()
        self.plain = coding in ("", "identity")
        self._left = limit
        # 47: whichever of the two it is.
        self._inflate = zlib.decompressobj(47) if coding in ("gzip", "x-gzip", "deflate") else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data`, the next part of the body, says, in small pieces."""
        if self._inflate is None:
            yield data
            return
        while data and self._left > 0 and not self._inflate.eof:
            try:
                piece = self._inflate.decompress(data, min(_PIECE, self._left))
            except zlib.error:
                self._left = 0
                return
            data = self._inflate.unconsumed_tail
            self._left -= len(piece)
            yield piece
