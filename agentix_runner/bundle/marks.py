"""Which bundle volumes are in use by processes of this user, also at moments when no container mounts them.

A live run has no container between two sandboxes, and its bundle's image may be gone: a newer one has taken the name.
So each process that uses a volume holds a lock on a file of that name in the cache folder. The system lets go of it
with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from ..errors import BundleError
from .cache import cache_folder


class Mark:
    """This process uses a volume: until `release`, or until nobody has this object any more."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.release = weakref.finalize(self, _let_go, descriptor, path, os.getpid())


def mark(volume: str) -> Mark | None:
    """Say that this process uses `volume`. None where there is no place to say it: what protects it then are its image
    and its containers."""
    try:
        path = _path(volume)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _is_at(descriptor, path):
                return Mark(descriptor, path)
            os.close(descriptor)
    except (OSError, BundleError):
        return None


@contextlib.contextmanager
def unmarked(volume: str) -> Iterator[bool]:
    """Whether no process uses `volume`. Where that is so, none can mark it until the end of the block."""
    try:
        path = _path(volume)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, BundleError):
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        _let_go(descriptor, path, os.getpid())


def _path(volume: str) -> Path:
    folder = cache_folder() / "volumes"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / volume


def _let_go(descriptor: int, path: Path, pid: int) -> None:
    # A fork has the same lock: changing it there would change it here.
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                path.unlink()
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
