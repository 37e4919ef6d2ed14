"""The host's half of the wire, against a sandbox that the test itself plays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import LocalProvider, SandboxConfig, __version__
from agentix_runner.errors import BadResult, CallError, SandboxDied, SandboxStartError
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.remote.host import calls, connection
from agentix_runner.remote.host.calls import ImportableModules, make_call
from agentix_runner.remote.host.transport import Ended, Transport
from agentix_runner.remote.sandbox import worker
from agentix_runner.remote.wire import frames
from agentix_runner.remote.wire.codec import encode
from agentix_runner.remote.wire.frames import Frame, FrameReader

from ..support import wire_functions as remote
from ..support.background import in_background

PYTHON = list(sys.version_info[:3])


class PairTransport:
    """A transport to the other end of a pair of sockets. `end` is how the sandbox is said to have ended."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.end = Ended(5, False, "")
        self.released = False

    def read(self, size: int) -> bytes:
        return self.ours.recv(size)

    def write(self, data: bytes) -> None:
        self.ours.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)

    def ended(self, timeout: float) -> Ended:
        return self.end

    def release(self, timeout: float) -> bool:
        self.released = True
        self.ours.close()
        self.theirs.close()
        return True


class Actor:
    """Plays the sandbox."""

    def __init__(self, transport: PairTransport) -> None:
        self.socket = transport.theirs
        self.socket.settimeout(30)
        self.reader = FrameReader(self.socket.recv)

    def take(self) -> Frame:
        frame = self.reader.next()
        assert frame is not None
        return frame

    def take_call(self) -> tuple[int, Any]:
        data, frame = b"", None
        while frame is None or not frame.end:
            frame = self.take()
            data += frame.payload
        assert frame.kind == frames.CALL
        return frame.stream, worker.load_call(data)

    def send(self, kind: int, stream: int, payload: bytes, *, end: bool = True) -> None:
        self.socket.sendall(Frame(kind, stream, payload, end=end).to_bytes())

    def answer(self, stream: int, value: object) -> None:
        for frame in frames.frames_of(frames.RESULT, stream, encode(value)):
            self.socket.sendall(frame.to_bytes())

    def hello(self, **other: object) -> None:
        hello = {"wire": frames.WIRE, "agentix": __version__, "python": PYTHON, "pid": 1, **other}
        self.send(frames.HELLO, 0, json.dumps(hello).encode())


@contextmanager
def sandbox_of(**options: Any) -> Iterator[tuple[RemoteSandbox, Actor, PairTransport]]:
    """A sandbox that is not connected, and its actor. Nothing of it is left."""
    transport = PairTransport()
    sandbox = RemoteSandbox(transport, **{"shared": True, **options})
    try:
        yield sandbox, Actor(transport), transport
    finally:
        assert sandbox.close() is True
        assert transport.released
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("agentix")] == []


@contextmanager
def connected(**options: Any) -> Iterator[tuple[RemoteSandbox, Actor]]:
    """A sandbox that is ready for calls."""
    with sandbox_of(**options) as (sandbox, actor, _):
        actor.hello()
        sandbox.connect(30)
        assert actor.take().kind == frames.HELLO
        yield sandbox, actor


def begin(sandbox: RemoteSandbox, actor: Actor, *args: Any, **kwargs: Any) -> Future[Any]:
    """A call of `add` that has come to the sandbox and waits for its answer."""
    future = in_background(sandbox.remote, remote.add, *args, **kwargs)
    assert actor.take_call()[1] == (remote.add, args, kwargs)
    return future


# --- the greeting ---


def test_the_host_says_what_the_worker_needs() -> None:
    """The first frame holds versions, limits and what the provider adds."""
    with sandbox_of(max_result=11, max_log=12) as (sandbox, actor, _):
        actor.hello()
        sandbox.connect(30, {"path": ["/x"]})
        hello = json.loads(bytes(actor.take().payload))
    assert hello == {"wire": 1, "agentix": __version__, "max_result": 11, "max_log": 12, "path": ["/x"]}


