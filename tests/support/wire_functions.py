"""Functions for the wire's tests to run in sandboxes, in a module of their own that imports nothing heavy there."""

from __future__ import annotations

import ctypes
import datetime
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from agentix_runner.remote.sandbox import worker
from agentix_runner.remote.wire import frames


class Colour(Enum):
    RED = "r"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Report:
    name: str
    when: datetime.datetime
    day: datetime.date
    path: pathlib.Path
    colour: Colour
    point: Point
    parts: list[Report] = field(default_factory=list)
    best: Report | None = None
    by_number: dict[int, bytes] = field(default_factory=dict)


WHEN = datetime.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=datetime.timezone.utc)


def make_report(name: str = "a") -> Report:
    inner = Report("b", WHEN, WHEN.date(), pathlib.Path("/b"), Colour.RED, Point(1, 2))
    return Report(
        name, WHEN, WHEN.date(), pathlib.Path("x/y"), Colour.RED, Point(3, 4), [inner], inner, {7: b"\xff\x00"}
    )


def make_report_untyped():  # type: ignore[no-untyped-def]
    return make_report()


def says_int(value: Any) -> int:
    return value  # type: ignore[no-any-return]


def says_report(value: Any) -> Report:
    return value  # type: ignore[no-any-return]


def says_text(value: Any) -> str:
    return value  # type: ignore[no-any-return]


def says_texts(value: Any) -> list[str] | None:
    return value  # type: ignore[no-any-return]


def says_point(value: Any) -> Point:
    return value  # type: ignore[no-any-return]


class Unknowable(Protocol):
    def method(self) -> None: ...


def says_protocol(value: Any) -> Unknowable:
    return value  # type: ignore[no-any-return]


def says_unresolvable(value: Any) -> NotThere:  # type: ignore[name-defined]  # noqa: F821
    return value


def add(a: int, b: int = 0, *rest: int, **named: int) -> int:
    return a + b + sum(rest) + sum(named.values())


def echo(value: Any) -> Any:
    return value


async def add_later(a: int, b: int) -> int:
    import asyncio

    await asyncio.sleep(0.001)
    return a + b


def fail(kind: type[BaseException], *args: Any) -> None:
    raise kind(*args)


