"""What every provider's sandboxes do, whatever they are made of. Parametrised over the providers that are there."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import SandboxConfig
from agentix_runner.errors import BadResult, CallError, RemoteError, SandboxDied, SandboxError
from agentix_runner.protocols import Sandbox, SandboxProvider
from agentix_runner.providers.docker import DockerProvider
from agentix_runner.providers.local import LocalProvider
from agentix_runner.providers.sandbox import RemoteSandbox

from ..support import wire_functions as remote
from ..support.background import in_background


@pytest.fixture(scope="module", params=["local", "docker"])
def provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SandboxProvider:
    """Each provider in turn. The tests' temporary directories are the same ones in the sandbox."""
    limits = {"max_log": 2_000_000, "max_result": 300_000_000}
    if request.param == "local":
        return LocalProvider(**limits)
    request.getfixturevalue("engine")
    shared = tmp_path_factory.getbasetemp()
    return DockerProvider(mounts=[f"{shared}:{shared}"], **limits)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bundle(provider: SandboxProvider, request: pytest.FixtureRequest) -> str | None:
    """The bundle that has this suite's functions, so that they go by name."""
    return None if isinstance(provider, LocalProvider) else str(request.getfixturevalue("suite_bundle"))


@pytest.fixture(scope="module")
def image(provider: SandboxProvider, request: pytest.FixtureRequest) -> str:
    """What each sandbox is made from: as little as there can be."""
    return "" if isinstance(provider, LocalProvider) else str(request.getfixturevalue("busybox"))


@pytest.fixture(scope="module")
def shared(provider: SandboxProvider, image: str, bundle: str | None) -> Iterator[RemoteSandbox]:
    """One sandbox for the tests that leave it as it was."""
    with provider.session(SandboxConfig(image=image, bundle=bundle)) as sandbox:  # type: ignore[union-attr]
        yield sandbox


@pytest.fixture
def printed() -> bytearray:
    """What the sandbox of `fresh` has printed so far."""
    return bytearray()


@pytest.fixture
def fresh(provider: SandboxProvider, image: str, bundle: str | None, printed: bytearray) -> Iterator[RemoteSandbox]:
    """A sandbox for one test, which may break it."""
    config = SandboxConfig(
        image=image, bundle=bundle, on_log=printed.extend, labels={"instance_id": "i-1", "phase": "agent"}
    )
    # Where a test killed the guard the end can't be confirmed: that is told, and no fault here.
    with suppress(SandboxError), provider.session(config) as sandbox:  # type: ignore[union-attr]
        yield sandbox


def still_works(sandbox: RemoteSandbox) -> bool:
    return bool(sandbox.remote(remote.add, 20, 22) == 42)


# --- calls and values ---


def test_a_function_runs_elsewhere_and_returns_its_value(shared: RemoteSandbox) -> None:
    """Positional and keyword arguments arrive, the value comes back, and the process is another one."""
    assert shared.remote(remote.add, 1, 2, 3, x=4) == 10
    assert shared.remote(os.getpid) != os.getpid()
    assert isinstance(shared, Sandbox)


def test_a_coroutine_function_runs_to_its_end(shared: RemoteSandbox) -> None:
    """An `async def` gives its result, and not a coroutine."""
    assert shared.remote(remote.add_later, 1, 2) == 3
    assert shared.remote(partial(remote.add_later, 5), b=6) == 11


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, -(2**70), "tëxt \udcff", b"\x00\xff", (1, (2,)), {1: {2}}, {"$": 1}, [], math.inf, 1j],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(shared: RemoteSandbox, value: object) -> None:
    """What is plain data on the way in is the same on the way out."""
    got = shared.remote(remote.echo, value)
    assert got == value
    assert type(got) is type(value)


def test_a_result_is_rebuilt_as_the_annotation_says(shared: RemoteSandbox) -> None:
    """Dataclass, enum, named tuple, dates, path, Optional, list and dict come back as what they were."""
    assert shared.remote(remote.make_report, "n") == remote.make_report("n")


