"""How a run is going, in the caller's process: one line on a terminal, log lines elsewhere, a bar in a notebook.

What the runner calls, always from the caller's thread: `start`, then `event`, `result` and `tick` (about every 0.2 s),
and `close` at the end, on every path.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, TextIO

from ..errors import BadArgument
from ..records import Rollout
from ..text import clean, cut_to, is_terminal, plural, whole_seconds
from .counts import Counts

logger = logging.getLogger("agentix_runner.progress")


class Progress(Protocol):
    """What is told how a run is going."""

    def start(self, *, total: int, finished: Sequence[Rollout]) -> None:
        """`total` rollouts, of which `finished` are there from an earlier run."""

    def event(self, instance_id: str, phase: str) -> None:
        """One of the instance's rollouts enters "setup", "agent" or "score"."""

    def result(self, rollout: Rollout) -> None:
        """A rollout is finished, or will not run."""

    def tick(self) -> None:
        """Some time has passed."""

    def close(self) -> None:
        """The run is over."""


class ProgressDisplay:
    """What all ways to show progress have in common: counting, and showing the numbers at most every so often.

    While outcomes come fast there is no `tick`, so each call is an occasion to show.
    """

    headline = ""
    """Logged when the run starts."""

    def __init__(self, every_s: float, clock: Callable[[], float]) -> None:
        self.counts = Counts(clock)
        self.started = False
        self._every_s = every_s
        self._clock = clock
        self._next = clock() + every_s

    def start(self, *, total: int, finished: Sequence[Rollout]) -> None:
        self.started = True
        self.counts.start(total, finished)
        if self.headline:
            logger.info("%s", self.headline)

    def event(self, instance_id: str, phase: str) -> None:
        self.counts.enter(instance_id, phase)
        self.tick()

    def result(self, rollout: Rollout) -> None:
        self.counts.finish(rollout)
        if rollout.error is not None and rollout.ran:
            attempt = f" (attempt {rollout.attempt})" if rollout.attempt else ""
            logger.error("%s%s: %s", clean(rollout.instance_id, 120), attempt, clean(rollout.error))
            if rollout.failure is not None:
                logger.debug("%s", rollout.failure.traceback)
        self.tick()

    def tick(self) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + self._every_s
            self.show()

    def show(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class LogProgress(ProgressDisplay):
    """One log line every `every_s` seconds, and one for each error at once."""

    def __init__(self, *, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(every_s, clock)

    def start(self, *, total: int, finished: Sequence[Rollout]) -> None:
        super().start(total=total, finished=finished)
        if finished:
            logger.info("%d of %s finished already", len(finished), plural(total, "rollout"))

    def event(self, instance_id: str, phase: str) -> None:
        logger.debug("%s: %s", clean(instance_id, 120), phase)
        super().event(instance_id, phase)

    def show(self) -> None:
        logger.info("%s", ", ".join(self.counts.parts()))


class TerminalProgress(ProgressDisplay):
    """One line at the bottom of a terminal, drawn again when it changes. With `running`, below it a line for each
    instance that runs: which phase it is in, and for how long.

    What agentix_runner logs meanwhile goes above it. `clear_for_logs` False leaves that to the caller, who wraps the
    writing of each log line in `hidden()`.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        running: bool = False,
        clear_for_logs: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(0.1, clock)
        self._stream = stream
        self._with_running = running
        # Re-entrant: a log line may be written by the thread that is drawing.
        self._lock = threading.RLock()
        self._shown = ""
        self._closed = False
        self._handler = _ClearingHandler(self) if clear_for_logs else None

    def start(self, *, total: int, finished: Sequence[Rollout]) -> None:
        super().start(total=total, finished=finished)
        if self._handler is not None:
            logging.getLogger("agentix_runner").addHandler(self._handler)
        self.show()

    def close(self) -> None:
        with self.hidden():
            self._closed = True
        if self._handler is not None:
            logging.getLogger("agentix_runner").removeHandler(self._handler)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Inside, the line is not there and is not drawn; it is back at the next tick."""
        with self._lock:
            if self._shown:
                self._write("")
            yield

    def show(self) -> None:
        columns, lines = self._size()
        text = _fit(self.counts.parts(), columns - 1)
        if self._with_running:
            text = "\n".join([text, *_running(self.counts.running(), columns - 1, lines - 2)])
        with self._lock:
            if text != self._shown and not self._closed:
                self._write(text)

    def _write(self, text: str) -> None:
        """Write `text` over what is shown, in one go and erasing old ends after it, so that no line is ever empty."""
        above = self._shown.count("\n")
        up = f"\x1b[{above}A\r" if above else "\r"
        try:
            self._stream.write(up + text.replace("\n", "\x1b[K\n") + "\x1b[J")
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; the run goes on
            self._closed = True
        self._shown = text

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._stream.fileno())
            return size.columns or 80, size.lines or 24
        except (OSError, ValueError):
            return 80, 24


class _ClearingHandler(logging.Handler):
    """Takes the progress line away before another handler writes."""

    def __init__(self, progress: TerminalProgress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        with self._progress.hidden():
            # This handler's presence turns off the one that Python falls back to where nobody set up logging.
            fallback = logging.lastResort
            if fallback and record.levelno >= fallback.level and not logging.getLogger().handlers:
                fallback.handle(record)


def _fit(parts: Sequence[str], width: int) -> str:
    """As many whole parts, in order, as `width` holds; the first one is cut where even that is too long."""
    line = parts[0][: max(width, 0)]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f", {part}"
    return line


def _running(running: Sequence[tuple[str, str, float]], width: int, height: int) -> list[str]:
    """A line for each instance that runs, as many as there is room for."""
    room = len(running) if len(running) <= height else max(height - 1, 0)
    lines = [f"  {phase:<5} {whole_seconds(spent):>6}  {clean(name, 120)}" for name, phase, spent in running[:room]]
    if len(running) > room and height > 0:
        lines.append(f"  and {len(running) - room} more")
    return [cut_to(line, width) for line in lines]


class NotebookProgress(ProgressDisplay):
    """A tqdm bar, as a widget where Jupyter has widgets.

    Raises:
        BadArgument: tqdm is not installed.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(0.2, clock)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # without ipywidgets it is a bar of text, which is fine
                self._make: Callable[..., Any] = import_module("tqdm.auto").tqdm
        except ImportError:
            raise BadArgument('progress="notebook" needs tqdm: pip install "agentix-runner[notebook]"') from None
        self._bar: Any = None

    def start(self, *, total: int, finished: Sequence[Rollout]) -> None:
        super().start(total=total, finished=finished)
        self._bar = self._make(total=total, initial=len(finished), unit="rollout", dynamic_ncols=True)
        self.show()

    def result(self, rollout: Rollout) -> None:
        self._bar.update(1)
        super().result(rollout)

    def show(self) -> None:
        self._bar.set_postfix_str(", ".join(self.counts.parts()[1:]), refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self.show()
            self._bar.close()


def make_progress(kind: str, stderr: TextIO) -> Progress | None:
    """The progress of that kind: "terminal", "log", "notebook", "none" (None), or "auto": a bar in a Jupyter kernel
    that has tqdm, a line where `stderr` is a terminal, else None.

    Raises:
        BadArgument: another kind, or "notebook" without tqdm.
    """
    if kind == "auto":
        shell = sys.modules.get("IPython")
        if shell is None or getattr(shell.get_ipython(), "kernel", None) is None:
            return TerminalProgress(stderr) if is_terminal(stderr) else None
        # A Jupyter kernel, whose output a browser shows.
        try:
            return NotebookProgress()
        except BadArgument as exc:
            logger.info("no progress bar: %s", exc)
            return None
    kinds: dict[str, Callable[[], Progress | None]] = {
        "terminal": lambda: TerminalProgress(stderr),
        "log": LogProgress,
        "notebook": NotebookProgress,
        "none": lambda: None,
    }
    if kind not in kinds:
        raise BadArgument(f'progress is {kind!r}: expected "auto", "terminal", "log", "notebook" or "none"')
    return kinds[kind]()
