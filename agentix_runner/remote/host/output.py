"""What a sandbox prints, on the host: to `on_log`, and line by line to the `agentix_runner.sandbox` logger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

_sandbox_log = logging.getLogger("agentix_runner.sandbox")
_log = logging.getLogger("agentix_runner.remote")

_LONGEST_LINE = 8 * 1024


class SandboxLog:
    """Takes at most `limit` bytes; the sandbox may not have kept to it. Fed by one thread.

    Lines are logged at level DEBUG, with `instance_id` and `phase` (of `labels`) on the record. An `on_log` that
    raises is reported once, and called again for what comes next.
    """

    def __init__(self, limit: int, on_log: Callable[[bytes], None] | None, labels: Mapping[str, str]) -> None:
        self._left = limit
        self._limit = limit
        self._on_log = on_log
        self._extra = {"instance_id": labels.get("instance_id", ""), "phase": labels.get("phase", "")}
        self._line = bytearray()
        self._complained = False

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        if self._left < 0:
            return
        if len(data) > self._left:
            data = data[: self._left] + f"\n[agentix: cut here, at {self._limit} bytes]\n".encode()
            self._left = -1
        else:
            self._left -= len(data)
        if self._on_log is not None:
            try:
                self._on_log(data)
            except Exception:
                if not self._complained:
                    self._complained = True
                    _log.exception("on_log failed; what the sandbox prints may be lost")
        if _sandbox_log.isEnabledFor(logging.DEBUG):
            self._line += data
            *lines, rest = self._line.split(b"\n")
            self._line = rest
            for line in lines:
                self._log_line(line)
            if len(self._line) > _LONGEST_LINE:
                self.finish()

    def finish(self) -> None:
        """Log the last line, which has no end."""
        if self._line:
            self._log_line(self._line)
            self._line = bytearray()

    def _log_line(self, line: bytes | bytearray) -> None:
        for start in range(0, len(line) or 1, _LONGEST_LINE):
            text = line[start : start + _LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
            _sandbox_log.debug("%s", text, extra=self._extra)