@pytest.mark.parametrize("other", [{"agentix": "0.0.9"}, {"wire": 2}, {"agentix": None}])
def test_another_version_is_refused_in_the_first_frame(other: dict[str, object]) -> None:
    """The error names both versions and says what to do."""
    with sandbox_of() as (sandbox, actor, _):
        actor.hello(**other)
        with pytest.raises(
            SandboxStartError, match=r"the sandbox has .* and here is .*build its bundle again"
        ) as caught:
            sandbox.connect(30)
        assert str(next(iter(other.values()))) in str(caught.value)
        assert __version__ in str(caught.value)


@pytest.mark.parametrize("hello", [b"", b"{}", b"[]", b"5", b"\xff", b"[" * 5000, b'{"agentix":1,"wire":1,"python":3}'])
def test_a_greeting_that_is_none_is_refused(hello: bytes) -> None:
    """Whatever else comes first is a start error, with what the sandbox wrote."""
    with sandbox_of() as (sandbox, actor, transport):
        transport.end = Ended(None, False, "some text\nof two lines")
        actor.send(frames.HELLO, 0, hello)
        with pytest.raises(
            SandboxStartError, match=r"its hello is not valid: .*; it wrote: some text \| of two lines$"
        ):
            sandbox.connect(30)


def test_a_greeting_without_end_is_refused() -> None:
    """No more than a limit of it is kept."""
    with sandbox_of() as (sandbox, actor, _):

        def flood() -> None:
            try:
                while True:
                    actor.send(frames.HELLO, 0, b" " * frames.MAX_PAYLOAD, end=False)
            except OSError:
                pass

        flooding = in_background(flood)
        with pytest.raises(SandboxStartError, match=r"a hello of more than|ended before it was ready"):
            sandbox.connect(30)
        flooding.result(30)


def test_no_answer_in_time_is_a_transient_start_error() -> None:
    """A machine that is too busy may have time at another try."""
    with (
        sandbox_of() as (sandbox, _, _),
        pytest.raises(SandboxStartError, match=r"gave no answer in 0\.01 s") as caught,
    ):
        sandbox.connect(0.01)
    assert caught.value.transient is True


def test_a_sandbox_that_is_not_connected_takes_no_call() -> None:
    """The error says what is missing."""
    with sandbox_of() as (sandbox, _, _), pytest.raises(CallError, match="not connected"):
        sandbox.remote(remote.add, 1)


# --- calls and answers ---


def test_a_call_goes_by_name_where_the_sandbox_can_import_it() -> None:
    """Function and arguments arrive, and the answer finds its call."""
    with connected() as (sandbox, actor):
        futures = [begin(sandbox, actor, n, b=n) for n in range(3)]
        for number in (3, 2, 1):
            actor.answer(number, number * 10)
        assert [future.result(30) for future in futures] == [10, 20, 30]


def test_an_answer_in_two_kinds_is_bad() -> None:
    """A result that goes on as an error is not a valid result, and the rest of it is dropped."""
    with connected() as (sandbox, actor):
        bad, good = begin(sandbox, actor, 1), begin(sandbox, actor, 2)
        actor.send(frames.RESULT, 1, b"abc", end=False)
        actor.send(frames.ERROR, 1, b"def", end=False)
        actor.send(frames.ERROR, 1, b"ghi", end=False)
        actor.send(frames.ERROR, 1, b"")
        assert str(bad.exception(30)).endswith("add is not a valid result: a result and an error in one")
        actor.answer(2, 5)
        assert good.result(30) == 5


