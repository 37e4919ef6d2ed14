"""Removes a directory tree, whatever is in it. Used by the guard in the sandbox and by the host; standard library only.

`shutil.rmtree` gives up at read-only directories and at trees that are deeper than the recursion limit or than a path
may be long. Here every inner directory is moved up to the top before it is emptied, so neither matters.
"""

from __future__ import annotations

import contextlib
import os
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove the directory `path` and all that is in it, following no symbolic link. Nothing happens where there is
    none.

    Raises:
        OSError: the first thing that could not be removed; all that could be is gone.
    """
    try:
        _allow(path, None)
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        first = _Emptier(top).empty()
    finally:
        os.close(top)
    if first is not None:
        raise first
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


class _Emptier:
    def __init__(self, top: int) -> None:
        self.top = top
        self.moved = 0
        self.stuck: set[str] = set()
        self.first: OSError | None = None

    def empty(self) -> OSError | None:
        while True:
            names = [name for name in os.listdir(self.top) if name not in self.stuck]
            if not names:
                return self.first
            for name in names:
                try:
                    self._remove(name)
                except FileNotFoundError:
                    # Somebody else removes it too.
                    continue
                except OSError as error:
                    self._note(error)
                    self.stuck.add(name)

    def _note(self, error: OSError) -> None:
        if self.first is None:
            self.first = error

    def _remove(self, name: str) -> None:
        if not _is_directory(name, self.top):
            os.unlink(name, dir_fd=self.top)
            return
        _allow(name, self.top)
        inner = os.open(name, _DIRECTORY, dir_fd=self.top)
        try:
            for entry in os.listdir(inner):
                try:
                    self._empty_out(entry, inner)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._note(error)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=self.top)

    def _empty_out(self, entry: str, inner: int) -> None:
        if not _is_directory(entry, inner):
            os.unlink(entry, dir_fd=inner)
            return
        # A directory that may not be written can't get another parent.
        _allow(entry, inner)
        while True:
            self.moved += 1
            name = f".{self.moved}"
            try:
                os.stat(name, dir_fd=self.top, follow_symlinks=False)
            except FileNotFoundError:
                os.rename(entry, name, src_dir_fd=inner, dst_dir_fd=self.top)
                return


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _allow(name: str, parent: int | None) -> None:
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)
