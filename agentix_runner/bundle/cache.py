"""The folder that bundles are cached and made in, and locks that several processes respect.

AGENTIX_CACHE names it; by default it is `agentix-runner` in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import BundleError

_LOCK_LIMIT_S = 900.0


def cache_folder() -> Path:
    """The cache folder; it is made where it is missing.

    Raises:
        BundleError: none can be made that belongs to this user.
    """
    named = os.environ.get("AGENTIX_CACHE")
    if named:
        places = [Path(named)]
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        # The second one for users without a home, as in many containers.
        places = [Path(home) / "agentix-runner", Path(tempfile.gettempdir()) / f"agentix-runner-{os.getuid()}"]
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # Anybody may have made a folder in the system's temporary one.
        if os.access(place, os.W_OK) and place.is_absolute() and place.stat().st_uid == os.getuid():
            return place
    raise BundleError(f"{places[0]} can't be used as a cache: set AGENTIX_CACHE to a folder of yours, by its full path")


@contextlib.contextmanager
def locked(name: str, limit_s: float | None = None) -> Iterator[None]:
    """Inside, no other process is inside for the same `name`. Ends with the process, however that ends.

    Raises:
        BundleError: another one has it for longer than `limit_s` seconds (default: 15 minutes).
    """
    path = cache_folder() / f"{name}.lock"
    limit = _LOCK_LIMIT_S if limit_s is None else limit_s
    until = time.monotonic() + limit
    with open(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise BundleError(
                        f"another process has held {path} for {limit:.0f} s: end it, or wait for it"
                    ) from None
                time.sleep(0.05)
        yield


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder to make a bundle in, gone at the end. What killed processes have left of theirs goes at the beginning.

    Raises:
        BundleError: as `locked` and `cache_folder`.
    """
    parent = cache_folder() / "making"
    with locked("making"):
        parent.mkdir(mode=0o700, exist_ok=True)
        for left in parent.iterdir():
            with contextlib.suppress(OSError), _held(left):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
        holding = contextlib.ExitStack()
        holding.enter_context(_held(folder))
    with holding:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder, until the end of the block or of the process. Raises OSError where another process does."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
