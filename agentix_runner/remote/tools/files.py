"""Reading and writing a file of the sandbox. Runs in the sandbox, or wherever it is called; standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

MIB = 1024 * 1024


def read_file(path: str, max_bytes: int = 100 * MIB) -> bytes:
    """The bytes of a regular file; `.decode()` makes text of them. Relative paths start at the working directory.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a directory.
        OSError: it is a FIFO, socket or device (which could block), can't be read, or holds more than `max_bytes`.
    """
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # a socket, or a device with nothing behind it
            raise _not_regular(path) from None
        raise
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        parts = []
        left = max_bytes + 1  # the size that stat tells may be wrong: files of /proc say 0
        while left > 0 and (part := os.read(descriptor, min(left, MIB))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if left <= 0:
        message = f"larger than max_bytes ({max_bytes}): raise it, or read a part with bash and head, tail or sed"
        raise OSError(errno.EFBIG, message, path)
    return b"".join(parts)


def write_file(path: str, data: bytes | str, mode: int | None = None) -> None:
    """Write a file, and the directories above it where they are missing. Text is written as UTF-8 (what `bash` kept
    with surrogateescape becomes the same bytes again), with its line ends as they are.

    Readers see the old content or the new, nothing between. A file that is there keeps its permissions, and a symbolic
    link stays one: what it points to is written. `mode` (0o755, say) sets the permissions exactly.

    Raises:
        IsADirectoryError: `path` is a directory.
        OSError: it is a FIFO, socket or device, or can't be written.
        TypeError: `data` is neither bytes nor text.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    elif not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data is {type(data).__name__}: give bytes or str")
    if not path or str(path).endswith("/"):
        raise IsADirectoryError(errno.EISDIR, "not the name of a file", path)
    target = os.path.realpath(path)
    old = None
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(target)
        _require_regular(path, old.st_mode)
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    # Of a fixed length, for names that are as long as a name may be.
    draft = os.path.join(folder, f".agentix-{secrets.token_hex(8)}.tmp")
    try:
        _write(draft, data, os.O_CREAT | os.O_EXCL, mode if old is None or mode is not None else old.st_mode)
        if old is not None:
            with contextlib.suppress(OSError):  # only root may give a file away
                os.chown(draft, old.st_uid, old.st_gid)
        os.replace(draft, target)
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        # A file may be writable in a folder that is not, or be a mount of its own (/etc/hosts in a container).
        if old is None or exc.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV):
            raise
        _write(target, data, os.O_TRUNC | os.O_NONBLOCK, mode)


def _write(path: str, data: bytes | bytearray | memoryview, flags: int, mode: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | flags, 0o666)
    with open(descriptor, "wb") as file:
        file.write(data)
        if mode is not None:
            os.fchmod(descriptor, stat.S_IMODE(mode))


def _require_regular(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a directory, not a file", path)
    if not stat.S_ISREG(mode):
        raise _not_regular(path)


def _not_regular(path: str) -> OSError:
    return OSError(errno.EINVAL, "a FIFO, socket or device, not a regular file", path)
