from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentix_runner import __version__
from agentix_runner.remote.host.calls import ImportableModules, make_call
from agentix_runner.remote.sandbox import guard
from agentix_runner.remote.wire import frames
from agentix_runner.remote.wire.codec import decode
from agentix_runner.remote.wire.frames import Frame, FrameReader

from ..support import wire_functions as remote

REMOTE = Path(guard.__file__).parents[1]
SANDBOX_SIDE = [
    path.relative_to(REMOTE).as_posix()
    for room in ("sandbox", "wire", "tools")
    for path in (REMOTE / room).glob("*.py")
]
REACH = ImportableModules(python=sys.version_info[:2], shared=True)


class Peer:
    """A host that speaks in frames of its own making."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = FrameReader(connection.recv)

    def send(self, kind: int, stream: int, *parts: bytes | memoryview) -> None:
        for frame in frames.frames_of(kind, stream, parts):
            self.connection.sendall(frame.to_bytes())

    def call(self, number: int, function: object, *args: object) -> None:
        self.send(frames.CALL, number, *make_call(function, args, {}, REACH))  # type: ignore[arg-type]

    def take(self) -> Frame:
        frame = self.reader.next()
        assert frame is not None
        return frame

    def hello(self, **more: object) -> dict[str, object]:
        hello = {"max_result": 1 << 20, "max_log": 1 << 20, "path": None, **more}
        self.send(frames.HELLO, 0, json.dumps(hello).encode())
        frame = self.take()
        assert frame.kind == frames.HELLO
        answer: dict[str, object] = json.loads(bytes(frame.payload))
        return answer

    def whole_answer(self) -> tuple[int, int, object]:
        data = b""
        while True:
            frame = self.take()
            data += frame.payload
            if frame.end:
                return frame.kind, frame.stream, decode(data)


@contextmanager
def guarded(*arguments: str) -> Iterator[tuple[Peer, subprocess.Popen[bytes]]]:
    """A guard and its worker, run as in an image that has nothing: isolated, and with no site-packages."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", *arguments, "-c", guard.BOOT, str(REMOTE.parents[1])]
    with (
        ours,
        subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE, cwd="/"
        ) as process,
    ):
        theirs.close()
        ours.settimeout(60)
        try:
            yield Peer(ours), process
        finally:
            ours.close()
            process.wait(30)


def test_the_sandbox_side_imports_the_standard_library_alone() -> None:
    """Whatever is imported in the sandbox's modules, also late, is of the standard library or beside it."""
    allowed = {
        *("asyncio", "codecs", "collections", "contextlib", "ctypes", "dataclasses", "enum", "errno", "fcntl"),
        *("functools", "gc", "itertools", "json", "os", "pickle", "re", "secrets", "select", "selectors", "shutil"),
        *("signal", "socket", "stat", "struct"),
        *("subprocess", "sys", "tempfile", "termios", "threading", "time", "traceback"),
    }
    allowed |= {"__future__"}
    mates = {f"agentix_runner.remote.{name.removesuffix('.py').replace('/', '.')}" for name in SANDBOX_SIDE}
    mates |= {f"agentix_runner.remote.{room}" for room in ("sandbox", "wire", "tools")}
    mates |= {"agentix_runner._version", "agentix_runner.remote", "agentix_runner.tunnel"}
    strangers = []
    for name in SANDBOX_SIDE:
        tree = ast.parse((REMOTE / name).read_text())
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in typing_only:
                continue
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found = [node.module or ""]
            elif isinstance(node, ast.ImportFrom):
                package = ["agentix_runner", "remote", *Path(name).parent.parts]
                above = ".".join(package[: len(package) - node.level + 1])
                found = [f"{above}.{node.module}"] if node.module else [f"{above}.{a.name}" for a in node.names]
            else:
                continue
            strangers += [
                f"{name}: {one}" for one in found if one not in mates and one.partition(".")[0] not in allowed
            ]
    assert strangers == []


