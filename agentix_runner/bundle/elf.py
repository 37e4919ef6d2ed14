"""What an ELF file says about itself, and which shared libraries it gets. Standard library only: it also runs in a
base image.

The loader itself is asked (`LOADER --list FILE`), as `ldd` does: it knows best what it would load, and it is there
where `ldd`, a shell script, is not.
"""

from __future__ import annotations

import os
import struct
import subprocess

_MAGIC = b"\x7fELF"
_PT_DYNAMIC, _PT_INTERP = 2, 3
_MAX_TABLE = 1 << 20
_LIST_LIMIT_S = 60


def is_elf(path: str) -> bool:
    """Whether the file at `path` is an ELF file. A symbolic link is none."""
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False


def loader_of(path: str) -> str | None:
    """The loader that a program asks for; None for a static one, or a library.

    Raises:
        ValueError: it is no valid ELF file.
    """
    for kind, offset, size in _segments(path):
        if kind == _PT_INTERP:
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    return os.fsdecode(file.read(min(size, 4096)).rstrip(b"\0"))
            except (OSError, OverflowError, ValueError) as error:
                raise ValueError(f"{path} is no valid ELF file: {error}") from error
    return None


def is_dynamic(path: str) -> bool:
    """Whether the file at `path` is an ELF file that takes part in dynamic linking."""
    try:
        return is_elf(path) and any(kind == _PT_DYNAMIC for kind, _, _ in _segments(path))
    except ValueError:
        return False


def libraries(path: str, loader: str) -> dict[str, str | None]:
    """The shared libraries that `path` gets, and those that these get: the file of each by the name that it is asked
    for; None where it is not found. Without the loader."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    if "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    listed = subprocess.run(
        [loader, "--list", path],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_LIST_LIMIT_S,
    )
    found: dict[str, str | None] = {}
    for line in os.fsdecode(listed.stdout).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue
        target = rest.rpartition(" (")[0] or rest
        # The loader lists itself by its full name.
        if "/" not in name:
            found[name] = os.path.realpath(target) if target.startswith("/") else None
    return found


def _segments(path: str) -> list[tuple[int, int, int]]:
    """(type, offset, size) of each program header."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:4] != _MAGIC or head[4:5] not in (b"\1", b"\2") or head[5:6] not in (b"\1", b"\2"):
                raise ValueError("its beginning is of another kind of file")
            order = "<" if head[5] == 1 else ">"
            if head[4] == 2:
                table = struct.unpack_from(order + "Q", head, 32)[0]
                size, count = struct.unpack_from(order + "HH", head, 54)
                layout, picks = order + "IIQQQQ", (0, 2, 5)
            else:
                table = struct.unpack_from(order + "I", head, 28)[0]
                size, count = struct.unpack_from(order + "HH", head, 42)
                layout, picks = order + "IIIII", (0, 1, 4)
            file.seek(table)
            if size * count > _MAX_TABLE:
                raise ValueError(f"a table of {size * count} bytes")
            data = file.read(size * count)
            entries = (struct.unpack_from(layout, data, size * index) for index in range(count))
            return [(entry[picks[0]], entry[picks[1]], entry[picks[2]]) for entry in entries]
    except (struct.error, OSError, OverflowError, ValueError) as error:
        raise ValueError(f"{path} is no valid ELF file: {error}") from error