def test_an_answer_over_the_limit_is_bad_and_not_kept() -> None:
    """A worker that keeps to no limit is cut off at it, and others of its calls go on."""
    with connected(max_result=100_000) as (sandbox, actor):
        bad, good = begin(sandbox, actor, 1), begin(sandbox, actor, 2)
        chunk = bytes(frames.MAX_PAYLOAD)
        for _ in range(60):
            actor.send(frames.RESULT, 1, chunk, end=False)
        actor.send(frames.RESULT, 1, chunk)
        assert isinstance(bad.exception(30), BadResult)
        assert "more than 1148576 bytes" in str(bad.exception())
        actor.answer(2, 5)
        assert good.result(30) == 5


@pytest.mark.parametrize(
    "report",
    [
        {},
        [],
        {"stage": "raised", "type": "T", "message": "m"},
        {"stage": "raised", "type": "T", "message": "m", "traceback": 5},
        {"stage": "other", "type": "T", "message": "m", "traceback": ""},
        {"stage": "raised", "type": "T", "message": "m", "traceback": "", "more": ""},
    ],
)
def test_an_error_report_of_another_form_is_a_bad_result(report: object) -> None:
    """The sandbox does not choose which error is raised by odd reports."""
    with connected() as (sandbox, actor):
        call = begin(sandbox, actor, 1)
        actor.send(frames.ERROR, 1, b"".join(encode(report)))
        assert isinstance(call.exception(30), BadResult)