def test_a_result_without_an_annotation_is_plain_data(shared: RemoteSandbox) -> None:
    """Nothing but plain data is made where the function says nothing of its result."""
    value = shared.remote(remote.make_report_untyped)
    assert type(value) is dict
    assert (value["name"], value["point"], value["path"]) == ("a", (3, 4), "x/y")


@pytest.mark.parametrize("function", [remote.says_protocol, remote.says_unresolvable], ids=lambda f: f.__name__)
def test_an_annotation_that_says_nothing_of_data_is_none(shared: RemoteSandbox, function: Any) -> None:
    """A protocol or a name that isn't there leaves the result plain."""
    assert shared.remote(function, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (remote.says_int, "5", "says_int is said to return int, and returned str '5'"),
        (remote.says_int, True, "returned bool True"),
        (remote.says_int, None, "returned NoneType None"),
        (remote.says_report, {"name": 5}, "what its annotation doesn't say"),
        (remote.says_report, "text", "what its annotation doesn't say"),
        pytest.param(remote.says_int, "x" * 5_000_000, "returned str 'xxxxx", id="long text"),
        pytest.param(remote.says_text, 10**5000, "returned int of 16610 bits", id="many digits"),
        (remote.says_text, {"a": 1}, "returned dict of 1"),
        (remote.says_texts, "text", "a list wanted, got str 'text'"),
        (remote.says_texts, {"a": 1}, "a list wanted, got dict"),
        (remote.says_texts, ["a", 5], "str wanted, got int 5"),
        (remote.says_point, (1,), "the 2 values of a Point wanted"),
    ],
)
def test_a_result_that_is_not_what_the_annotation_says_is_bad(
    shared: RemoteSandbox, function: Any, value: object, text: str
) -> None:
    """The error names the function and what came instead."""
    with pytest.raises(BadResult) as caught:
        shared.remote(function, value)
    assert text in str(caught.value)
    assert still_works(shared)


def test_what_cant_be_sent_back_is_named(shared: RemoteSandbox) -> None:
    """The error says where in the result the culprit is."""
    with pytest.raises(BadResult, match=r"an_object returned what can't be sent: result\['a'\]\[1\] is a builtins"):
        shared.remote(remote.an_object)
    with pytest.raises(BadResult, match=r"a_generator returned what can't be sent: result is a builtins.generator"):
        shared.remote(remote.a_generator)


def test_methods_partials_classes_and_builtins_can_be_called(shared: RemoteSandbox) -> None:
    """Whatever pickle knows can be called, not only functions of modules."""
    assert shared.remote("a-b".split, "-") == ["a", "b"]
    assert shared.remote(partial(remote.add, 1, b=2)) == 3
    assert shared.remote(dict, a=1) == {"a": 1}
    report = remote.make_report()
    assert shared.remote(remote.Report, **vars(report)) == report
    assert shared.remote(Path("/tmp/../tmp").exists) is True


def test_lambdas_closures_and_local_classes_go_by_value(shared: RemoteSandbox) -> None:
    """What can't be imported in the sandbox travels with its code, as function and as argument."""
    offset = 5

    class Local:
        value = 7

    assert shared.remote(lambda x: x + offset, 1) == 6
    assert shared.remote(remote.add, *map(int, "12")) == 3
    assert shared.remote(lambda made: made.value, Local()) == 7
    assert shared.remote(lambda f: f(2), lambda x: x * 3) == 6
    assert shared.remote(lambda kinds: [k.__name__ for k in kinds], [type(None), int, remote.Report, Local]) == [
        *("NoneType", "int", "Report", "Local")
    ]