def test_the_worker_runs_where_there_is_nothing_but_the_standard_library() -> None:
    """Under -I -S the worker greets, tells its versions and modules, and answers."""
    with guarded() as (peer, process):
        hello = peer.hello()
        assert hello["agentix"] == __version__
        assert hello["wire"] == frames.WIRE
        assert hello["python"] == list(sys.version_info[:3])
        assert "agentix_runner" in hello["modules"]  # type: ignore[operator]
        assert "os" not in hello["modules"]  # type: ignore[operator]
        peer.call(9, only_here)
        kind, stream, value = peer.whole_answer()
        # A function of this file can't be imported there, which is an answer too.
        assert (kind, stream) == (frames.ERROR, 9)
        assert value["stage"] == "call"  # type: ignore[index]
        peer.call(10, len, [1, 2])
        assert peer.whole_answer() == (frames.RESULT, 10, 2)
    assert process.returncode == 0


def only_here() -> None:
    """Only its name is needed."""


def test_importing_the_worker_loads_little() -> None:
    """Neither asyncio nor inspect, dataclasses or typing are loaded before a call needs them: a sandbox starts fast."""
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import agentix_runner.remote.sandbox.worker, agentix_runner.remote.sandbox.guard\n"
        "print(sorted({'asyncio', 'inspect', 'dataclasses', 'subprocess', 'logging', 'attr'} & set(sys.modules)))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(REMOTE.parents[1])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_long_answers_wait_for_credit() -> None:
    """A worker sends no more than a window of an answer until it is granted more, and other answers overtake it."""
    with guarded() as (peer, _):
        peer.hello(
            path=[*sys.path, str(REMOTE.parents[1])], prefix=sys.prefix, exec_prefix=sys.prefix, max_result=1 << 30
        )
        size = 3 * frames.WINDOW
        peer.call(1, remote.zeros, size)
        got = 0
        while got < frames.WINDOW - frames.MAX_PAYLOAD:
            frame = peer.take()
            assert (frame.kind, frame.stream, frame.end) == (frames.RESULT, 1, False)
            got += len(frame.payload)
        peer.call(2, remote.add, 1, 2)
        numbers = set()
        while (frame := peer.take()).stream == 1:
            numbers.add(frame.stream)
            got += len(frame.payload)
        assert (frame.kind, frame.stream, decode(frame.payload)) == (frames.RESULT, 2, 3)
        assert got <= frames.WINDOW
        # Nothing more of it comes, however often others are answered in between.
        for number in range(3, 30):
            peer.call(number, remote.add, number)
            frame = peer.take()
            assert (frame.kind, frame.stream, decode(frame.payload)) == (frames.RESULT, number, number)
        while not frame.end or frame.stream != 1:
            peer.connection.sendall(frames.credit(1, frames.MAX_PAYLOAD).to_bytes())
            frame = peer.take()
            got += len(frame.payload)
        assert size < got < size + 200


def test_calls_in_many_frames_are_put_together() -> None:
    """Two long calls whose frames take turns are both understood."""
    with guarded() as (peer, _):
        peer.hello(max_result=1 << 30)
        cut = [list(frames.frames_of(frames.CALL, n, make_call(len, (bytes(300_000 + n),), {}, REACH))) for n in (1, 2)]
        for pair in zip(*cut, strict=True):
            for frame in pair:
                peer.connection.sendall(frame.to_bytes())
        answers = sorted(peer.whole_answer() for _ in range(2))
        assert answers == [(frames.RESULT, 1, 300_001), (frames.RESULT, 2, 300_002)]


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", frames.Frame(frames.CALL, 1, b"").to_bytes()])
def test_a_host_that_does_not_greet_gets_nothing(garbage: bytes) -> None:
    """What is no greeting ends the worker with an error on stderr."""
    with guarded() as (peer, process):
        peer.connection.sendall(garbage)
        assert peer.connection.recv(1) == b""
        assert process.wait(30) == 70
        assert process.stderr is not None
        assert b"FrameError" in process.stderr.read()


def test_garbage_in_a_call_is_that_calls_error() -> None:
    """A call that can't be read is answered with an error, and the next one runs."""
    with guarded() as (peer, _):
        peer.hello()
        for number, data in enumerate([b"", b"\x01\xff\xff\xff\xff", b"\x00\x00\x00\x00\x00garbage"]):
            peer.send(frames.CALL, number, data)
            kind, stream, value = peer.whole_answer()
            assert (kind, stream, value["stage"]) == (frames.ERROR, number, "call")  # type: ignore[index]
        peer.call(7, abs, -1)
        assert peer.whole_answer() == (frames.RESULT, 7, 1)
