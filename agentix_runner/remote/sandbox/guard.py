"""The sandbox's first process (PID 1 in a container). Standard library only; runs under `-I -S`, on no path of its own.

    python -I -S -c BOOT ROOT [DIRECTORY]

ROOT is where this package lies. It forks the worker, which takes over stdin and stdout (the frames), and then does only
this: it reaps, and when the worker ends or the host hangs up it kills all that is left in the sandbox, removes
DIRECTORY, and exits as the worker did. So the sandbox ends with the host even when the worker is stopped or holds the
interpreter's lock. Nothing in the sandbox can write into the frames through it: it is undumpable, and writes nowhere
but one last line on stderr.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from agentix_runner.remote.sandbox.guard import main; main(*sys.argv[2:])"
)
"""Starts it. Not this file as a script: those are compiled anew each time. ROOT comes last on the path, so that nothing
of the standard library is hidden."""

LAST_WORDS = "agentix-guard:"
"""How the guard's last line begins: `agentix-guard: exit=CODE oom=0`, CODE as in subprocess (negative: a signal)."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_KILL_LIMIT_S = 10.0
# What a pipe holds on Linux, and how much of it is worth telling.
_PIPE = 64 * 1024
_LAST_PRINTED = 8 * 1024


def main(directory: str | None = None) -> None:
    """Never returns."""
    # What is loaded here is waited for once a sandbox, and leaves nothing to collect: the worker turns that on. Before
    # the fork, which would copy each page that it touches; and hidden from the collector, which would touch them all.
    gc.disable()
    from agentix_runner.remote.sandbox.worker import serve

    gc.freeze()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    waker = _Waker()
    prctl = _prctl()
    prctl(_PR_SET_DUMPABLE, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ooms = _oom_kills()
    me = os.getpid()
    log_reader, log_writer = os.pipe()
    transit = _transit()
    worker = os.fork()
    if worker == 0:
        _become_worker(me, prctl, waker, lambda: serve(log_reader, log_writer, transit))
    os.close(log_writer)
    words = os.dup(2)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    status = _watch(worker, waker)
    if status is not None:
        code = os.waitstatus_to_exitcode(status)
        _tell_end(words, log_reader, transit, code, code == -signal.SIGKILL and _oom_kills() > ooms)
        _hang_up()
    gone = _kill_all(worker, status is None)
    if directory:
        _remove(directory)
    if not gone:
        # The host takes the end by a signal for one that it can't rely on. (PID 1 survives this, but nobody else then.)
        os.kill(os.getpid(), signal.SIGKILL)
    if status is None:
        os._exit(0)
    os._exit(code if code >= 0 else 128 - code)


class _Waker:
    """Makes poll() return when a child ends, or when the guard is told to end (`terminated`)."""

    def __init__(self) -> None:
        self.terminated = False
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._ignore)
        signal.signal(signal.SIGTERM, self._terminate)

    def _ignore(self, number: int, frame: Any) -> None:
        pass

    def _terminate(self, number: int, frame: Any) -> None:
        self.terminated = True

    def empty(self) -> None:
        try:
            while os.read(self.reader, 512):
                pass
        except BlockingIOError:
            pass

    def undo(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.reader)
        os.close(self.writer)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # Not SIG_IGN: that would pass on to every program started in the sandbox.
        signal.signal(signal.SIGINT, self._ignore)


def _prctl() -> Any:
    """prctl(2), or a function that does nothing where there is none."""
    try:
        import ctypes

        call = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda option, value: -1
    call.argtypes = [ctypes.c_int, ctypes.c_ulong]
    return lambda option, value: call(option, value)


def _become_worker(guard: int, prctl: Any, waker: _Waker, serve: Callable[[], int]) -> None:
    code = 70
    try:
        # Killed with the guard, so that a killed guard doesn't leave a worker that nobody watches.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            waker.undo()
            os.setsid()
            code = serve()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def _watch(worker: int, waker: _Waker) -> int | None:
    """Reap until the worker has ended (its wait status; it is reaped too) or the host has hung up (None)."""
    poll = select.poll()
    # No events asked for: a hang-up is always told, and input is the worker's to read.
    poll.register(0, 0)
    poll.register(waker.reader, select.POLLIN)
    while not waker.terminated:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == worker:
                return status
            if pid == 0:
                break
        ready = dict(poll.poll())
        if waker.reader in ready:
            waker.empty()
        if ready.get(0, 0) & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            return None
    return None


def _transit() -> int | None:
    """Where the worker keeps what it has read of the log and not sent yet. See `output`."""
    if sys.platform != "linux" or not hasattr(os, "splice"):
        return None
    try:
        return os.memfd_create("agentix-log")
    except (OSError, AttributeError):
        return None


def _tell_end(words: int, log_reader: int, transit: int | None, code: int, oom: bool) -> None:
    """Tell how the worker ended, after what was printed and the worker did not live to send. (What it had sent just
    before may be told twice.)"""
    printed = b""
    with contextlib.suppress(OSError):
        if transit is not None:
            printed = os.pread(transit, _PIPE, 0)
        os.set_blocking(log_reader, False)
        printed += os.read(log_reader, _PIPE)
    printed = printed[-_LAST_PRINTED:]
    with contextlib.suppress(OSError):
        os.set_blocking(words, False)
        os.write(words, printed + f"\n{LAST_WORDS} exit={code} oom={int(oom)}\n".encode())


def _hang_up() -> None:
    """Let the host see the end at once, not only when all is tidied up."""
    # A pipe needs none of this: the worker's end of it is closed already.
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(0).st_mode):
            import socket

            with socket.socket(fileno=os.dup(0)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _kill_all(worker: int, unreaped: bool) -> bool:
    """Kill every descendant until none is left. False if some are after all.

    Only children are killed, and their process groups, never grandchildren by their number: a child's process id
    can't be used again before it is reaped here. What a killed child leaves behind becomes a child of this process
    (PID 1 or subreaper), so that the next round finds it, however it was detached. Groups, because the kernel kills
    one as a whole: a program that forks faster than it can be killed one by one ends all the same.
    """
    end = time.monotonic() + _KILL_LIMIT_S
    pause = 0.0
    session = os.getsid(0)
    while time.monotonic() < end:
        if sys.platform == "linux":
            for pid in _children():
                with contextlib.suppress(OSError):
                    # A group lies within one session, and the worker has begun one that is not the guard's.
                    if os.getsid(pid) != session:
                        _kill(os.killpg, os.getpgid(pid))
                _kill(os.kill, pid)
        else:
            # No subreaper here: the worker and its group are all that can be reached.
            _kill(os.killpg, worker)
            if unreaped:
                _kill(os.kill, worker)
        try:
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                unreaped = unreaped and pid != worker
        except ChildProcessError:
            return True
        time.sleep(pause)
        pause = min(pause + 0.0002, 0.01)
    return False


def _kill(how: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(OSError):
        how(pid, signal.SIGKILL)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        pass
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as status:
                    # The name in parentheses may hold anything.
                    parent = int(status.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                found.append(int(name))
    return found


def _oom_kills() -> int:
    """How often memory ran out: in this container where that is known, else on this machine."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"):
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            continue
    return 0


def _remove(directory: str) -> None:
    from agentix_runner.remote.sandbox.remove_tree import remove_tree

    try:
        os.chdir("/")
        remove_tree(directory)
    except OSError:
        # The host tries again, and tells.
        pass
