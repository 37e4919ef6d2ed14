"""The sandbox's tools, run here in the test's own process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path

import cattrs
import psutil
import pytest

from agentix_runner import LocalProvider, SandboxConfig
from agentix_runner.remote import tools
from agentix_runner.remote.tools import BashResult, bash, read_file, write_file

HANG = 20.0  # seconds after which a test counts as hung
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="found through /proc")


def eventually(true: Callable[[], object]) -> bool:
    """Whether `true()` comes true before the hang limit."""
    end = time.monotonic() + HANG
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def gone(pid: int) -> bool:
    """Whether no process has that number, or only a zombie that is not ours to reap."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid()
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """The process numbers that a command wrote, one a line, to the file `pids` in `tmp_path`. Killed at the end."""

    def read() -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return [int(line) for line in (tmp_path / "pids").read_text().split()]
        return []

    yield read
    for pid in read():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes bash's clock jump ahead by 1000 s once something is true: a timeout at just the right moment."""

    class Clock:
        def __init__(self, true: Callable[[], object]) -> None:
            self.true = true

        def monotonic(self) -> float:
            return time.monotonic() + (1000 if self.true() else 0)

    return lambda true: monkeypatch.setattr(tools, "time", Clock(true))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """No test leaves a child process, a zombie or a thread."""
    yield
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("bash-")])
    assert [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE] == []


# bash: what comes back


def test_output_and_exit_code() -> None:
    """Both streams and the exit code come back, each on its own."""
    result = bash("echo out; echo err >&2; exit 3")
    assert result == BashResult(exit_code=3, stdout="out\n", stderr="err\n", timed_out=False, truncated=False)


def test_result_is_frozen() -> None:
    """A result can't be changed by mistake."""
    with pytest.raises(FrozenInstanceError):
        bash("true").exit_code = 1  # type: ignore[misc]


def test_result_is_rebuilt_from_the_annotation() -> None:
    """The host can rebuild the result from bash's own return annotation."""
    result = bash("printf '\\xff'")
    fields = {name: getattr(result, name) for name in ("exit_code", "stdout", "stderr", "timed_out", "truncated")}
    assert cattrs.structure(fields, typing.get_type_hints(bash)["return"]) == result


@pytest.mark.parametrize(
    ("command", "code"), [("kill -9 $$", 137), ("kill -TERM $$; sleep 9", 143), ("sh -c 'kill -9 $$'; exit $?", 137)]
)
def test_signal_is_128_plus_its_number(command: str, code: int) -> None:
    """A shell that dies of a signal gives the same code as one that reports a child's."""
    assert bash(command).exit_code == code


def test_missing_command_is_127() -> None:
    """A command that isn't there is the shell's own 127, with its message."""
    result = bash("no-such-command-here")
    assert result.exit_code == 127
    assert "no-such-command-here" in result.stderr


def test_bytes_that_are_not_utf8_survive() -> None:
    """Any byte comes back: UTF-8 as text, the rest with surrogateescape."""
    result = bash("printf '\\303\\251\\377\\000\\r\\n'")
    assert result.stdout == "é\udcff\0\r\n"
    assert result.stdout.encode("utf-8", "surrogateescape") == b"\xc3\xa9\xff\x00\r\n"


def test_command_with_surrogates_is_passed_as_bytes() -> None:
    """What came out of one command can be put into the next."""
    assert bash("printf %s '\udcff' | od -An -tx1").stdout.split() == ["ff"]


