"""How a run is going, on a terminal, in a log, in a notebook."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from agentix_runner.errors import BadArgument
from agentix_runner.records import NOT_RUN, Rollout
from agentix_runner.report.counts import Counts
from agentix_runner.report.progress import LogProgress, NotebookProgress, TerminalProgress, make_progress


class Clock:
    """A clock that stands still unless told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal's stream, as far as what was written to it."""

    def isatty(self) -> bool:
        return True


class Shell:
    """IPython, with a kernel or in a terminal."""

    def __init__(self, *attributes: str) -> None:
        for name in attributes:
            setattr(self, name, object())

    def get_ipython(self) -> Shell:
        return self


def good(name: str, attempt: int = 0) -> Rollout:
    return Rollout(name, score={"resolved": True}, attempt=attempt)


def bad(name: str, error: str = "ValueError: no") -> Rollout:
    return Rollout(name, error=error)


def reached(rollout: Rollout, *phases: str) -> Rollout:
    rollout.phases = [(phase, 0.0, 1.0) for phase in phases]
    return rollout


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="agentix_runner"):
        yield caplog


class TestCounts:
    """The numbers."""

    def test_line(self) -> None:
        """It counts what is done, resolved and failed, who is in which phase, and the time left at this pace."""
        clock = Clock()
        counts = Counts(clock)
        counts.start(10, [good("old")])
        assert counts.parts() == ["1/10 done", "1 resolved", "0 errors"]
        for name, phase in [("a", "setup"), ("b", "setup"), ("a", "agent"), ("c", "setup"), ("a", "score")]:
            counts.enter(name, phase)
        assert counts.parts() == ["1/10 done", "1 resolved", "0 errors", "setup 2 score 1"]
        clock.now = 30.0
        counts.finish(good("a"))
        counts.finish(reached(bad("b"), "session", "setup", "teardown"))
        assert counts.parts() == ["3/10 done", "2 resolved", "1 error", "setup 1", "1m45s left"]

    def test_everything_done(self) -> None:
        """Nothing is left at the end."""
        counts = Counts(Clock())
        counts.start(1, [])
        counts.finish(good("a"))
        assert counts.parts() == ["1/1 done", "1 resolved", "0 errors"]

    def test_attempts_that_overlap(self) -> None:
        """Attempts at one instance may be in different phases, and each leaves its own."""
        counts = Counts(Clock())
        counts.start(3, [])
        for phase in ("setup", "setup", "agent", "setup", "score"):
            counts.enter("a", phase)
        assert counts.parts()[-1] == "setup 2 score 1"
        counts.enter("a", "agent")
        counts.finish(reached(Rollout("a", error="x"), "session", "setup", "agent"))
        assert counts.parts()[3] == "setup 1 score 1"
        counts.finish(reached(good("a"), "session", "setup", "agent", "teardown", "session", "score"))
        assert counts.parts()[3] == "setup 1"

    def test_result_without_events(self) -> None:
        """A rollout that ended before any phase of its own counts all the same."""
        counts = Counts(Clock())
        counts.start(2, [])
        counts.finish(bad("a"))
        assert counts.parts()[:3] == ["1/2 done", "0 resolved", "1 error"]


class TestLog:
    """Where stderr is no terminal."""

    def test_a_line_every_30_seconds(self, logged: pytest.LogCaptureFixture) -> None:
        """There is one line each 30 s, whatever is told in between."""
        clock = Clock()
        progress = LogProgress(clock=clock)
        progress.start(total=100, finished=[])
        for clock.now in range(100):
            progress.event(str(clock.now), "setup")
            progress.result(good(str(clock.now)))
            progress.tick()
        progress.close()
        assert [r.getMessage() for r in logged.records] == [
            "30/100 done, 30 resolved, 0 errors, setup 1, 1m10s left",
            "60/100 done, 60 resolved, 0 errors, setup 1, 40s left",
            "90/100 done, 90 resolved, 0 errors, setup 1, 10s left",
        ]

    def test_phases_when_everything_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """At the level of debugging each phase that an instance enters is a line."""
        with caplog.at_level(logging.DEBUG, logger="agentix_runner"):
            progress = LogProgress(clock=Clock())
            progress.start(total=1, finished=[])
            progress.event("a\n", "setup")
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("DEBUG", "a: setup")]

    def test_a_line_for_each_error_at_once(self, logged: pytest.LogCaptureFixture) -> None:
        """Each error is a line of its own, made harmless; what was not run is none."""
        progress = LogProgress(clock=Clock())
        progress.start(total=4, finished=[bad("old")])
        progress.result(bad("a\x1b[2J", "ValueError: two\nlines \x07"))
        progress.result(bad("b", f"{NOT_RUN}the run was stopped"))
        progress.result(Rollout("c", error="E: again", attempt=2))
        assert [(r.levelname, r.getMessage()) for r in logged.records] == [
            ("INFO", "1 of 4 rollouts finished already"),
            ("ERROR", "a\\x1b[2J: ValueError: two lines \\x07"),
            ("ERROR", "c (attempt 2): E: again"),
        ]


