"""`agentix-run` as a process: exit codes, signals, terminals, pipes that break."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HANG = 30
"""Seconds after which a process of a test is taken to hang."""

SCRIPT = """
    import sys
    from agentix_runner.cli.run import main
    if __name__ == "__main__":
        sys.exit(main(prog_name="agentix-run"))
"""

BENCH = """
    import contextlib, os, time
    from pathlib import Path
    from agentix_runner import AgentResult

    class Tasks:
        def __init__(self, n: int = 3):
            self.n = n

        def instances(self):
            return [{"id": f"task/{i}"} for i in range(self.n)]

        def image(self, instance):
            return ""

        def setup(self, sandbox, instance):
            return True

        def score(self, sandbox, instance, patch):
            return {"resolved": True}

    def nap(seconds):
        time.sleep(seconds)

    class Agent:
        def __init__(self, fail: str = "", hang: str = "", host_hang: str = ""):
            self.fail, self.hang, self.host_hang = fail, hang, host_hang

        def solve(self, sandbox, instance, *, model):
            name = instance["id"]
            os.write(1, b"agent writes\\n")
            if name == self.fail:
                raise ValueError("no luck")
            if name == self.hang:
                Path("hangs").touch()
                sandbox.remote(nap, 600)
            return AgentResult(patch="x")

    class Stuck:
        # A provider whose sandboxes take their time to go.
        class Box:
            def remote(self, fn, /, *args, **kwargs):
                return fn(*args, **kwargs)

        @contextlib.contextmanager
        def session(self, config):
            try:
                yield self.Box()
            finally:
                Path("closing").touch()
                time.sleep(600)
"""

ADAPTERS = ["--dataset", "bench:Tasks", "--agent", "bench:Agent"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module `bench`, and elsewhere the script that an installation makes."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "bench.py").write_text(textwrap.dedent(BENCH))
    (tmp_path / "agentix-run").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(folder)
    # Where the sandboxes' directories are made: empty again when all of them are gone.
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return folder


@contextmanager
def started(*args: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """The command, running; it is gone afterwards."""
    command = [sys.executable, str(Path("..", "agentix-run").resolve()), *ADAPTERS, *args]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    with subprocess.Popen(command, text=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def run(*args: str, **how: Any) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command."""
    with started(*args, **how) as process:
        out, err = process.communicate(timeout=HANG)
        return process.returncode, out, err


def wait_for(path: str) -> None:
    until = time.monotonic() + HANG
    while not Path(path).exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.01)


def read_all(fd: int, until: float = HANG) -> str:
    """What comes out of a terminal or a pipe until its other end is closed."""
    out = b""
    while select.select([fd], [], [], until)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:  # how a terminal says that nobody has it open any more
            break
        if not data:
            break
        out += data
    return out.decode()


def on_terminal(stream: str, *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, what the terminal got) of the command, `stream` being a terminal."""
    ours, theirs = pty.openpty()
    try:
        with started(*args, **{stream: theirs}) as process:
            os.close(theirs)
            shown = read_all(ours)
            out, _ = process.communicate(timeout=HANG)
            return process.returncode, out, shown
    finally:
        os.close(ours)


def left_behind() -> list[str]:
    """The sandboxes' directories that are still there."""
    return [str(path) for path in Path(os.environ["TMPDIR"]).iterdir() if path.is_dir() and list(path.iterdir())]


