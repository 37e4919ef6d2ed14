"""Files inside a run directory: opened without following links, replaced whole or not at all.

What runs on the same machine may have put links where a run's own files belong, so that every name is taken relative
to an open folder, and never through a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, however many writes it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def open_plain_file(name: str, flags: int, *, dir_fd: int) -> int:
    """Open a regular file; a link, a pipe or a device in its place is an OSError."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{name} is not a regular file")
    return fd


@contextlib.contextmanager
def folder(name: str, *, dir_fd: int, create: bool = False) -> Iterator[int]:
    """A descriptor of a folder that is no link, for the time of the block."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=dir_fd)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=dir_fd)
        fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def replace(name: str, chunks: Iterable[bytes], *, dir_fd: int, durable: bool) -> None:
    """Write a file under a temporary name, then rename it to `name`: readers see the old one or the new one.

    One writer at a time. A `durable` one is on the disk before it is renamed.
    """
    temporary = f".{name}.tmp"
    with contextlib.suppress(FileNotFoundError):  # of a writer that was killed
        os.unlink(temporary, dir_fd=dir_fd)
    fd = os.open(temporary, _NEW, 0o666, dir_fd=dir_fd)
    try:
        try:
            buffer = bytearray()
            for chunk in chunks:
                buffer += chunk
                if len(buffer) >= _CHUNK:
                    write_all(fd, bytes(buffer))
                    buffer.clear()
            write_all(fd, bytes(buffer))
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise


def read_file(name: str, *, dir_fd: int, limit: int) -> bytes:
    """A regular file's bytes; one of more than `limit` bytes is an OSError."""
    fd = open_plain_file(name, os.O_RDONLY, dir_fd=dir_fd)
    with open(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{name} is larger than {limit:,} bytes")
    return data