def test_stdin_is_empty() -> None:
    """A command that reads gets an end of file at once, and nothing of the caller's input."""
    code = "from agentix_runner.remote.tools import bash; print(bash('cat; echo end').stdout)"
    done = subprocess.run([sys.executable, "-c", code], input="frames", capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("end\n\n", "")


def test_cwd_and_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in cwd, with env added to the current environment."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    result = bash("pwd -P; echo $KEPT $CHANGED $NEW", cwd=str(tmp_path), env={"CHANGED": "2", "NEW": "é 3"})
    assert result.stdout == f"{tmp_path.resolve()}\n1 2 é 3\n"
    assert "NEW" not in os.environ


def test_signals_are_at_their_defaults() -> None:
    """Python's ignored SIGPIPE is not handed on: `yes | head` ends as in a terminal."""
    assert bash("yes | head -n 1; echo ${PIPESTATUS[0]}").stdout == "y\n141\n"


def test_own_session() -> None:
    """A command that kills its whole group doesn't reach the caller."""
    assert bash("kill -9 0").exit_code == 137


# bash: the shell


def folder_with(tmp_path: Path, *programs: str) -> str:
    """A folder that is all of a PATH, holding links to just those programs."""
    for name in programs:
        (tmp_path / name).symlink_to(next(f"{d}/{name}" for d in ("/bin", "/usr/bin") if os.path.exists(f"{d}/{name}")))
    return str(tmp_path)


def test_bash_where_there_is_one() -> None:
    """The shell is bash, arrays and all, and not a login shell."""
    assert bash("a=(1 2); echo ${#a[@]}; shopt -q login_shell || echo plain").stdout == "2\nplain\n"


def test_sh_where_there_is_no_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image with nothing but sh works."""
    which = tools.shutil.which
    monkeypatch.setattr(tools.shutil, "which", lambda name, **k: None if name == "bash" else which(name, **k))
    assert bash("echo $0 $((1 + 1))").stdout.split()[0].endswith("/sh")
    assert bash("exit 4").exit_code == 4


def test_shell_that_is_not_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH without the shell's folder is no obstacle."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bash("echo here").stdout == "here\n"


def test_no_shell_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bash and sh the error says so and names the remedy."""
    monkeypatch.setattr(tools.shutil, "which", lambda name, **_: None)
    with pytest.raises(FileNotFoundError, match=r"no bash and no sh .* use an image that has a shell"):
        bash("true")


# bash: bad arguments


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeout_must_be_above_zero(timeout: float) -> None:
    """A timeout that is not above 0 is refused before anything starts."""
    with pytest.raises(ValueError, match=r"timeout is .*: it must be above 0 seconds"):
        bash("true", timeout=timeout)


def test_infinite_timeout_is_no_limit() -> None:
    """An infinite timeout means none."""
    assert bash("exec >&- 2>&-; sleep 0.1", timeout=float("inf")).exit_code == 0


def test_negative_max_output() -> None:
    """A negative max_output is refused."""
    with pytest.raises(ValueError, match="max_output is -1: it must be 0 bytes or more"):
        bash("true", max_output=-1)


def test_command_that_is_not_text() -> None:
    """A list instead of a command is refused by name."""
    with pytest.raises(TypeError, match="command is list: give the text of a shell command"):
        bash(["ls"])  # type: ignore[arg-type]


def test_env_that_is_not_text() -> None:
    """A number in env is refused by name."""
    with pytest.raises(TypeError, match=r"env\['N'\] is int: names and values must be str"):
        bash("true", env={"N": 1})  # type: ignore[dict-item]


def test_missing_cwd(tmp_path: Path) -> None:
    """A cwd that isn't there is named."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        bash("true", cwd=str(tmp_path / "nowhere"))


def test_command_that_is_too_long() -> None:
    """A command longer than the kernel takes says to write a file."""
    with pytest.raises(ValueError, match="too long to start: use write_file"):
        bash("true " + "x" * 50_000_000)


# bash: limits


def test_output_keeps_its_ends() -> None:
    """Of an output over max_output the beginning and the end are kept, and the gap is counted."""
    result = bash("seq 1 100000", max_output=20)
    assert result.truncated
    assert result.stdout == "1\n2\n3\n4\n5\n\n[... 588875 bytes left out ...]\n99\n100000\n"


def test_output_of_just_max_output_is_whole() -> None:
    """Exactly max_output bytes are not truncated; one more are."""
    assert bash("printf 0123456789", max_output=10).stdout == "0123456789"
    assert not bash("printf 0123456789 >&2; printf 0123456789", max_output=10).truncated
    result = bash("printf 0123456789a >&2", max_output=10)
    assert (result.stderr, result.truncated) == ("01234\n[... 1 bytes left out ...]\n6789a", True)


def test_max_output_zero() -> None:
    """With max_output=0 nothing is kept, and silence is not called truncated."""
    assert bash("echo x", max_output=0).stdout == "\n[... 2 bytes left out ...]\n"
    assert not bash("true", max_output=0).truncated


def test_output_is_drained_in_little_memory() -> None:
    """A command that writes without end to both streams is read on, within a few MiB."""
    code = (
        "import resource; from agentix_runner.remote.tools import bash\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "result = bash('head -c 200000000 /dev/zero; head -c 200000000 /dev/zero >&2; echo end', max_output=1000)\n"
        "assert result.stdout.endswith('end\\n') and result.truncated, result\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(grown * (1 if __import__('sys').platform == 'darwin' else 1024))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30_000_000


def test_timeout_keeps_what_was_written(tmp_path: Path, clock: Callable[..., None]) -> None:
    """At the timeout the command is killed; what it wrote until then comes back."""
    clock((tmp_path / "ready").exists)
    result = bash("echo before; touch ready; sleep 60; echo after", cwd=str(tmp_path), timeout=500)
    assert result == BashResult(exit_code=137, stdout="before\n", stderr="", timed_out=True, truncated=False)


def test_timeout_in_real_time() -> None:
    """The timeout is in seconds of the real clock."""
    start = time.monotonic()
    assert bash("sleep 60", timeout=0.1).timed_out
    assert 0.1 <= time.monotonic() - start < HANG


def test_timeout_kills_the_group(tmp_path: Path, pids: Callable[[], list[int]], clock: Callable[..., None]) -> None:
    """Children of the command die with it, also those that ignore signals or have lost their parent."""
    command = (
        "trap '' TERM INT HUP; sleep 60 & echo $! >> pids\n"
        "(env -i PATH=$PATH sh -c 'echo $$ >> pids; exec sleep 60' &)\n"
        "sh -c 'echo $$ >> pids; sleep 60; :'"
    )
    clock(lambda: len(pids()) == 3)
    assert bash(command, cwd=str(tmp_path), timeout=500).timed_out
    assert eventually(lambda: all(gone(pid) for pid in pids()))


@linux_only
@pytest.mark.parametrize(
    "escape",
    [
        "setsid sh -c 'echo $$ >> pids; sleep 60; :' &",
        "(setsid setsid sh -c 'echo $$ >> pids; exec sleep 60' &)",
        "env -i PATH=$PATH setsid sh -c 'echo $$ >> pids; exec sleep 60' &",
    ],
    ids=["session", "daemon", "no environment"],
)
def test_timeout_kills_what_left_the_group(
    tmp_path: Path, pids: Callable[[], list[int]], clock: Callable[..., None], escape: str
) -> None:
    """A daemon is found by its environment, a child by its parent, whatever group they went to."""
    clock(pids)
    assert bash(f"{escape}\nexec sleep 60", cwd=str(tmp_path), timeout=500).timed_out
    assert eventually(lambda: gone(pids()[0]))


def test_timeout_spares_another_call(tmp_path: Path) -> None:
    """One call's timeout kills nothing that another one started."""
    with ThreadPoolExecutor() as pool:
        waiting = "touch up; while [ ! -e go ]; do sleep 0.01; done; echo alive"
        other = pool.submit(bash, waiting, cwd=str(tmp_path), timeout=HANG)
        assert eventually((tmp_path / "up").exists)
        assert bash("sleep 60", timeout=0.1).timed_out
        (tmp_path / "go").touch()
        assert other.result(HANG * 2).stdout == "alive\n"


@pytest.mark.parametrize("background", ["{} &", "({} &)", "(setsid {} &)"], ids=["child", "orphan", "daemon"])
def test_background_child_delays_nothing(tmp_path: Path, pids: Callable[[], list[int]], background: str) -> None:
    """A child that holds the pipes open doesn't keep the result back, and lives on."""
    start = time.monotonic()
    child = background.format("sh -c 'echo $$ >> pids; exec sleep 60'")
    result = bash(f"echo first; {child}\necho last", cwd=str(tmp_path), timeout=50)
    assert time.monotonic() - start < HANG
    assert (result.exit_code, result.stdout, result.timed_out) == (0, "first\nlast\n", False)
    assert eventually(pids)
    assert not gone(pids()[0])


def test_background_child_may_go_on_writing(tmp_path: Path, pids: Callable[[], list[int]]) -> None:
    """A server in the background outlives its call, and its later output doesn't end it."""
    server = "while [ ! -e stop ]; do echo line; sleep 0.02; done; seq 1 100000 && touch done"
    result = bash(f"({server}) & echo $! >> pids", cwd=str(tmp_path))
    assert result.exit_code == 0
    assert not gone(pids()[0])
    (tmp_path / "stop").touch()
    assert eventually((tmp_path / "done").exists)


def test_output_right_after_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process substitution writes within the grace after the shell's end is not lost."""
    monkeypatch.setattr(tools, "_GRACE", HANG)
    assert bash("echo > >(sleep 0.05; echo late)").stdout == "late\n"


def test_closed_output_is_waited_for(tmp_path: Path) -> None:
    """A command that closes its output is waited for all the same."""
    assert bash("exec >&- 2>&-; sleep 0.1; touch done; exit 5", cwd=str(tmp_path)).exit_code == 5
    assert (tmp_path / "done").exists()


def test_exception_in_the_caller_kills_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the call early (Ctrl-C, say) ends and reaps the command too."""

    def interrupted(self: object, deadline: float | None) -> bool:
        assert eventually((tmp_path / "pids").exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(tools._Output, "collect_until_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bash("echo $$ > pids.tmp; mv pids.tmp pids; exec sleep 60", cwd=str(tmp_path))
    assert gone(int((tmp_path / "pids").read_text()))


def test_calls_overlap() -> None:
    """Many calls run at once in threads and never mix; no descriptor is left open."""
    bash("true")
    gc.collect()  # what other tests have left
    before = psutil.Process().num_fds()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: bash(f"echo {n}; sleep 0.02; echo {n} >&2; exit {n}"), range(100)))
    assert [(r.exit_code, r.stdout, r.stderr) for r in results] == [(n, f"{n}\n", f"{n}\n") for n in range(100)]
    assert psutil.Process().num_fds() <= before


def test_runs_isolated_with_the_standard_library_alone(tmp_path: Path) -> None:
    """The module loads and works as a lone file under -I -S."""
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tools', {tools.__file__!r})\n"
        "tools = sys.modules['tools'] = importlib.util.module_from_spec(spec); spec.loader.exec_module(tools)\n"
        "tools.write_file('d/f', 'text'); print(tools.bash('cat d/f').stdout, tools.read_file('d/f'))"
    )
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.stdout, done.stderr) == ("text b'text'\n", "")


def test_called_in_a_sandbox() -> None:
    """Through the wire the results are whole, of their own type, and overlapping calls don't mix."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox, ThreadPoolExecutor(8) as pool:
        sandbox.remote(write_file, "d/f", "é\udcff")
        assert sandbox.remote(read_file, "d/f") == b"\xc3\xa9\xff"
        assert sandbox.remote(bash, "cat f", cwd="d") == BashResult(0, "é\udcff", "", timed_out=False, truncated=False)
        results = list(pool.map(lambda n: sandbox.remote(bash, f"sleep 0.05; echo {n}; exit {n}"), range(40)))
        assert [(r.exit_code, r.stdout) for r in results] == [(n, f"{n}\n") for n in range(40)]
        assert sandbox.remote(bash, "kill -INT $$; sleep 60", timeout=30).exit_code == 130


def names_below() -> list[str]:
    """The names of this process's descendants, zombies too."""
    names = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(child.name())
    return names


@linux_only
def test_timeout_in_a_sandbox() -> None:
    """In a sandbox too a timeout takes all with it, and leaves no zombie."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        assert sandbox.remote(bash, "(setsid sleep 600 &) ; sleep 600", timeout=0.3).timed_out
        assert eventually(lambda: "sleep" not in names_below())


# read_file


def test_read_bytes(tmp_path: Path) -> None:
    """A file comes back as its bytes, an empty one as none."""
    data = bytes(range(256)) * 10_000
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "empty").touch()
    assert read_file(str(tmp_path / "f")) == data
    assert read_file(str(tmp_path / "empty")) == b""


def test_read_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts at the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    assert read_file("f") == b"x"


def test_read_up_to_max_bytes(tmp_path: Path) -> None:
    """A file of max_bytes is read; one byte more is refused, with the limit and the remedy."""
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_file(str(path), max_bytes=5) == b"12345"
    with pytest.raises(OSError, match=r"larger than max_bytes \(4\): raise it, or read a part.*/f'"):
        read_file(str(path), max_bytes=4)


@linux_only
def test_read_file_whose_size_is_unknown() -> None:
    """Files of /proc, whose size is 0, are read to their end, and held to max_bytes too."""
    assert b"Name:" in read_file("/proc/self/status")
    with pytest.raises(OSError, match="larger than max_bytes"):
        read_file("/proc/self/status", max_bytes=10)


def test_read_missing(tmp_path: Path) -> None:
    """A file that isn't there is named."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_file(str(tmp_path / "nowhere"))


def test_read_directory(tmp_path: Path) -> None:
    """A directory is refused as one."""
    gc.collect()  # what other tests have left
    before = psutil.Process().num_fds()
    with pytest.raises(IsADirectoryError, match="a directory, not a file"):
        read_file(str(tmp_path))
    assert psutil.Process().num_fds() <= before


def special_file(kind: str) -> str:
    """A file that is not regular, in the working directory."""
    if kind == "device":
        return "/dev/zero"
    if kind == "fifo":
        os.mkfifo("f")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("f")
    return "f"


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_special_files_never_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A FIFO, socket or device is neither read nor written."""
    monkeypatch.chdir(tmp_path)
    path = special_file(kind)
    with pytest.raises(OSError, match="a FIFO, socket or device, not a regular file"):
        read_file(path)
    with pytest.raises(OSError, match="a FIFO, socket or device, not a regular file"):
        write_file(path, b"x")


# write_file


def test_write_makes_directories(tmp_path: Path) -> None:
    """Missing directories above the file are made; nothing else is left beside it."""
    write_file(str(tmp_path / "a/b/f"), b"\x00\xff")
    assert (tmp_path / "a/b/f").read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path / "a/b") == ["f"]


def test_write_text(tmp_path: Path) -> None:
    """Text is UTF-8, with its line ends kept and surrogateescape undone."""
    write_file(str(tmp_path / "f"), "é\r\n\udcff")
    assert (tmp_path / "f").read_bytes() == b"\xc3\xa9\r\n\xff"


def test_write_replaces(tmp_path: Path) -> None:
    """A longer file that was there is replaced whole."""
    (tmp_path / "f").write_bytes(b"old and long")
    write_file(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


def permissions(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_write_permissions(tmp_path: Path) -> None:
    """A new file gets what the umask gives, an old one keeps its own, and mode sets them exactly."""
    path = tmp_path / "f"
    (tmp_path / "reference").touch()
    write_file(str(path), "1")
    assert permissions(path) == permissions(tmp_path / "reference")
    path.chmod(0o751)
    write_file(str(path), "2")
    assert permissions(path) == 0o751
    write_file(str(path), "3", mode=0o666)
    assert permissions(path) == 0o666
    write_file(str(tmp_path / "script"), "#!/bin/sh\necho ran\n", mode=0o755)
    assert bash("./script", cwd=str(tmp_path)).stdout == "ran\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_write_keeps_the_owner(tmp_path: Path) -> None:
    """A file that belongs to somebody else stays theirs."""
    (tmp_path / "f").touch()
    os.chown(tmp_path / "f", 12345, 12346)
    write_file(str(tmp_path / "f"), b"x")
    assert ((tmp_path / "f").stat().st_uid, (tmp_path / "f").stat().st_gid) == (12345, 12346)


def test_write_is_atomic(tmp_path: Path) -> None:
    """A reader that overlaps with writers never sees half a file."""
    path = str(tmp_path / "f")
    write_file(path, b"0" * 500_000)
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write_file, path, bytes([48 + n]) * 500_000) for n in range(10) for _ in range(5)]
        while not all(writer.done() for writer in writers):
            data = read_file(path)
            assert (len(data), len(set(data))) == (500_000, 1)
    assert [writer.result() for writer in writers] == [None] * 50
    assert os.listdir(tmp_path) == ["f"]


def test_write_through_a_link(tmp_path: Path) -> None:
    """A symbolic link stays one, and what it points to is written, also where that isn't there yet."""
    (tmp_path / "link").symlink_to("there/real")
    for data in (b"1", b"2"):
        write_file(str(tmp_path / "link"), data)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there/real").read_bytes() == data


def test_write_where_renaming_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can't be replaced, such as a mount of its own, is written in place."""

    def busy(source: str, target: str) -> None:
        raise OSError(16, "Device or resource busy", source)

    path = tmp_path / "hosts"
    path.write_bytes(b"old and long")
    inode = path.stat().st_ino
    monkeypatch.setattr(tools.os, "replace", busy)
    write_file(str(path), b"new", mode=0o640)
    assert (path.read_bytes(), path.stat().st_ino, permissions(path)) == (b"new", inode, 0o640)
    with pytest.raises(OSError, match="busy"):
        write_file(str(tmp_path / "other"), b"new")
    assert os.listdir(tmp_path) == ["hosts"]


def test_write_longest_name(tmp_path: Path) -> None:
    """A name as long as a file system takes is no trouble."""
    write_file(str(tmp_path / ("n" * 255)), b"x")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"x"


def test_write_onto_a_directory(tmp_path: Path) -> None:
    """A directory, or a path that names one, is refused."""
    for path in (str(tmp_path), f"{tmp_path}/new/", ""):
        with pytest.raises(IsADirectoryError):
            write_file(path, b"x")
    assert os.listdir(tmp_path) == []


def test_write_below_a_file(tmp_path: Path) -> None:
    """A file where a directory must be is named."""
    (tmp_path / "f").touch()
    with pytest.raises((NotADirectoryError, FileExistsError), match="/f"):
        write_file(str(tmp_path / "f/g"), b"x")


def test_write_what_is_no_data(tmp_path: Path) -> None:
    """Anything but bytes and text is refused, and nothing is made."""
    with pytest.raises(TypeError, match="data is dict: give bytes or str"):
        write_file(str(tmp_path / "f"), {})  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