def test_credit_is_given_for_long_answers_and_output() -> None:
    """Half a window read is half a window granted, for each stream, however much there is of it."""
    with connected() as (sandbox, actor):
        kept = begin(sandbox, actor, 1)
        begin(sandbox, actor, 2)
        half = frames.WINDOW // 2 // frames.MAX_PAYLOAD
        for stream, kind in ((1, frames.RESULT), (2, frames.RESULT), (0, frames.LOG)):
            for _ in range(half):
                actor.send(kind, stream, bytes(frames.MAX_PAYLOAD), end=False)
            frame = actor.take()
            assert (frame.kind, frame.stream, frames.credit_of(frame)) == (frames.CREDIT, stream, frames.WINDOW // 2)
            actor.send(kind, stream, b"a little more", end=False)
        actor.send(frames.RESULT, 1, b"", end=True)
        assert isinstance(kept.exception(30), BadResult)
        assert sandbox._credit.keys() <= {0, 2}
        for _ in range(half * 3):
            actor.send(frames.RESULT, 99, bytes(frames.MAX_PAYLOAD), end=False)
        last = begin(sandbox, actor, 3)
        actor.answer(3, 4)
        assert last.result(30) == 4
        assert 99 not in sandbox._credit


def test_a_blocked_writer_does_not_keep_the_reader_from_reading() -> None:
    """While a sandbox takes nothing, what it sends is read all the same, far beyond what the connection holds."""
    heard = bytearray()
    with connected(on_log=heard.extend) as (sandbox, actor):
        stuck = in_background(sandbox.remote, len, bytes(20_000_000))
        for _ in range(200):
            actor.send(frames.LOG, 0, bytes(frames.MAX_PAYLOAD), end=False)
        end = time.monotonic() + 30
        while len(heard) < 200 * frames.MAX_PAYLOAD and time.monotonic() < end:
            time.sleep(0.005)
        assert len(heard) == 200 * frames.MAX_PAYLOAD
        assert not stuck.done()
        sandbox.kill()
        assert isinstance(stuck.exception(30), SandboxDied)


def test_the_end_of_the_connection_is_everyones_answer() -> None:
    """Whoever waits is told how the sandbox ended, and so is whoever comes later."""
    with sandbox_of() as (sandbox, actor, transport):
        transport.end = Ended(-9, True, "")
        actor.hello()
        sandbox.connect(30)
        assert actor.take().kind == frames.HELLO
        waiting = [begin(sandbox, actor, n) for n in range(3)]
        transport.theirs.close()
        for future in waiting:
            error = future.exception(30)
            assert isinstance(error, SandboxDied)
            assert (error.exit_code, error.oom) == (-9, True)
            assert "ran out of memory" in str(error)
        with pytest.raises(SandboxDied, match="ran out of memory"):
            sandbox.remote(remote.add, 1)


def test_an_end_inside_a_frame_is_told_as_the_end_that_it_is() -> None:
    """A worker that died while it wrote is a death with an exit code, not garbage."""
    with sandbox_of() as (sandbox, actor, transport):
        actor.hello()
        sandbox.connect(30)
        assert actor.take().kind == frames.HELLO
        waiting = begin(sandbox, actor, 1)
        actor.socket.sendall(Frame(frames.RESULT, 1, b"12345").to_bytes()[:-2])
        transport.theirs.close()
        error = waiting.exception(30)
        assert isinstance(error, SandboxDied)
        assert error.exit_code == 5


def test_an_interrupted_wait_gives_up_its_call() -> None:
    """Ctrl-C in a waiting `remote` leaves nothing of the call in the table."""
    code = (
        "import signal, sys\n"
        "from agentix_runner import LocalProvider, SandboxConfig\n"
        "from tests.support import wire_functions\n"
        "with LocalProvider().session(SandboxConfig(image='')) as sandbox:\n"
        "    signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "    try:\n"
        "        sandbox.remote(wire_functions.sleep, 60)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', sandbox._calls, sandbox._given_up, sandbox.remote(wire_functions.add, 1))\n"
    )
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "interrupted {} {1} 1\n"


def test_on_log_that_never_returns_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """close() waits for it a while, says so, and frees the rest."""
    monkeypatch.setattr(connection, "_END_LIMIT_S", 0.05)
    entered, leave = threading.Event(), threading.Event()

    def on_log(data: bytes) -> None:
        entered.set()
        leave.wait(60)

    transport = PairTransport()
    sandbox = RemoteSandbox(transport, shared=True, on_log=on_log)
    actor = Actor(transport)
    actor.hello()
    sandbox.connect(30)
    actor.send(frames.LOG, 0, b"x")
    assert entered.wait(30)
    assert sandbox.close() is True
    assert transport.released
    assert "does on_log return?" in caplog.text
    leave.set()
    sandbox._reader.join(30)
    assert not sandbox._reader.is_alive()


def test_the_transport_is_a_protocol() -> None:
    """Anything with these methods will do."""
    transport: Transport = PairTransport()
    transport.close()
    assert transport.read(5) == b""
    with pytest.raises(OSError):
        transport.write(b"x")
    transport.release(1)


# --- memory ---


def test_a_large_result_takes_little_more_than_twice_its_size() -> None:
    """200 MB of bytes need at most two and a half times as much memory on the host."""
    size = 200_000_000
    code = (
        "import re, resource, sys\n"
        "from agentix_runner import LocalProvider, SandboxConfig\n"
        "from tests.support import wire_functions\n"
        "def peak():\n"
        "    if sys.platform == 'darwin':\n"
        "        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        # Linux's ru_maxrss counts what this process was before exec(), too.
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "with LocalProvider().session(SandboxConfig(image='')) as sandbox:\n"
        "    sandbox.remote(wire_functions.zeros, 10)\n"
        "    before = peak()\n"
        f"    assert len(sandbox.remote(wire_functions.zeros, {size})) == {size}\n"
        "    print(peak() - before)\n"
    )
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=100
    )
    assert size < int(found.stdout) < 2.5 * size


