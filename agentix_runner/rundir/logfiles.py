"""What sandboxes print, kept in one file for each rollout.

Logs are a convenience: a full disk is told once and never stops a rollout, and a chatty sandbox can't fill the disk.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from .files import folder, open_plain_file, write_all
from .names import LOG_FILE

MAX_LOG = 16 * 1024 * 1024
"""How much of what one rollout prints is kept, in bytes."""

_CUT = b"\n[cut: only the first 16 MiB are kept]\n"
_log = logging.getLogger(__name__)


class LogFile:
    """One rollout's log: a sink for bytes, callable from any thread.

    The file is made at the first byte and is open only while something is written: there may be a thousand of these,
    more than a process may have open files. After `close` what still comes is dropped.
    """

    def __init__(
        self, dir_fd: int, name: str, prepare: Callable[[], None], complain: Callable[[OSError], None]
    ) -> None:
        self._dir_fd = dir_fd
        self._name = name
        self._prepare = prepare
        self._complain = complain
        self._lock = threading.Lock()
        self._left = MAX_LOG
        self._fresh = True
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
                self._append(kept)
            except OSError as exc:
                self._left = 0
                self._complain(exc)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if self._fresh else os.O_APPEND)
        if self._fresh:
            self._prepare()
        with folder(self._name, dir_fd=self._dir_fd, create=True) as inside:
            fd = open_plain_file(LOG_FILE, flags, dir_fd=inside)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
        self._fresh = False