def test_without_cloudpickle_by_value_is_a_clear_error(shared: RemoteSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, and by name still works."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(CallError, match=r'pip install "agentix-runner\[notebook\]"'):
        shared.remote(lambda: 1)
    assert still_works(shared)


def test_what_cant_be_pickled_never_reaches_the_sandbox(shared: RemoteSandbox) -> None:
    """Bad arguments and things that can't be called are a CallError that names them."""
    with pytest.raises(
        CallError, match=r"arguments of tests\.support\.wire_functions\.echo can't be sent: TypeError: .*lock"
    ):
        shared.remote(remote.echo, threading.Lock())
    with pytest.raises(CallError, match=r"5, which is not callable"):
        shared.remote(5)  # type: ignore[arg-type]
    assert still_works(shared)


def test_a_missing_module_is_a_call_error(shared: RemoteSandbox) -> None:
    """A function whose module the sandbox can't import is an error that names the module."""
    module = type(sys)("not_on_disk")
    exec("def f(): return 1", module.__dict__)
    sys.modules["not_on_disk"] = module
    try:
        with pytest.raises(CallError, match=r"not_on_disk.f can't be run in the sandbox: ModuleNotFoundError"):
            shared.remote(module.f)
    finally:
        del sys.modules["not_on_disk"]
    assert still_works(shared)


# --- errors ---


def test_an_exception_arrives_as_text(shared: RemoteSandbox) -> None:
    """Type, message and traceback of what the function raised are on the error, and the sandbox lives on."""
    with pytest.raises(RemoteError) as caught:
        shared.remote(remote.fail, ValueError, "wrong")
    error = caught.value
    assert (error.type_name, error.remote_message) == ("ValueError", "wrong")
    assert str(error) == "tests.support.wire_functions.fail raised ValueError: wrong"
    assert error.remote_traceback.startswith("Traceback (most recent call last):\n  File ")
    assert "raise kind(*args)" in error.remote_traceback
    assert "worker.py" not in error.remote_traceback
    assert still_works(shared)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, asyncio.CancelledError])
def test_exceptions_that_end_programs_end_no_sandbox(shared: RemoteSandbox, kind: type[BaseException]) -> None:
    """sys.exit() and the like in the function are its exception, as any other."""
    with pytest.raises(RemoteError) as caught:
        shared.remote(remote.fail, kind, 3)
    assert caught.value.type_name.rpartition(".")[2] == kind.__name__
    assert still_works(shared)


def test_odd_exceptions_are_reported_all_the_same(shared: RemoteSandbox) -> None:
    """An exception whose text can't be made, holds surrogates or is endless arrives as text that can."""
    with pytest.raises(RemoteError) as caught:
        shared.remote(remote.fail_weirdly)
    assert caught.value.type_name == "tests.support.wire_functions.Weird"
    assert caught.value.remote_message == "<its text can't be had: RuntimeError>"
    with pytest.raises(RemoteError) as caught:
        shared.remote(remote.fail_with_surrogates)
    assert caught.value.remote_message == "bad \\udce9 \\ud83d text"
    with pytest.raises(RemoteError) as caught:
        shared.remote(remote.fail_at_length, 10_000_000)
    assert "9934464 characters left out" in caught.value.remote_message
    assert still_works(shared)


# --- overlapping calls ---


def test_calls_overlap(shared: RemoteSandbox, tmp_path: Path) -> None:
    """Many threads call at once, all the calls run at once, and each gets its own answer."""
    count = 20
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(shared.remote, remote.meet, str(tmp_path), n, count) for n in range(count)]
        assert [future.result(60) for future in futures] == list(range(count))


def test_each_call_has_a_thread_of_its_own(shared: RemoteSandbox) -> None:
    """No call sees what another one left in its thread."""
    assert shared.remote(remote.thread_name) != shared.remote(remote.thread_name)


