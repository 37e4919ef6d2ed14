"""Running a command in the sandbox. Runs in the sandbox, or wherever it is called; standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .files import MIB

_CHUNK = 64 * 1024
_POLL = 0.05  # how late the shell's end may be noticed while a child of it holds the pipes, in seconds
_GRACE = 0.2  # how long such a child may go on writing once the shell has ended (`> >(tee log)` does)
_REAP = 5.0  # how long to wait for a killed process; one in an uninterruptible call takes as long as that call
_MARK = "AGENTIX_BASH"  # in the environment of all that one call starts, to find what left its process group


@dataclass(frozen=True)
class BashResult:
    """What became of a command.

    `exit_code` is what the shell's `$?` would show: 128 + n where signal n ended it, so 137 for a kill -9 (and after
    a timeout). `stdout` and `stderr` are text in which bytes that aren't UTF-8 are kept with surrogateescape. Where
    `truncated`, one of them lacks its middle.
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool


def bash(
    command: str,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    max_output: int = 10 * MIB,
) -> BashResult:
    """Run `command` with bash, or with sh where there is no bash, and wait for it.

    It reads nothing (stdin is /dev/null) and is no login shell. `cwd` defaults to the sandbox's working directory;
    `env` is added to the current environment. After `timeout` seconds it is killed with all that it started. Of each
    stream `max_output` bytes are kept, half from its beginning and half from its end, and the rest is dropped as
    it comes.

    What the command leaves running in the background goes on, and doesn't delay the result: output that it writes
    later is read and dropped.

    Raises:
        ValueError: `timeout` is not above 0, `max_output` is below 0, or the command can't be passed to a process.
        TypeError: the command is not text, or `env` holds something else than text.
        OSError: there is no shell, no such `cwd`, or no process can be started.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}: it must be above 0 seconds (None for no limit)")
    if max_output < 0:
        raise ValueError(f"max_output is {max_output!r}: it must be 0 bytes or more")
    mark = secrets.token_hex(16)
    process = _start(command, cwd, {**os.environ, **_checked(env), _MARK: mark})
    output = _Output(process, max_output)
    timed_out = False
    try:
        timed_out = not output.collect_until_end(time.monotonic() + timeout if timeout is not None else None)
    finally:
        if process.returncode is None:  # a timeout, or an exception in this thread
            _kill(process, mark)
        output.collect_rest()
    code = process.returncode
    if code is None:  # killed, but the kernel still holds it
        code = -signal.SIGKILL
    return BashResult(
        exit_code=code if code >= 0 else 128 - code,
        stdout=output.stdout.text(),
        stderr=output.stderr.text(),
        timed_out=timed_out,
        truncated=bool(output.stdout.dropped or output.stderr.dropped),
    )


class _Capture:
    """Keeps the beginning and the end of a stream, each up to half of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.head, self.tail, self.dropped = bytearray(), bytearray(), 0
        self.head_limit = limit - limit // 2
        self.tail_limit = limit // 2

    def add(self, data: bytes) -> None:
        room = self.head_limit - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) >= self.tail_limit + 16 * _CHUNK:  # not at each read: that would move the tail each time
            self._trim()

    def _trim(self) -> None:
        extra = len(self.tail) - self.tail_limit
        if extra > 0:
            del self.tail[:extra]
            self.dropped += extra

    def text(self) -> str:
        self._trim()
        gap = f"\n[... {self.dropped} bytes left out ...]\n" if self.dropped else ""
        return "".join((_decode(self.head), gap, _decode(self.tail)))


class _Output:
    """The two pipes of a process, and what came out of them."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        self.process = process
        self.stdout, self.stderr = _Capture(limit), _Capture(limit)
        self.selector = selectors.PollSelector()  # takes no descriptor of its own, and any number of them
        for pipe, capture in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            assert pipe is not None
            self.selector.register(pipe, selectors.EVENT_READ, capture)

    def collect_until_end(self, deadline: float | None) -> bool:
        """Collect output until the process ends. False: at `deadline` (monotonic) it still ran."""
        while self.process.poll() is None:
            left = _POLL if deadline is None else min(deadline - time.monotonic(), _POLL)
            if left <= 0:
                return False
            if self.selector.get_map():
                self._read(left)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(left)
        return True

    def collect_rest(self) -> None:
        """Collect what was written before the end; leave the pipes to a thread if somebody still holds them."""
        deadline = time.monotonic() + _GRACE
        while self.selector.get_map() and (left := deadline - time.monotonic()) > 0:
            self._read(left)
        if self.selector.get_map():
            # Closed pipes would end a server that was started in the background at its next line of output.
            threading.Thread(target=self._drain, name="bash-drain", daemon=True).start()

    def _read(self, timeout: float | None, keep: bool = True) -> None:
        for key, _ in self.selector.select(timeout):
            data = os.read(key.fd, _CHUNK)
            if not data:
                self.selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
            elif keep:
                key.data.add(data)

    def _drain(self) -> None:
        while self.selector.get_map():
            self._read(None, keep=False)


def _start(command: str, cwd: str | None, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    if not isinstance(command, str):
        raise TypeError(f"command is {type(command).__name__}: give the text of a shell command")
    try:
        return subprocess.Popen(
            [_shell(), "-c", command.encode("utf-8", "surrogateescape")],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as exc:
        if exc.errno != errno.E2BIG:
            raise
        size = f"{len(command)} characters"
        raise ValueError(f"command ({size}) and env are too long to start: use write_file and run that file") from None


def _shell() -> str:
    for name in ("bash", "sh"):
        found = shutil.which(name) or shutil.which(name, path="/bin:/usr/bin:/usr/local/bin")
        if found:
            return found
    raise FileNotFoundError(errno.ENOENT, "no bash and no sh on PATH or in /bin: use an image that has a shell")


def _checked(env: Mapping[str, str] | None) -> Mapping[str, str]:
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env[{name!r}] is {type(value).__name__}: names and values must be str")
    return env or {}


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the process, its group and what can be found of what left the group, and reap it."""
    # Before the kill: the children of the dead are somebody else's.
    strays = {*_descendants(process.pid), *_marked(mark)} - {process.pid}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still this group's
    give_up = time.monotonic() + _REAP
    while strays and time.monotonic() < give_up:
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        strays = set(_marked(mark)) - {process.pid}
    try:
        process.wait(_REAP)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="bash-reap", daemon=True).start()


def _descendants(root: int) -> Iterator[int]:
    """The processes below `root`, from /proc, else from ps."""
    parents: dict[int, int] = {}
    if sys.platform == "linux":
        for pid in _pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # "pid (name) state ppid ...", where the name may hold anything
                parents[pid] = int(_slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    else:
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, timeout=_REAP, check=True)
            parents = {int(pid): int(parent) for pid, parent in map(bytes.split, listed.stdout.splitlines())}
    below = {root}
    while found := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= found
        yield from found


def _marked(mark: str) -> Iterator[int]:
    """The live processes whose environment holds `mark`. Linux only; elsewhere none."""
    wanted = f"{_MARK}={mark}".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in _slurp(f"/proc/{pid}/environ").split(b"\0"):
                yield pid


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if sys.platform == "linux" else []


def _slurp(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _decode(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "surrogateescape")
