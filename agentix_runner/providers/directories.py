"""The directories of local sandboxes: how they are named, filled, removed, and swept when their owner has died.

    agentix-local-HOST-PID-START-RANDOM/    work/ (the working directory), home/, tmp/

HOST-PID-START names the owner (see `owners`) and so tells whether it still lives: sweeping what dead owners left can't
hit a directory in use.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time

from ..errors import SandboxStartError
from ..remote.sandbox import guard
from ..remote.sandbox.remove_tree import remove_tree
from .owners import Owner, process_start

_log = logging.getLogger("agentix_runner.providers.local")

MARKER = "AGENTIX_SANDBOX"
"""Environment variable of every process in a sandbox: its directory's name. Finds what has outlived a killed guard."""

_PREFIX = "agentix-local-"
# Seconds between attempts to remove a directory while there are no descriptors to do it with.
_PAUSES = (0.05, 0.2, 1.0, 2.0, 0.0)
_sweeping = threading.Lock()
_swept: set[tuple[int, str]] = set()


def make(root: str | os.PathLike[str] | None) -> str:
    """A new directory under `root`. The first one of a process sweeps there what dead owners have left."""
    home = os.path.realpath(root if root is not None else tempfile.gettempdir())
    try:
        os.makedirs(home, exist_ok=True)
        with _sweeping:
            if (os.getpid(), home) not in _swept:
                _swept.add((os.getpid(), home))
                sweep(home)
        path = os.path.join(home, f"{_PREFIX}{Owner.current().name}-{secrets.token_hex(6)}")
        os.mkdir(path, 0o700)
        return path
    except OSError as error:
        transient = error.errno in (errno.EMFILE, errno.ENFILE)
        raise SandboxStartError(
            f"no directory for a sandbox can be made in {home}: {error}", transient=transient
        ) from error


def copy_image(base: str, image: str) -> str:
    """Make what is in `base`, with a copy of the directory `image`. Returns the working directory."""
    work = os.path.join(base, "work")
    try:
        for name in ("home", "tmp"):
            os.mkdir(os.path.join(base, name), 0o700)
        if not image:
            os.mkdir(work)
            return work
        if not os.path.isdir(image):
            raise SandboxStartError(f"image {image!r} is not a directory: give the path of one to copy in, or ''")
        root = os.path.realpath(os.path.dirname(base))

        def skip(folder: str, names: list[str]) -> set[str]:
            # The sandboxes' own directories, where the image holds them; and what can't be copied: sockets, devices.
            own = os.path.realpath(folder) == root
            return {
                name for name in names if (own and name.startswith(_PREFIX)) or _is_special(os.path.join(folder, name))
            }

        shutil.copytree(image, work, symlinks=True, ignore=skip)
        return work
    except (OSError, shutil.Error) as error:
        raise SandboxStartError(f"image {image!r} could not be copied to {work}: {error}") from error


def remove(base: str, *, processes_too: bool) -> None:
    """Remove a sandbox's directory. With `processes_too` first kill what still runs there. Failure is only logged."""
    if processes_too:
        kill_marked(os.path.basename(base))
    for pause in _PAUSES:
        try:
            remove_tree(base)
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not pause:
                _log.error("the sandbox's directory %s could not be removed: %s", base, error)
                return
            if _remove_empty(base):
                return
            time.sleep(pause)


def _remove_empty(base: str) -> bool:
    """Remove a directory in which nothing has run yet: that takes no descriptor, and there may be none left."""
    with contextlib.suppress(OSError):
        for name in ("work", "home", "tmp", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(base, name))
        return True
    return False


def sweep(home: str) -> None:
    """Remove the directories in `home` whose owner is dead, and kill what still runs there."""
    for name in os.listdir(home):
        path = os.path.join(home, name)
        try:
            if name.startswith(_PREFIX) and _owner(name).is_dead and os.lstat(path).st_uid == os.geteuid():
                _log.info("removing %s: its owner is dead", path)
                remove(path, processes_too=True)
        except OSError as error:
            _log.warning("%s could not be swept: %s", path, error)


def _owner(name: str) -> Owner:
    return Owner.from_name(name.removeprefix(_PREFIX).rpartition("-")[0])


def kill_marked(name: str) -> None:
    """Kill every process that says that it belongs to the sandbox `name`. Linux only, best effort."""
    if sys.platform != "linux":
        return
    found: list[int] = []
    for _ in range(50):
        try:
            found = [pid for pid in _processes() if _belongs(pid, name.encode())]
        except OSError as error:
            _log.error("what the sandbox %s has left can't be looked for: %s", name, error)
            return
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    _log.error("processes of the sandbox %s don't end: %s", name, found)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _belongs(pid: int, name: bytes) -> bool:
    """Programs that were started in the sandbox have its marker in their environment. Forks of guard and worker hide
    that, since they are undumpable, but have the guard's command line."""
    with contextlib.suppress(OSError):
        if not process_start(pid):
            return False
        *command, directory, _end = (b"", b"", *_read(pid, "cmdline").split(b"\0"))
        if guard.BOOT.encode() in command and os.path.basename(directory) == name:
            return True
        return MARKER.encode() + b"=" + name in _read(pid, "environ").split(b"\0")
    return False


def _read(pid: int, what: str) -> bytes:
    with open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()


def _is_special(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