class TestTerminal:
    """One line at the bottom of a terminal."""

    def test_draws_changes_only(self) -> None:
        """A line is written over the one before in a single write, only when it changes, and is gone at the end."""
        clock = Clock()
        screen = Screen()
        progress = TerminalProgress(screen, clock=clock)
        progress.start(total=2, finished=[])
        for clock.now in (1.0, 2.0, 3.0):
            progress.tick()
        assert screen.getvalue() == "\r0/2 done, 0 resolved, 0 errors\x1b[J"
        clock.now = 4.0
        progress.result(good("a"))
        clock.now = 4.05
        progress.result(good("b"))  # too soon after the last
        clock.now = 5.0
        progress.tick()
        progress.close()
        assert screen.getvalue().split("\r")[2:] == [
            "1/2 done, 1 resolved, 0 errors, 4s left\x1b[J",
            "2/2 done, 2 resolved, 0 errors\x1b[J",
            "\x1b[J",
        ]
        clock.now = 6.0
        progress.event("late", "setup")
        assert screen.getvalue().endswith("0 errors\x1b[J\r\x1b[J")

    def test_close_without_start(self) -> None:
        """A run that never started leaves nothing on the screen."""
        screen = Screen()
        progress = TerminalProgress(screen)
        progress.close()
        progress.close()
        assert screen.getvalue() == ""

    def test_gone_before_a_log_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The line is taken away before a log line is written, and is back at the next tick."""
        clock = Clock()
        screen = Screen()
        logger = logging.getLogger("agentix_runner")
        root = logging.StreamHandler(screen)
        monkeypatch.setattr(logging.getLogger(), "handlers", [root])
        progress = TerminalProgress(screen, clock=clock)
        progress.start(total=1, finished=[])
        logger.warning("careful")
        clock.now = 1.0
        progress.tick()
        progress.close()
        line = "\r0/1 done, 0 resolved, 0 errors\x1b[J"
        assert screen.getvalue() == f"{line}\r\x1b[Jcareful\n{line}\r\x1b[J"
        logger.warning("later")
        assert screen.getvalue().endswith("\r\x1b[Jlater\n")
        assert logger.handlers == []

    def test_does_not_swallow_warnings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where nobody set up logging, warnings come out as they would without the line."""
        out = io.StringIO()
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(out))
        progress = TerminalProgress(Screen(), clock=Clock())
        progress.start(total=1, finished=[])
        progress.result(bad("a"))
        progress.close()
        assert out.getvalue() == "a: ValueError: no\n"

    def test_narrow(self) -> None:
        """Whole pieces are left out, the least important first, until the line fits the terminal."""
        ours, theirs = pty.openpty()
        try:
            with os.fdopen(theirs, "w") as stream:
                shown = {}
                for columns in (80, 40, 32, 20, 6):
                    subprocess.run(["stty", "cols", str(columns)], stdin=theirs, check=True)
                    progress = TerminalProgress(stream, clock=Clock())
                    progress.start(total=100, finished=[])
                    progress.event("a", "setup")
                    shown[columns] = os.read(ours, 1000).decode().strip("\r").removesuffix("\x1b[J")
                    progress.close()
                    os.read(ours, 1000)
        finally:
            os.close(ours)
        assert shown == {
            80: "0/100 done, 0 resolved, 0 errors",
            40: "0/100 done, 0 resolved, 0 errors",
            32: "0/100 done, 0 resolved",
            20: "0/100 done",
            6: "0/100",
        }

    def test_who_is_running(self) -> None:
        """With `running` a line for each instance says which phase it is in and for how long; all of it is redrawn in
        one write, and taken away as a whole."""
        clock = Clock()
        screen = Screen()
        progress = TerminalProgress(screen, running=True, clock=clock)
        progress.start(total=3, finished=[])
        for name, phase in [("a\x1b[2J", "setup"), ("b", "setup"), ("a\x1b[2J", "agent")]:
            progress.event(name, phase)
        clock.now = 65.0
        progress.tick()
        progress.event("c" * 100, "score")
        clock.now = 66.0
        progress.result(reached(good("b"), "setup"))
        progress.close()
        head = "0/3 done, 0 resolved, 0 errors"
        assert screen.getvalue().split("\r") == [
            "",
            f"{head}\x1b[J",
            f"{head}, setup 1 agent 1\x1b[K\n  setup  1m05s  b\x1b[K\n  agent  1m05s  a\\x1b[2J\x1b[J\x1b[2A",
            "1/3 done, 1 resolved, 0 errors, agent 1 score 1, 2m12s left\x1b[K\n"
            f"  agent  1m06s  a\\x1b[2J\x1b[K\n  score     1s  {'c' * 63}\x1b[J\x1b[2A",
            "\x1b[J",
        ]

    def test_more_running_than_lines(self) -> None:
        """Of more instances than the terminal has lines the rest is a number."""
        clock = Clock()
        screen = Screen()  # 24 lines
        progress = TerminalProgress(screen, running=True, clock=clock)
        progress.start(total=100, finished=[])
        for number in range(60):
            progress.event(f"i{number}", "agent")
        clock.now = 1.0
        progress.tick()
        shown = screen.getvalue().split("\r")[-1].replace("\x1b[K", "").removesuffix("\x1b[J").split("\n")
        progress.close()
        assert shown == [
            "0/100 done, 0 resolved, 0 errors, agent 60",
            *(f"  agent     1s  i{number}" for number in range(21)),
            "  and 39 more",
        ]

    def test_terminal_that_goes_away(self) -> None:
        """A terminal that was closed does not stop the run."""
        screen = Screen()
        progress = TerminalProgress(screen, clock=Clock())
        screen.close()
        progress.start(total=1, finished=[])
        progress.result(good("a"))
        progress.close()