def test_a_large_result_comes_whole_and_is_held_twice_at_most(shared: RemoteSandbox) -> None:
    """64 MB of bytes, and of text, arrive as they were."""
    size = 64_000_000
    data = shared.remote(remote.zeros, size)
    assert len(data) == size
    assert not any(data[:: 1 << 20])
    assert shared.remote(remote.long_text, size // 4) == "é" * (size // 4)


def test_large_arguments_arrive(shared: RemoteSandbox) -> None:
    """An argument of many frames arrives as it was, beside other calls."""
    data = os.urandom(1000) * 20_000
    future = in_background(shared.remote, remote.echo, data)
    assert still_works(shared)
    assert future.result(60) == data


def test_a_result_over_the_limit_is_that_calls_error(fresh: RemoteSandbox) -> None:
    """The worker says how large it was and what the limit is."""
    with pytest.raises(BadResult, match=r"400000035 bytes; the limit is 300000000 \(max_result"):
        fresh.remote(remote.zeros, 400_000_000)
    assert still_works(fresh)


# --- what is printed ---


def test_everything_that_prints_is_heard(fresh: RemoteSandbox, printed: bytearray) -> None:
    """Python, child processes and C code, on stdout and stderr: all of it is there when the call returns."""
    fresh.remote(remote.say_everywhere)
    lines = bytes(printed).split(b"\n")
    for line in (b"python out", b"python err", b"child out", b"child err", b"c out", b"raw \xff out"):
        assert line in lines


def test_output_comes_in_order_and_before_the_result(fresh: RemoteSandbox, printed: bytearray) -> None:
    """What a call printed is there when it returns, also without a newline."""
    for number in range(50):
        fresh.remote(remote.say, f"{number},", "")
        assert bytes(printed).endswith(b"%d," % number)
    assert bytes(printed) == b"".join(b"%d," % number for number in range(50))


def test_output_is_logged_line_by_line(fresh: RemoteSandbox, caplog: pytest.LogCaptureFixture) -> None:
    """The logger gets lines, with the instance and the phase on the record."""
    with caplog.at_level(logging.DEBUG, "agentix_runner.sandbox"):
        fresh.remote(remote.say, "one\ntwo")
        fresh.remote(remote.say, "thr", "")
        fresh.remote(remote.say, "ee \ud800" + "x" * 20_000)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:3] == ["one", "two", "three \\ud800" + "x" * 8180]
    assert sum(map(len, lines[2:])) == 20_012
    assert {(r.instance_id, r.phase) for r in caplog.records} == {("i-1", "agent")}  # type: ignore[attr-defined]


def test_output_is_capped_in_the_sandbox(fresh: RemoteSandbox, printed: bytearray) -> None:
    """Whoever prints too much is not stuck, and the output says that it was cut."""
    assert fresh.remote(remote.say_much, 50_000_000) == 50_000_000
    assert printed.endswith(b"\n[agentix: more than 2000000 bytes were printed; the rest is dropped]\n")
    assert len(printed) < 2_000_200
    assert still_works(fresh)


def test_a_flood_of_log_frames_is_drained_and_capped(fresh: RemoteSandbox, printed: bytearray) -> None:
    """A worker that keeps to no limit is read all the same, and no more than the limit of it is kept."""
    assert fresh.remote(remote.flood_logs, 200_000_000) == "done"
    assert printed.endswith(b"\n[agentix: cut here, at 2001024 bytes]\n")
    assert len(printed) < 2_001_200
    assert still_works(fresh)


def test_the_standard_descriptors_may_be_closed(fresh: RemoteSandbox) -> None:
    """A function that closes 0, 1 and 2 still returns, and so do those after it."""
    assert fresh.remote(remote.read_stdin) == b""
    assert fresh.remote(remote.close_standard) is None
    assert still_works(fresh)


