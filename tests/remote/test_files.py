"""read_file and write_file, run here in the test's own process."""

from __future__ import annotations

import gc
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agentix_runner.remote.tools import bash, files, read_file, write_file

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="found through /proc")


def test_read_bytes(tmp_path: Path) -> None:
    """A file comes back as its bytes, an empty one as none."""
    data = bytes(range(256)) * 10_000
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "empty").touch()
    assert read_file(str(tmp_path / "f")) == data
    assert read_file(str(tmp_path / "empty")) == b""


def test_read_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts at the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    assert read_file("f") == b"x"


def test_read_up_to_max_bytes(tmp_path: Path) -> None:
    """A file of max_bytes is read; one byte more is refused, with the limit and the remedy."""
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_file(str(path), max_bytes=5) == b"12345"
    with pytest.raises(OSError, match=r"larger than max_bytes \(4\): raise it, or read a part.*/f'"):
        read_file(str(path), max_bytes=4)


@linux_only
def test_read_file_whose_size_is_unknown() -> None:
    """Files of /proc, whose size is 0, are read to their end, and held to max_bytes too."""
    assert b"Name:" in read_file("/proc/self/status")
    with pytest.raises(OSError, match="larger than max_bytes"):
        read_file("/proc/self/status", max_bytes=10)


def test_read_missing(tmp_path: Path) -> None:
    """A file that isn't there is named."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_file(str(tmp_path / "nowhere"))


def test_read_directory(tmp_path: Path) -> None:
    """A directory is refused as one."""
    gc.collect()  # what other tests have left
    before = psutil.Process().num_fds()
    with pytest.raises(IsADirectoryError, match="a directory, not a file"):
        read_file(str(tmp_path))
    assert psutil.Process().num_fds() <= before


def special_file(kind: str) -> str:
    """A file that is not regular, in the working directory."""
    if kind == "device":
        return "/dev/zero"
    if kind == "fifo":
        os.mkfifo("f")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("f")
    return "f"


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_special_files_never_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A FIFO, socket or device is neither read nor written."""
    monkeypatch.chdir(tmp_path)
    path = special_file(kind)
    with pytest.raises(OSError, match="a FIFO, socket or device, not a regular file"):
        read_file(path)
    with pytest.raises(OSError, match="a FIFO, socket or device, not a regular file"):
        write_file(path, b"x")


# write_file


def test_write_makes_directories(tmp_path: Path) -> None:
    """Missing directories above the file are made; nothing else is left beside it."""
    write_file(str(tmp_path / "a/b/f"), b"\x00\xff")
    assert (tmp_path / "a/b/f").read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path / "a/b") == ["f"]


def test_write_text(tmp_path: Path) -> None:
    """Text is UTF-8, with its line ends kept and surrogateescape undone."""
    write_file(str(tmp_path / "f"), "é\r\n\udcff")
    assert (tmp_path / "f").read_bytes() == b"\xc3\xa9\r\n\xff"


def test_write_replaces(tmp_path: Path) -> None:
    """A longer file that was there is replaced whole."""
    (tmp_path / "f").write_bytes(b"old and long")
    write_file(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


def permissions(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_write_permissions(tmp_path: Path) -> None:
    """A new file gets what the umask gives, an old one keeps its own, and mode sets them exactly."""
    path = tmp_path / "f"
    (tmp_path / "reference").touch()
    write_file(str(path), "1")
    assert permissions(path) == permissions(tmp_path / "reference")
    path.chmod(0o751)
    write_file(str(path), "2")
    assert permissions(path) == 0o751
    write_file(str(path), "3", mode=0o666)
    assert permissions(path) == 0o666
    write_file(str(tmp_path / "script"), "#!/bin/sh\necho ran\n", mode=0o755)
    assert bash("./script", cwd=str(tmp_path)).stdout == "ran\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_write_keeps_the_owner(tmp_path: Path) -> None:
    """A file that belongs to somebody else stays theirs."""
    (tmp_path / "f").touch()
    os.chown(tmp_path / "f", 12345, 12346)
    write_file(str(tmp_path / "f"), b"x")
    assert ((tmp_path / "f").stat().st_uid, (tmp_path / "f").stat().st_gid) == (12345, 12346)


def test_write_is_atomic(tmp_path: Path) -> None:
    """A reader that overlaps with writers never sees half a file."""
    path = str(tmp_path / "f")
    write_file(path, b"0" * 500_000)
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write_file, path, bytes([48 + n]) * 500_000) for n in range(10) for _ in range(5)]
        while not all(writer.done() for writer in writers):
            data = read_file(path)
            assert (len(data), len(set(data))) == (500_000, 1)
    assert [writer.result() for writer in writers] == [None] * 50
    assert os.listdir(tmp_path) == ["f"]


def test_write_through_a_link(tmp_path: Path) -> None:
    """A symbolic link stays one, and what it points to is written, also where that isn't there yet."""
    (tmp_path / "link").symlink_to("there/real")
    for data in (b"1", b"2"):
        write_file(str(tmp_path / "link"), data)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there/real").read_bytes() == data


def test_write_where_renaming_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can't be replaced, such as a mount of its own, is written in place."""

    def busy(source: str, target: str) -> None:
        raise OSError(16, "Device or resource busy", source)

    path = tmp_path / "hosts"
    path.write_bytes(b"old and long")
    inode = path.stat().st_ino
    monkeypatch.setattr(files.os, "replace", busy)
    write_file(str(path), b"new", mode=0o640)
    assert (path.read_bytes(), path.stat().st_ino, permissions(path)) == (b"new", inode, 0o640)
    with pytest.raises(OSError, match="busy"):
        write_file(str(tmp_path / "other"), b"new")
    assert os.listdir(tmp_path) == ["hosts"]


def test_write_longest_name(tmp_path: Path) -> None:
    """A name as long as a file system takes is no trouble."""
    write_file(str(tmp_path / ("n" * 255)), b"x")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"x"


def test_write_onto_a_directory(tmp_path: Path) -> None:
    """A directory, or a path that names one, is refused."""
    for path in (str(tmp_path), f"{tmp_path}/new/", ""):
        with pytest.raises(IsADirectoryError):
            write_file(path, b"x")
    assert os.listdir(tmp_path) == []


def test_write_below_a_file(tmp_path: Path) -> None:
    """A file where a directory must be is named."""
    (tmp_path / "f").touch()
    with pytest.raises((NotADirectoryError, FileExistsError), match="/f"):
        write_file(str(tmp_path / "f/g"), b"x")


def test_write_what_is_no_data(tmp_path: Path) -> None:
    """Anything but bytes and text is refused, and nothing is made."""
    with pytest.raises(TypeError, match="data is dict: give bytes or str"):
        write_file(str(tmp_path / "f"), {})  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