# --- what the sandbox can't import ---


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's own, and one that it uses."""
    (tmp_path / "mine_helper.py").write_text("def double(x): return 2 * x\n")
    (tmp_path / "mine_main.py").write_text("import mine_helper\ndef run(x): return mine_helper.double(x) + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_main  # type: ignore[import-not-found]

    yield mine_main
    for name in ("mine_main", "mine_helper"):
        del sys.modules[name]


HERE = tuple(sys.version_info[:2])
BARE = ImportableModules(python=(HERE[0], HERE[1]), modules=frozenset({"cloudpickle", "agentix_runner"}))


def run_elsewhere(parts: list[bytes | memoryview], tmp_path: Path) -> str:
    """Run a call in a process that can import the remote side and cloudpickle alone."""
    (tmp_path / "call").write_bytes(b"".join(parts))
    folder = tmp_path / "site"
    folder.mkdir()
    import cloudpickle  # type: ignore[import-untyped]

    for module in (cloudpickle, sys.modules["agentix_runner"]):
        source = Path(module.__file__).parent
        (folder / source.name).symlink_to(source)
    code = (
        f"import sys; sys.path.append({str(folder)!r})\n"
        "from agentix_runner.remote.sandbox.worker import load_call\n"
        f"function, args, kwargs = load_call(open({str(tmp_path / 'call')!r}, 'rb').read())\n"
        "print(repr(function(*args, **kwargs)))\n"
    )
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout


def test_modules_of_the_working_directory_go_by_value_elsewhere(mine: Any, tmp_path: Path) -> None:
    """Where the sandbox has no such module, the function travels with those that it uses."""
    assert run_elsewhere(make_call(mine.run, (20,), {}, BARE), tmp_path) == "41\n"


def test_what_the_sandbox_has_goes_by_name_elsewhere() -> None:
    """The standard library, and the modules that the worker has named."""
    assert make_call(os.getcwd, (), {}, BARE)[0] == b"\x01\x00\x00\x00\x0cposix:getcwd"
    assert make_call(make_call, (), {}, BARE)[0][:1] == b"\x01"
    assert make_call(mine_like, (), {}, ImportableModules(python=HERE, shared=True))[0][:1] == b"\x01"  # type: ignore[arg-type]


def mine_like() -> None:
    """A function of a module that is not installed."""


def test_by_value_leaves_cloudpickles_registry_as_it_was(mine: Any) -> None:
    """What is registered for one call is no other's business."""
    import cloudpickle

    before = set(cloudpickle.list_registry_pickle_by_value())
    make_call(mine.run, (1,), {}, BARE)
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_another_minor_version_takes_nothing_by_value(mine: Any) -> None:
    """The error comes before the call and names both versions; by name still works."""
    other = ImportableModules(python=(3, 99), modules=frozenset({"cloudpickle"}))
    here = f"{HERE[0]}.{HERE[1]}"
    for function, args in ((mine.run, (1,)), (len, ([lambda: 1],)), (lambda: 1, ())):
        with pytest.raises(CallError, match=rf"needs the same Python on both sides: here is {here}, there 3\.99"):
            make_call(function, args, {}, other)
    assert make_call(len, ([1],), {}, other)[0][:1] == b"\x01"


def test_main_is_never_there_by_name() -> None:
    """`__main__` is another module on the other side."""
    assert ImportableModules(python=BARE.python, shared=True).imports("__main__") is False
    assert calls.name_of(len) == "len"
    assert calls.name_of(threading.Lock()) == "a lock object"


def test_a_stopped_start_leaves_nothing(tmp_path: Path) -> None:
    """An interrupt while a sandbox starts leaves neither process nor directory."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 60\n")
    python.chmod(0o755)
    code = (
        "import signal, sys\n"
        "from agentix_runner import LocalProvider, SandboxConfig\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        f"provider = LocalProvider(root={str(tmp_path / 'root')!r}, python={str(python)!r})\n"
        "try:\n"
        "    provider.session(SandboxConfig(image='')).__enter__()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "interrupted\n"
    assert list((tmp_path / "root").iterdir()) == []


def test_sandboxes_are_independent() -> None:
    """The end of one is no other's."""
    provider, config = LocalProvider(), SandboxConfig(image="")
    with provider.session(config) as one, provider.session(config) as other:
        one.kill()
        assert other.remote(remote.add, 1, 2) == 3
