"""Files inside a run directory: opened without following links, replaced whole or not at all; logs that are bounded.

What runs on the same machine may have put links where a run's own files belong, so that every name is taken relative
to an open folder, and never through a link.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..errors import BadOutcome
from .jsonable import patch_bytes

MAX_LOG = 16 * 1024 * 1024
"""How much of what one rollout prints is kept, in bytes."""

MAX_SAVED = 256 * 1024 * 1024
"""How much an agent may save for one rollout, in bytes."""
MAX_FILES = 1000
"""How many files an agent may save for one rollout."""

_CUT = b"\n[cut: only the first 16 MiB are kept]\n"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_log = logging.getLogger(__name__)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, however many writes it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def open_plain_file(name: str, flags: int, *, dir_fd: int) -> int:
    """Open a regular file; a link, a pipe or a device in its place is an OSError."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{name} is not a regular file")
    return fd


@contextlib.contextmanager
def folder(name: str | Path, *, dir_fd: int | None = None, create: bool = False) -> Iterator[int]:
    """A descriptor of a folder, for the time of the block. In another folder, that of `dir_fd`, it may be no link; what
    the user named may."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if dir_fd is None else os.O_NOFOLLOW)
    try:
        fd = os.open(name, flags, dir_fd=dir_fd)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=dir_fd)
        fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def replace(name: str, chunks: Iterable[bytes], *, dir_fd: int, durable: bool) -> None:
    """Write a file under a temporary name, then rename it to `name`: readers see the old one or the new one.

    One writer at a time. A `durable` one is on the disk before it is renamed.
    """
    temporary = f".{name}.tmp"
    with contextlib.suppress(FileNotFoundError):  # of a writer that was killed
        os.unlink(temporary, dir_fd=dir_fd)
    try:
        with open(os.open(temporary, _NEW, 0o666, dir_fd=dir_fd), "wb", buffering=_CHUNK) as file:
            file.writelines(chunks)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise


def read_file(name: str, *, dir_fd: int, limit: int) -> bytes:
    """A regular file's bytes; one of more than `limit` bytes is an OSError."""
    with open(open_plain_file(name, os.O_RDONLY, dir_fd=dir_fd), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{name} is larger than {limit:,} bytes")
    return data


def files_to_keep(instance_id: str, files: Any) -> dict[str, bytes]:
    """What an agent saved (AgentResult.files), as bytes. What is too much is left out, with a warning.

    Raises:
        BadOutcome: it is something else, a name is not text, or a file neither text nor bytes.
    """
    if not isinstance(files, Mapping):
        raise BadOutcome(
            f"AgentResult.files is a {type(files).__name__}: give a dict of names and contents", where="files"
        )
    for name, content in files.items():
        if not isinstance(name, str):
            raise BadOutcome(f"AgentResult.files has the name {name!a:.80}: give names as text", where="files")
        if not isinstance(content, (str, bytes, bytearray, memoryview)):
            kind = type(content).__name__
            raise BadOutcome(f"AgentResult.files[{name!a:.80}] is a {kind}: give str or bytes", where="files")
    kept: dict[str, bytes] = {}
    left = MAX_SAVED
    for name, content in files.items():
        data = patch_bytes(content) if isinstance(content, str) else bytes(content)
        if len(data) > left or len(kept) >= MAX_FILES:
            _log.warning("%s: the agent's file %.100r is left out: too much was saved", instance_id, name)
            continue
        left -= len(data)
        kept[name] = data
    return kept


class LogFile:
    """What one rollout's sandboxes print: a sink for bytes, callable from any thread.

    Logs are a convenience: a chatty sandbox can't fill the disk, and a full disk goes to `on_error` once and stops
    nothing. `open_folder` opens (and makes) the folder that `name` is to be in. The file is made at the first byte and
    is open only while something is written: there may be a thousand of these, more than a process may have open files.
    After `close` what still comes is dropped.
    """

    def __init__(
        self,
        name: str,
        open_folder: Callable[[], AbstractContextManager[int]],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._name = name
        self._open_folder = open_folder
        self._on_error = on_error
        self._lock = threading.Lock()
        self._left = MAX_LOG
        self._mode = os.O_TRUNC  # of the first write; what comes later is appended
        self._closed = False

    def __call__(self, data: bytes) -> None:
        with self._lock:
            if self._closed or not data or self._left <= 0:
                return
            kept = bytes(data[: self._left])
            self._left -= len(kept)
            if self._left <= 0:
                kept += _CUT
            try:
                with self._open_folder() as inside:
                    fd = open_plain_file(self._name, os.O_WRONLY | os.O_CREAT | self._mode, dir_fd=inside)
                    with open(fd, "wb") as file:
                        file.write(kept)
                self._mode = os.O_APPEND
            except OSError as exc:
                self._left = 0
                self._on_error(exc)

    def close(self) -> None:
        with self._lock:
            self._closed = True