class TestNotebook:
    """A tqdm bar."""

    def test_bar(self, capsys: pytest.CaptureFixture[str], logged: pytest.LogCaptureFixture) -> None:
        """It starts where an earlier run left off, and shows resolved, errors and phases."""
        clock = Clock()
        progress = NotebookProgress(clock=clock)
        progress.start(total=3, finished=[good("old")])
        progress.event("a", "setup")
        progress.result(good("a"))
        progress.result(bad("b"))
        progress.close()
        progress_bar = capsys.readouterr().err.split("\r")
        assert "1/3" in progress_bar[1]
        assert "3/3" in progress_bar[-1]
        assert "2 resolved, 1 error" in progress_bar[-1]
        assert [r.getMessage() for r in logged.records] == ["b: ValueError: no"]

    def test_close_without_start(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A run that never started shows no bar."""
        NotebookProgress().close()
        assert capsys.readouterr().err == ""

    def test_without_tqdm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without tqdm it says how to get it; "auto" goes on without a bar."""
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        with pytest.raises(BadArgument, match=r'pip install "agentix-runner\[notebook\]"'):
            make_progress("notebook", Screen())
        monkeypatch.setitem(sys.modules, "IPython", Shell("kernel"))
        assert make_progress("auto", Screen()) is None


class TestChoice:
    """What `progress=` means."""

    def test_kinds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """ "auto" is a line on a terminal, and nothing elsewhere; the other kinds are what they say."""
        monkeypatch.setenv("TERM", "xterm")
        assert isinstance(make_progress("auto", Screen()), TerminalProgress)
        assert make_progress("auto", io.StringIO()) is None
        monkeypatch.setenv("TERM", "dumb")
        assert make_progress("auto", Screen()) is None
        assert isinstance(make_progress("terminal", io.StringIO()), TerminalProgress)
        assert isinstance(make_progress("log", Screen()), LogProgress)
        assert make_progress("none", Screen()) is None

    def test_jupyter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """ "auto" is a bar in a kernel, and a line in an IPython of a terminal."""
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setitem(sys.modules, "IPython", Shell("kernel"))
        assert isinstance(make_progress("auto", io.StringIO()), NotebookProgress)
        monkeypatch.setitem(sys.modules, "IPython", Shell())
        assert isinstance(make_progress("auto", Screen()), TerminalProgress)

    @pytest.mark.slow
    def test_real_kernel(self) -> None:
        """In a real kernel "auto" is a bar."""
        nbformat = pytest.importorskip("nbformat")
        nbclient = pytest.importorskip("nbclient")
        code = """
            import sys
            from agentix_runner.report.progress import make_progress
            type(make_progress("auto", sys.stderr)).__name__
        """
        cell = nbformat.v4.new_code_cell(textwrap.dedent(code))
        notebook = nbformat.v4.new_notebook(cells=[cell])
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        assert [output.data["text/plain"] for output in notebook.cells[0].outputs] == ["'NotebookProgress'"]

    def test_unknown_kind(self) -> None:
        """Another word is refused, naming those that there are."""
        with pytest.raises(BadArgument, match='progress is \'bar\': expected "auto", "terminal", "log", "notebook"'):
            make_progress("bar", Screen())

    def test_light(self) -> None:
        """The library's progress needs neither click nor tqdm nor docker, unless it is a notebook's."""
        code = """
            import sys, agentix_runner.report.progress as progress
            progress.make_progress("auto", sys.stderr)
            print(sorted({"click", "tqdm", "docker", "asyncio"} & set(sys.modules)))
        """
        run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
        assert run.stdout == "[]\n"
