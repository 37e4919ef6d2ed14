"""bash, run here in the test's own process, and in a sandbox."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
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
from agentix_runner.remote.tools import BashResult, bash, read_file, write_file

tools = importlib.import_module("agentix_runner.remote.tools.bash")

ROOT = Path(__file__).parents[2]
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
    """The tools load and work under -I -S."""
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); import agentix_runner.remote.tools as tools\n"
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
