"""Writing the page to a file, once or again and again while a run goes on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attrs import define

from ..errors import BadArgument, RunDirError
from ..rundir.files import folder, replace
from ..rundir.runfile import in_use
from .data import MAX_DETAILS, Packed, journal_state, read_run
from .page import GENERATOR, page

EVERY_S = 2.0
"""How soon after the last one a page is written again, in seconds."""
SHARE = 10
"""A page that takes long to write is written less often: at most this fraction of the time goes into it."""
RELOAD_S = 5.0
"""How soon at the earliest an open page loads itself again, in seconds."""
LOOK_S = 0.25
"""How often a run directory is looked at for something new, in seconds."""


@define
class Written:
    """What was written: `rollouts` in it and its `size` in bytes."""

    rollouts: int
    size: int


def write_report(
    run_dirs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    live_s: float | None = None,
    packed: Packed | None = None,
) -> Written:
    """Write the page of these run directories to the file `out`: the whole page or none.

    With `live_s` the open page loads itself again every so many seconds. `packed` saves work where the same page is
    written several times.

    Raises:
        RunDirError: one of them is no run directory, or damaged.
        BadArgument: no run directory is given, `out` can't be written, or it is a file that is no report.
    """
    paths, out = list(map(Path, run_dirs)), Path(out)
    if not paths:
        raise BadArgument("no run directory is given: give one or more")
    views, room = [], MAX_DETAILS
    for path, name in zip(paths, names_of(paths), strict=True):
        views.append(read_run(path, name=name, packed=packed, room=room))
        room -= sum(map(len, views[-1].details))
    written = Written(sum(len(view.details) for view in views), 0)

    def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            written.size += len(chunk)
            yield chunk

    with _writing(out) as folder_fd:
        replace(out.name, counted(page(views, made_at=time.time(), live_s=live_s)), dir_fd=folder_fd, durable=False)
    return written


def watch(
    run_dirs: Sequence[Path],
    out: Path,
    *,
    on_write: Callable[[Written], None],
    every_s: float = EVERY_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write the page again whenever a rollout is added, until no run uses the directories any more.

    The last page, also after Ctrl-C, is one that stays as it is. Raises as `write_report` does.
    """
    packed: Packed = {}
    pause = every_s
    try:
        while any(map(in_use, run_dirs)):
            seen = list(map(journal_state, run_dirs))  # before it is read: what comes later is in the next page
            began = clock()
            on_write(write_report(run_dirs, out, live_s=max(RELOAD_S, pause), packed=packed))
            pause = max(every_s, SHARE * (clock() - began))
            until = clock() + pause
            while (left := until - clock()) > 0 and any(map(in_use, run_dirs)):
                sleep(min(left, LOOK_S))
            while list(map(journal_state, run_dirs)) == seen and any(map(in_use, run_dirs)):
                sleep(LOOK_S)
    except KeyboardInterrupt:
        on_write(write_report(run_dirs, out, packed=packed))
        raise
    on_write(write_report(run_dirs, out, packed=packed))


def names_of(run_dirs: Sequence[Path]) -> list[str]:
    """What the runs are called: the directories' names, with as many of their parents as tells them apart."""
    parts = [path.absolute().parts for path in run_dirs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({number})" for number, part in enumerate(parts, 1)]


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[int]:
    """A descriptor of the folder that `out` is to be in. Something else than a report is never written over."""
    try:
        _refuse_other(out)
        with folder(out.parent) as fd:
            yield fd
    except RunDirError:
        raise
    except OSError as exc:
        raise BadArgument(f"{out} can't be written ({exc.strerror or exc}): give another file with -o") from exc


def _refuse_other(out: Path) -> None:
    if out.is_dir():
        raise BadArgument(f"{out} is a directory: give a file with -o, such as {out / 'report.html'}")
    if out.exists() and not out.is_file():
        raise BadArgument(f"{out} is no regular file: give another one with -o")
    try:
        with open(out, "rb") as file:
            beginning = file.read(1000)
    except FileNotFoundError:
        return
    if beginning and f'content="{GENERATOR}"'.encode() not in beginning:
        raise BadArgument(f"{out} is there already, and it is no report: give another file with -o, or remove it")