class TestExitCodes:
    """What a shell sees."""

    def test_good(self) -> None:
        """A run on the default provider that goes well is 0; the working directory was importable."""
        code, out, err = run("--out", "out")
        assert (code, err) == (0, "agent writes\n" * 3)
        assert out.startswith("3 rollouts\n  resolved  3  100.0%\n")
        assert left_behind() == []

    def test_error(self) -> None:
        """A rollout with an error makes it 1, and is told once, whatever the adapters do to logging."""
        with open("bench.py", "a") as bench:
            bench.write("import logging\nlogging.basicConfig()\n")
        code, out, err = run("--out", "out", "--agent-arg", "fail=task/1")
        assert code == 1
        assert err.count("task/1: ValueError: no luck\n") == 1
        assert "  error     1" in out

    def test_usage(self) -> None:
        """What can't be run is 2, in one line, and nothing is left."""
        code, out, err = run("--agent", "bench:Agnet")
        assert (code, out) == (2, "")
        assert err == "Error: --agent bench:Agnet: bench has no 'Agnet'; close: Agent\n"
        assert set(os.listdir()) <= {"__pycache__", "bench.py"}

    def test_run_directory_in_use(self) -> None:
        """A run directory that another run is using is refused."""
        with started("--out", "out", "--agent-arg", "hang=task/0"):
            wait_for("hangs")
            code, out, err = run("--out", "out", "--agent-arg", "hang=task/0")
        assert (code, out) == (2, "")
        assert err.startswith("Error: out is in use by ")
        assert err.count("\n") == 1

    def test_file_descriptors(self) -> None:
        """More event loops than file descriptors allow are refused, with what to do."""
        Path("later.py").write_text("class Agent:\n    async def solve(self, sandbox, instance, *, model): ...\n")
        command = [*ADAPTERS[:2], "--agent", "later:Agent", "--dataset-arg", "n=500", "--n-concurrent", "500"]
        script = f'ulimit -n 256; exec "{sys.executable}" ../agentix-run {" ".join(command)}'
        done = subprocess.run(["sh", "-c", script], timeout=HANG, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: n_concurrent=500 with async adapters needs ")
        assert done.stderr.count("\n") == 1


class TestSignals:
    """Ctrl-C and its like."""

    @pytest.mark.parametrize(
        ("signum", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
    )
    def test_ends(self, signum: signal.Signals, expected: int) -> None:
        """The run is cleaned up, what has finished is kept, and running the command again does the rest."""
        args = ("--out", "out", "--n-concurrent", "1", "--agent-arg", "hang=task/1")
        with started(*args) as process:
            wait_for("hangs")
            process.send_signal(signum)
            out, err = process.communicate(timeout=HANG)
        assert process.returncode == expected
        assert "Traceback" not in err
        assert err.replace("agent writes\n", "") == (
            f"Ended by {signum.name}: 1 rollout finished and kept; the rest: the same command with --out out\n"
        )
        assert out == ""
        assert left_behind() == []
        with open("out/rollouts.jsonl") as journal:
            assert [json.loads(line)["instance_id"] for line in journal] == ["task/0"]

        os.remove("hangs")
        Path("bench.py").write_text(Path("bench.py").read_text().replace("sandbox.remote(nap, 600)", "pass"))
        code, out, err = run(*args)
        assert code == 0
        assert err.count("agent writes\n") == 2

    def test_while_loading(self) -> None:
        """Ended before anything ran, it says so."""
        Path("slow.py").write_text("import time, pathlib\npathlib.Path('loading').touch()\ntime.sleep(600)\n")
        with started("--agent", "slow:agent") as process:
            wait_for("loading")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=HANG)
        assert (process.returncode, out, err) == (130, "", "Ended by SIGINT: nothing was started\n")

    @pytest.mark.parametrize(("second", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_second_one(self, second: signal.Signals, expected: int) -> None:
        """A second one leaves at once, whatever the cleaning up waits for."""
        with started("--provider", "bench:Stuck", "--timeout-teardown", "none") as process:
            wait_for("closing")
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.communicate(timeout=0.3)
            process.send_signal(second)
            process.communicate(timeout=5)
        assert process.returncode == expected

    def test_nohup(self) -> None:
        """A SIGHUP that is ignored from outside stays ignored."""
        command = ["--out", "out", "--agent-arg", "hang=task/1", "--timeout-agent", "1"]
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with started(*command) as process:
                signal.signal(signal.SIGHUP, before)
                wait_for("hangs")
                process.send_signal(signal.SIGHUP)
                process.communicate(timeout=HANG)
        finally:
            signal.signal(signal.SIGHUP, before)
        assert process.returncode == 1


class TestPipes:
    """Readers that leave, disks that are full."""

    @pytest.mark.parametrize("args", [[], ["--json"]])
    @pytest.mark.parametrize(("fail", "expected"), [("", 0), ("task/1", 1)])
    def test_reader_that_left(self, args: list[str], fail: str, expected: int) -> None:
        """With nobody left to read stdout, the exit code is still that of the run, and no traceback is shown."""
        with started("--out", "out", "--agent-arg", f"fail={fail}", *args) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            err = process.stderr.read()
            assert process.wait(HANG) == expected
        lines = [line for line in err.splitlines() if line != "agent writes" and " ERROR task/1" not in line]
        assert lines == []

    def test_nobody_reads_stderr(self) -> None:
        """With nobody left to read stderr, the run goes on to its end."""
        Path("bench.py").write_text(Path("bench.py").read_text().replace("os.write(1, ", "len("))
        with started("-v", "--out", "out", "--agent-arg", "fail=task/1") as process:
            assert process.stderr is not None
            process.stderr.close()
            assert process.stdout is not None
            out = process.stdout.read()
            assert process.wait(HANG) == 1
        assert "  resolved  2  " in out

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
    @pytest.mark.parametrize("args", [[], ["--json"]])
    def test_full(self, args: list[str]) -> None:
        """A result that can't be written to stdout is 74, in one line."""
        with open("/dev/full", "w") as full:
            code, _, err = run("--out", "out", *args, stdout=full)
        assert code == 74
        assert err == "agent writes\n" * 3 + "Error: the result can't be written to stdout: No space left on device\n"

    def test_closed(self) -> None:
        """stdout and stderr may be closed from the start."""
        script = Path("..", "agentix-run").resolve()
        command = f'"{sys.executable}" "{script}" {" ".join(ADAPTERS)} --out out >&- 2>&-'
        code = subprocess.run(["sh", "-c", command], timeout=HANG, check=False).returncode
        assert code == 0
        assert json.loads(Path("out/summary.json").read_text())["resolved"] == 3

    def test_json_alone(self) -> None:
        """With --json nothing else is on stdout, not even what adapters write to its descriptor."""
        code, out, err = run("--out", "out", "--json")
        assert code == 0
        assert json.loads(out) == json.loads(Path("out/summary.json").read_text())
        assert err == "agent writes\n" * 3


class TestTerminal:
    """What somebody who watches sees."""

    def test_progress(self) -> None:
        """On a terminal one line is drawn over and over, errors go above it, and nothing of it is left at the end."""
        Path("bench.py").write_text(Path("bench.py").read_text().replace("os.write(1, ", "len("))
        code, out, shown = on_terminal("stderr", "--out", "out", "--agent-arg", "fail=task/1")
        assert code == 1
        assert "  error     1" in out
        assert "\x1b" not in out
        draws = shown.split("\r")
        assert draws[1] == "0/3 done, 0 resolved, 0 errors\x1b[J"
        assert shown.rpartition("\n")[2].rpartition("\r")[2].removesuffix("\x1b[J") == ""
        assert len(re.findall(r"\r\x1b\[J\d\d:\d\d:\d\d ERROR task/1: ValueError: no luck\r\n", shown)) == 1

    def test_quiet(self) -> None:
        """With -q there is no progress on a terminal either."""
        Path("bench.py").write_text(Path("bench.py").read_text().replace("os.write(1, ", "len("))
        code, _, shown = on_terminal("stderr", "-q", "--out", "out", "--agent-arg", "fail=task/1")
        assert code == 1
        assert shown[8:] == " ERROR task/1: ValueError: no luck\r\n"

    @pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
    def test_color(self, monkeypatch: pytest.MonkeyPatch, no_color: str, colored: bool) -> None:
        """The table has colours on a terminal, unless NO_COLOR is set."""
        monkeypatch.setenv("NO_COLOR", no_color)
        code, _, shown = on_terminal("stdout", "--out", "out")
        assert code == 0
        assert ("\x1b[32mresolved\x1b[0m" in shown) is colored
        assert ("\x1b" in shown) is colored


def test_a_removed_working_directory_is_no_bug_of_ours(tmp_path: Path) -> None:
    """Where nothing can be imported from, an adapter's path is told to be wrong as ever."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = Path(sys.executable).with_name("agentix-run")
    script = f"cd {gone} && rmdir {gone} && {command} --dataset nope:x --agent nope:y"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "nope" in done.stderr
    assert "Traceback" not in done.stderr
