"""Whose directory it is: run.json, which says what was run, and the lock that a run holds while it uses it."""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import platform
import re
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import RunDirError
from .files import folder, open_plain_file, read_file, replace
from .identity import differences, without_secrets

RUN_FILE = "run.json"
LOCK_FILE = "run.lock"
FORMAT = 1
"""Version of the directory's layout, in run.json."""

LOCK_WAIT_S = 1.0
"""How long (seconds) to wait for another's lock before the directory counts as in use."""

_MAX_RUN_FILE = 16 * 1024 * 1024
_NOT_FOREIGN = frozenset(
    {LOCK_FILE, f".{RUN_FILE}.tmp"}  # of a run that was killed before it had made run.json
    | {".gitkeep", ".gitignore", ".DS_Store", "lost+found"}
)


def open_folder(path: Path) -> int:
    """A descriptor of the run directory, which is made where there is none, with its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise bad_directory(path, "is not a directory: give another one") from None
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def refuse_foreign(path: Path, dir_fd: int) -> None:
    """Nothing is ever written into a directory that holds something else.

    Raises:
        RunDirError: it is one.
    """
    names = set(os.listdir(dir_fd)) - _NOT_FOREIGN
    if names and RUN_FILE not in names:
        some = ", ".join(sorted(names)[:3])
        raise bad_directory(
            path, f"is no run directory: it has no {RUN_FILE}, but {some!a:.200}. Give an empty or a new directory"
        )


def take_lock(path: Path, dir_fd: int) -> int:
    """The lock's descriptor: closing it, or the end of the process, lets go.

    Raises:
        RunDirError: somebody else holds it; the message says who.
    """
    fd = open_plain_file(LOCK_FILE, os.O_RDWR | os.O_CREAT, dir_fd=dir_fd)
    try:
        if not _locked(fd):
            holder = os.pread(fd, 300, 0).decode("utf-8", "replace").strip()
            by = holder if re.fullmatch(r"process \d+ on [\w.-]+", holder) else "another process"
            raise bad_directory(path, f"is in use by {by}: wait for that run to end, or give another directory")
        os.ftruncate(fd, 0)
        os.write(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except BaseException:
        os.close(fd)
        raise
    return fd


def _locked(fd: int) -> bool:
    # A moment's patience: a run that was just killed may still be on its way out, and `in_use` holds it for an instant.
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)


def claim(path: Path, dir_fd: int, identity: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """Make run.json, or compare what it says with `identity`; the run's own id, the same each time. Its details are
    those of the last time.

    Raises:
        RunDirError: it is of a different run (every difference is named), or can't be read.
    """
    now, about = without_secrets(dict(identity)), without_secrets(dict(details))
    try:
        data = read_file(RUN_FILE, dir_fd=dir_fd, limit=_MAX_RUN_FILE)
    except FileNotFoundError:
        run_id = secrets.token_hex(6)
        run = {
            "format": FORMAT,
            "run_id": run_id,
            "identity": now,
            "details": about,
            "created_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "versions": {"agentix-runner": __version__, "python": platform.python_version()},
        }
        replace(RUN_FILE, [pretty(run)], dir_fd=dir_fd, durable=True)
        os.fsync(dir_fd)
        return run_id
    run = _parse(path, data)
    different = [f"{name} was {there} and is {here} now" for name, there, here in differences(run["identity"], now)]
    if different:
        raise bad_directory(
            path, f"holds a different run: {'; '.join(different)}. Give another directory, or the arguments of that run"
        )
    if run.get("details") != about:
        replace(RUN_FILE, [pretty({**run, "details": about})], dir_fd=dir_fd, durable=True)
    return str(run["run_id"])


def planned(run: Mapping[str, Any]) -> int | None:
    """How many rollouts the last run of a directory was to have, done ones included, by its run.json."""
    details = run.get("details")
    count = details.get("rollouts") if isinstance(details, Mapping) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def read_run_file(path: Path) -> dict[str, Any]:
    """What run.json of a run directory says, also while a run uses it.

    Raises:
        RunDirError: there is none, or it can't be read.
    """
    return _parse(path, read_run_file_bytes(path))


def read_run_file_bytes(path: Path) -> bytes:
    """run.json as it is.

    Raises:
        RunDirError: it can't be read, or there is none: it is no run directory.
    """
    try:
        with folder(path) as fd:
            return read_file(RUN_FILE, dir_fd=fd, limit=_MAX_RUN_FILE)
    except FileNotFoundError:
        raise bad_directory(path, f"is no run directory: it has no {RUN_FILE}") from None
    except OSError as exc:
        raise bad_directory(path, f"is no run directory that can be read ({exc.strerror or exc})") from exc


def in_use(path: Path) -> bool:
    """Whether a run uses the directory now.

    Where none does, its lock is held for the moment that the question takes; a run that starts just then waits for it.
    """
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def bad_directory(path: Path, reason: str) -> RunDirError:
    """The error that says what is wrong with a run directory."""
    return RunDirError(f"{path} {reason}", path=str(path))


def pretty(data: Any) -> bytes:
    """JSON for a file that people read."""
    return json.dumps(data, indent=2).encode() + b"\n"


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        run = json.loads(data)
    except (ValueError, RecursionError):
        run = None
    if not isinstance(run, dict) or not isinstance(run.get("identity"), dict) or not isinstance(run.get("run_id"), str):
        raise bad_directory(path, f"is no run directory: its {RUN_FILE} can't be read. Give another directory")
    if run.get("format") != FORMAT:
        raise bad_directory(
            path,
            f"was made by another version of agentix-runner (format {run.get('format')!r:.40}): use that one, "
            "or give another directory",
        )
    return run