def test_on_log_that_raises_breaks_nothing(
    provider: SandboxProvider, image: str, bundle: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, once."""

    def on_log(data: bytes) -> None:
        raise ValueError("full")

    with provider.session(SandboxConfig(image=image, bundle=bundle, on_log=on_log)) as sandbox:  # type: ignore[union-attr]
        for _ in range(3):
            sandbox.remote(remote.say, "x")
        assert still_works(sandbox)
    assert [record.getMessage() for record in caplog.records] == ["on_log failed; what the sandbox prints may be lost"]


# --- the end ---


def test_the_workers_exit_is_told_with_its_code(fresh: RemoteSandbox) -> None:
    """os._exit() in the function ends the sandbox; whoever waits learns the code, and so does whoever comes later."""
    other = in_background(fresh.remote, remote.sleep, 60)
    with pytest.raises(SandboxDied, match=r"code 3 while tests.support.wire_functions.exit_hard ran") as caught:
        fresh.remote(remote.exit_hard, 3)
    assert (caught.value.exit_code, caught.value.oom) == (3, False)
    assert isinstance(other.exception(60), SandboxDied)
    with pytest.raises(SandboxDied) as caught:
        fresh.remote(remote.add, 1)
    assert caught.value.exit_code == 3


def test_a_killed_worker_is_told_with_its_signal(fresh: RemoteSandbox) -> None:
    """kill -9 of the worker during a call is SandboxDied with exit code -9."""
    with pytest.raises(SandboxDied, match="killed by signal 9") as caught:
        fresh.remote(remote.kill_me, signal.SIGKILL)
    assert caught.value.exit_code == -9


def test_the_last_words_of_a_crash_are_not_lost(fresh: RemoteSandbox, printed: bytearray) -> None:
    """What was printed just before a crash is in the error and in the log."""
    with pytest.raises(SandboxDied) as caught:
        fresh.remote(remote.print_and_die)
    assert caught.value.exit_code == -11
    assert b"about to crash" in printed


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves it in one step")
def test_what_was_not_sent_when_the_worker_died_is_not_lost(fresh: RemoteSandbox, printed: bytearray) -> None:
    """Whatever the moment of the end: also what the worker had taken to send is in the log."""
    with pytest.raises(SandboxDied):
        fresh.remote(remote.die_while_sending)
    assert printed.count(b"about to crash\n") == 1


def test_a_limit_on_files_does_not_stop_the_log(fresh: RemoteSandbox, printed: bytearray) -> None:
    """Code that forbids itself to write files can still print."""
    assert fresh.remote(remote.limit_files) == "done"
    assert still_works(fresh)
    assert printed == b"not in a file\n"


def test_a_killed_guard_ends_the_sandbox(fresh: RemoteSandbox, provider: SandboxProvider) -> None:
    """Without its guard a sandbox is at its end, and whoever waits is told. In a container nobody can kill it so."""
    if isinstance(provider, DockerProvider):
        assert fresh.remote(remote.signal_guard, signal.SIGKILL) is None
        assert still_works(fresh)
        return
    with pytest.raises(SandboxDied) as caught:
        fresh.remote(remote.kill_guard, signal.SIGKILL)
    assert caught.value.exit_code == -9


def test_an_interrupt_in_the_sandbox_ends_nothing(fresh: RemoteSandbox) -> None:
    """SIGINT to the worker is survived, and programs started there get the usual disposition."""
    assert fresh.remote(remote.interrupt_me) == "still here"
    assert fresh.remote(remote.sigint_of_child) == "default_int_handler"


def test_a_fork_that_returns_gives_no_second_answer(fresh: RemoteSandbox) -> None:
    """Of a function that forks and returns twice, only the worker's own return counts."""
    assert [fresh.remote(remote.fork_and_return) for _ in range(3)] == ["the parent"] * 3
    assert still_works(fresh)


def test_kill_wakes_whoever_waits(fresh: RemoteSandbox) -> None:
    """kill() from another thread ends a call that never would, at once, and can be repeated."""
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(fresh.remote, remote.sleep, 300) for _ in range(3)]
        assert still_works(fresh)
        fresh.kill()
        for future in waiting:
            error = future.exception(30)
            assert isinstance(error, SandboxDied)
            assert str(error) == "the sandbox was killed while tests.support.wire_functions.sleep ran"
    fresh.kill()
    with pytest.raises(SandboxDied):
        fresh.remote(remote.add, 1)
    fresh.close()
    fresh.kill()


def test_kill_from_many_threads_at_once(fresh: RemoteSandbox) -> None:
    """kill() may race with calls, with itself and with close()."""
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(fresh.remote, remote.zeros, 5_000_000) for _ in range(4)]
        kills = [pool.submit(fresh.kill) for _ in range(4)]
        closes = [pool.submit(fresh.close) for _ in range(2)]
        for future in kills + closes:
            future.result(60)
        assert all(call.exception(60) is None or isinstance(call.exception(), SandboxDied) for call in calls)