class Weird(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail_weirdly() -> None:
    raise Weird


def fail_with_surrogates() -> None:
    raise ValueError("bad \udce9 \ud83d text")


def fail_at_length(size: int) -> None:
    raise ValueError("x" * size)


def an_object() -> object:
    return {"a": [1, object()]}


def a_generator() -> Iterator[int]:
    yield 1


def zeros(size: int) -> bytes:
    return bytes(size)


def long_text(size: int) -> str:
    return "é" * size


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def meet(path: str, number: int, wanted: int) -> int:
    """Return when `wanted` of these run at once."""
    pathlib.Path(path, str(number)).touch()
    while len(os.listdir(path)) < wanted:
        time.sleep(0.002)
    return number


def say(text: str, end: str = "\n") -> None:
    print(text, end=end)


def say_everywhere() -> None:
    print("python out")
    print("python err", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo child out; echo child err >&2"], check=True)
    libc = ctypes.CDLL(None)
    libc.puts(b"c out")
    libc.fflush(None)
    os.write(1, b"raw \xff out\n")


def say_much(total: int) -> int:
    block = b"x" * 65535 + b"\n"
    for _ in range(total // len(block)):
        os.write(1, block)
    return total


def read_stdin() -> bytes:
    return os.read(0, 100)


def close_standard() -> None:
    for number in (0, 1, 2):
        os.close(number)


def environment() -> dict[str, str]:
    return dict(os.environ)


def listing() -> list[str]:
    return sorted(os.listdir("."))


def exit_hard(code: int) -> None:
    os._exit(code)


def print_and_die() -> None:
    os.write(2, b"about to crash\n")
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def die_while_sending() -> None:
    """What is printed has left the pipe, and is not sent."""
    from agentix_runner.remote.sandbox import worker

    assert worker.current is not None
    worker.current.outbox._write = lambda data: os.kill(os.getpid(), signal.SIGKILL)
    os.write(2, b"about to crash\n")
    time.sleep(60)


def limit_files() -> str:
    """No file may have any size from now on."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    print("not in a file")
    return "done"


def kill_me(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def kill_guard(number: int) -> None:
    os.kill(os.getppid(), number)
    time.sleep(60)


def signal_guard(number: int) -> None:
    os.kill(os.getppid(), number)


def interrupt_me() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    return "still here"


def sigint_of_child() -> str:
    return subprocess.run(
        [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT).__name__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def fork_and_return() -> str:
    pid = os.fork()
    if pid == 0:
        return "the child"
    os.waitpid(pid, 0)
    return "the parent"


def _note(path: str, pid: int) -> None:
    with open(path, "a") as file:
        file.write(f"{pid}\n")


def daemonize(path: str) -> None:
    """Leave a process that has left session and group, whose parents are gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _note(path, os.getpid())
            for number in range(3):
                os.close(number)
            time.sleep(300)
        os._exit(0)
    wait_for(path, 1)


def fork_chain(path: str) -> None:
    """Leave a process that forks and exits, over and over: each has another id, and its parent is gone."""
    if os.fork() == 0:
        os.setsid()
        first = True
        while True:
            if os.fork():
                os._exit(0)
            if first:
                _note(path, os.getpid())
                first = False
    wait_for(path, 1)


def fork_swarm(path: str) -> None:
    """Leave many such chains in one process group: more forks than can be killed one by one. They end by themselves."""
    if os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 45
        for _ in range(48):
            if os.fork() == 0:
                while time.monotonic() < end:
                    if os.fork():
                        os._exit(0)
                os._exit(0)
        _note(path, os.getpid())
        os._exit(0)
    wait_for(path, 1)


def wait_for(path: str, lines: int) -> None:
    while not os.path.exists(path) or len(pathlib.Path(path).read_text().split()) < lines:
        time.sleep(0.002)


def note_all(path: str) -> None:
    """Write down the ids of the guard, of the worker and of a daemon, and then never return."""
    daemonize(path)
    _note(path, os.getpid())
    _note(path, os.getppid())
    time.sleep(300)


def stop_me(path: str) -> None:
    """Stop the worker; the note is there when it has stopped."""
    me = os.getpid()
    if os.fork() == 0:
        while (
            sys.platform == "linux"
            and pathlib.Path(f"/proc/{me}/stat").read_text().rpartition(")")[2].split()[0] != "T"
        ):
            time.sleep(0.002)
        _note(path, me)
        os._exit(0)
    os.kill(me, signal.SIGSTOP)
    # The signal stops the process in its own time.
    time.sleep(300)


def hold_the_lock(path: str) -> None:
    """Never give up the interpreter's lock: no other thread of the worker runs again."""
    _note(path, os.getpid())
    ctypes.PyDLL(None).sleep(300)


def make_locked_directories() -> None:
    os.makedirs("locked/inner")
    pathlib.Path("locked/inner/file").touch(mode=0o400)
    os.chmod("locked/inner", 0o500)
    os.chmod("locked", 0o000)


def make_deep_directories(depth: int) -> None:
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")


def thread_name() -> str:
    return threading.current_thread().name


# --- an enemy in the worker ---


def _worker() -> worker.Worker:
    """The worker itself, as code in its process can find it."""
    import gc

    return next(one for one in gc.get_objects() if isinstance(one, worker.Worker))


def _outbox() -> int:
    """The worker's own descriptor for frames."""
    return _worker().outlet


def _current_call() -> int:
    return int(threading.current_thread().name.rpartition("-")[2])


def send_raw(data: bytes) -> None:
    os.write(_outbox(), data)
    time.sleep(60)


def send_huge_length() -> None:
    send_raw(struct.pack(">BBII", frames.RESULT, 1, _current_call(), 2**31))


def _message(header: bytes) -> bytes:
    return struct.pack(">II", len(header), 0) + header


def answer_with(header: bytes) -> None:
    """Answer this call with JSON of the caller's making, and never return."""
    parts = frames.frames_of(frames.RESULT, _current_call(), [_message(header)])
    # Other calls' answers must not come in between: on a pipe a long write isn't one piece.
    with _worker().outbox._writing:
        for frame in parts:
            data = memoryview(frame.to_bytes())
            while data:
                data = data[os.write(_outbox(), data) :]
    time.sleep(300)


def answer_nested(depth: int) -> None:
    answer_with(b"[" * depth + b"]" * depth)


def answer_with_nothing() -> None:
    os.write(_outbox(), frames.Frame(frames.RESULT, _current_call(), b"").to_bytes())
    time.sleep(300)


def answer_others(first: int, count: int) -> str:
    """Answer calls that were never made."""
    outbox = _outbox()
    for number in range(first, first + count):
        os.write(outbox, frames.Frame(frames.RESULT, number, _message(b'"forged"')).to_bytes())
    return "mine"


def answer_twice() -> str:
    os.write(_outbox(), frames.Frame(frames.RESULT, _current_call(), _message(b'"first"')).to_bytes())
    return "second"


def flood_logs(total: int) -> str:
    """Send log frames without regard to credit or limit."""
    data = frames.Frame(frames.LOG, 0, b"x" * frames.MAX_PAYLOAD).to_bytes()
    outbox = _outbox()
    for _ in range(total // frames.MAX_PAYLOAD):
        view = memoryview(data)
        while view:
            view = view[os.write(outbox, view) :]
    return "done"
