"""The swebench package, asked through a process of its own: how a row is tested, and what its log means. Host side."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

GRADER = Path(__file__).with_name("grader.py")
START_S = 90.0
"""How much longer (seconds) the first answer may take, while swebench is imported."""
LOAD_S = 1800.0
"""How long (seconds) a dataset may take, which the first time is downloaded."""
INSTALL = "pip install 'agentix-runner[swe]'"


class HarnessError(Exception):
    """swebench can't be asked, or can't answer."""


class NotInstalled(HarnessError):
    """There is no swebench, or an older one."""


class Harness:
    """Asks the process; starts it when first asked, and again when it had to be killed. Any number of threads may ask.

    `limit` is how long one answer may take, in seconds.
    """

    def __init__(self, limit: float = 30) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._fresh = False
        self._end: weakref.finalize[Any, Any] | None = None

    def ask(self, what: str, /, **given: Any) -> Any:
        """The answer to "spec", "grade", "rows" or "check" of grader.py.

        Raises:
            NotInstalled: swebench is not.
            HarnessError: it raised, or took longer than `limit` ("rows": than LOAD_S).
        """
        request = json.dumps({"ask": what, "with": given}).encode() + b"\n"
        with self._lock:
            limit = LOAD_S if what == "rows" else self.limit
            try:
                link = self._link or self._start()
                limit += START_S if self._fresh else 0
                answer = json.loads(self._exchange(link, request, limit))
            except (OSError, ValueError, EOFError) as exc:
                self.close()
                how = f"took more than {limit:g} s" if isinstance(exc, TimeoutError) else f"ended: {exc}"
                raise HarnessError(f"the process that asks swebench for {what!r} {how}") from exc
        if answer.get("type") in ("ImportError", "ModuleNotFoundError"):
            raise NotInstalled(f"swebench 5 can't be imported ({answer['error']}): {INSTALL}")
        if "error" in answer:
            raise HarnessError(f"swebench raised {answer['type']} when asked for {what!r}: {answer['error']}")
        return answer["value"]

    def start(self) -> None:
        """Start the process, and don't wait for it: swebench takes its time to be imported."""
        if self._link is None:
            with self._lock:
                if self._link is None:
                    self._start()

    def close(self) -> None:
        """End the process. It also ends with this one."""
        if self._end is not None:
            self._end()
        self._link = self._end = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Harness, (self.limit,)

    def _exchange(self, link: socket.socket, request: bytes, limit: float) -> bytes:
        until = time.monotonic() + limit
        link.settimeout(limit)
        link.sendall(request)
        parts = []
        while not parts or not parts[-1].endswith(b"\n"):
            link.settimeout(max(0.001, until - time.monotonic()))
            part = link.recv(1 << 20)
            if not part:
                raise EOFError("it is gone")
            parts.append(part)
        self._fresh = False
        return b"".join(parts)

    def _start(self) -> socket.socket:
        folder = tempfile.mkdtemp(prefix="agentix-grader-")
        link, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(GRADER), folder],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._link, self._fresh = link, True
        self._end = weakref.finalize(self, _end, process, link, folder)
        return link


def _end(process: subprocess.Popen[bytes], link: socket.socket, folder: str) -> None:
    link.close()
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)