def test_kill_wakes_a_writer(fresh: RemoteSandbox, tmp_path: Path) -> None:
    """A call whose arguments the stopped worker doesn't read is ended by kill() as well."""
    stopped = in_background(fresh.remote, remote.stop_me, str(tmp_path / "pid"))
    remote.wait_for(str(tmp_path / "pid"), 1)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(fresh.remote, remote.echo, bytes(50_000_000))
        time.sleep(0.1)
        assert not stuck.done()
        fresh.kill()
        assert isinstance(stuck.exception(30), SandboxDied)
    assert isinstance(stopped.exception(30), SandboxDied)


# --- an enemy in the sandbox ---


@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (remote.send_huge_length, (), "says it has 2147483648 bytes"),
        (remote.send_raw, (b"HTTP/1.1 200 OK\r\n\r\n",), "72 is no kind of frame"),
        (remote.send_raw, (b"\x02\x01\0\0\0\0\0\0\0\0",), "which only the host sends"),
        (remote.send_raw, (b"\x01\x01\0\0\0\0\0\0\0\x02{}",), "a second hello"),
        (remote.send_raw, (b"\x06\x01\0\0\0\0\0\0\0\x02ab",), "a credit frame of 2 bytes"),
    ],
)
def test_garbage_frames_end_the_sandbox(fresh: RemoteSandbox, function: Any, args: Any, text: str) -> None:
    """What can't be understood any more is ended, and the error says what came."""
    with pytest.raises(SandboxDied, match=text):
        fresh.remote(function, *args)


@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (remote.answer_nested, (100_000,), "nested deeper than 200"),
        (remote.answer_with, (b"NaN",), "NaN"),
        (remote.answer_with, (b'{"$":"os.system","v":"true"}',), "unknown tag 'os.system'"),
        (remote.answer_with_nothing, (), "a message of 0 bytes"),
    ],
)
def test_a_malformed_answer_is_that_calls_error_alone(
    fresh: RemoteSandbox, function: Any, args: Any, text: str
) -> None:
    """Other calls of the same sandbox go on."""
    other = in_background(fresh.remote, remote.add, 1, 1)
    with pytest.raises(BadResult, match=text):
        fresh.remote(function, *args)
    assert other.result(60) == 2
    assert still_works(fresh)


def test_a_second_answer_is_dropped(fresh: RemoteSandbox) -> None:
    """The first answer counts, and the second one disturbs nobody."""
    assert fresh.remote(remote.answer_twice) == "first"
    assert still_works(fresh)


def test_answers_that_nobody_asked_for_are_dropped(fresh: RemoteSandbox) -> None:
    """Any number of answers to unknown calls is read, and none of them kept."""
    assert fresh.remote(remote.answer_others, 1000, 20_000) == "mine"
    assert (fresh._calls, fresh._given_up, fresh._credit.keys() - {0}) == ({}, set(), set())
    assert still_works(fresh)


# --- environment and image ---


def test_the_environment_is_built_and_not_inherited(
    provider: SandboxProvider, image: str, bundle: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets of the host are not there; what the configuration gives is, and HOME and TMPDIR can be written."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LC_NAME", "C")
    with provider.session(SandboxConfig(image=image, bundle=bundle, env={"MINE": "ä=1"})) as sandbox:  # type: ignore[union-attr]
        env = sandbox.remote(remote.environment)
        assert "OPENAI_API_KEY" not in env
        assert env["MINE"] == "ä=1"
        for path in (env["HOME"], env.get("TMPDIR", "/tmp")):
            assert sandbox.remote(os.access, path, os.W_OK) is True
        if isinstance(provider, LocalProvider):
            assert [sandbox.remote(os.listdir, env[name]) for name in ("HOME", "TMPDIR")] == [[], []]


def test_tools_run_in_the_sandbox(shared: RemoteSandbox) -> None:
    """A shell command sees the sandbox's working directory."""
    result = shared.remote(subprocess.getoutput, "pwd -P")
    assert result == shared.remote(os.getcwd)
