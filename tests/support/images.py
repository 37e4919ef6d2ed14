"""Images for tests, made on this machine: no registry is asked. Kept in the engine under their tags.

    EMPTY     nothing that could run: one text file
    BUSYBOX   a static busybox (sh, ls, ...), no libc, no Python, no /etc
    DEBIAN    Debian with git, without Python
    PYTHON    the same with its python3, venv and pip: a base for `agentix build --base`

BUSYBOX takes Debian's busybox-static; DEBIAN and PYTHON root, debootstrap and half a minute. conftest makes those that
a run needs before its first test; `python -m tests.support.images [NAME ...]` makes them by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import docker.errors
import pytest

from .engine import skip_or_fail

EMPTY = "agentix-test/empty:1"
BUSYBOX = "agentix-test/busybox:1"
DEBIAN = "agentix-test/debian:1"
PYTHON = "agentix-test/python:2"

SUITE = "bookworm"
_EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
_LIMIT_S = 900


class CannotMake(Exception):
    """A test image can't be made here; the message says what is missing."""


def ensure(client: docker.DockerClient, tag: str) -> str:
    """Make the image `tag` where the engine does not have it; return the tag.

    Raises:
        CannotMake: something that it takes is missing here.
    """
    if _there(client, tag):
        return tag
    with one_at_a_time():
        if not _there(client, tag):
            {EMPTY: _make_empty, BUSYBOX: _make_busybox}.get(tag, _make_debian)(client, tag)
    return tag


@pytest.fixture(scope="session")
def busybox(engine: docker.DockerClient) -> str:
    """The image that holds nothing but a static busybox."""
    return _ensured(engine, BUSYBOX)


@pytest.fixture(scope="session")
def empty(engine: docker.DockerClient) -> str:
    """The image in which nothing can run."""
    return _ensured(engine, EMPTY)


@pytest.fixture(scope="session")
def debian(engine: docker.DockerClient) -> str:
    """Debian with git, without Python."""
    return _ensured(engine, DEBIAN)


@pytest.fixture(scope="session")
def debian_python(engine: docker.DockerClient) -> str:
    """Debian with its own Python."""
    return _ensured(engine, PYTHON)


def _ensured(client: docker.DockerClient, tag: str) -> str:
    try:
        return ensure(client, tag)
    except CannotMake as error:
        skip_or_fail(f"the test image {tag} can't be made: {error}")


def _there(client: docker.DockerClient, tag: str) -> bool:
    try:
        client.images.get(tag)
    except docker.errors.ImageNotFound:
        return False
    return True


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Several test processes may want the same image at once."""
    with open(Path(tempfile.gettempdir()) / "agentix-test-images.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _import(client: docker.DockerClient, stream: object, tag: str, command: str) -> None:
    # The tag with the name: podman does not look at the other parameter.
    client.api.import_image_from_data(stream, repository=tag, changes=[f"CMD {command}"])
    if not _there(client, tag):
        raise CannotMake("the engine took the root file system but made no image of it")


def _make_empty(client: docker.DockerClient, tag: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        text = b"An image in which nothing can run.\n"
        member = tarfile.TarInfo("empty.txt")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    _import(client, data.getvalue(), tag, '["/nothing"]')


def _make_busybox(client: docker.DockerClient, tag: str) -> None:
    busybox_path = next((path for path in ("/bin/busybox", "/usr/bin/busybox") if os.access(path, os.X_OK)), None)
    if busybox_path is None:
        raise CannotMake("there is no /bin/busybox: apt-get install busybox-static")
    applets = subprocess.run([busybox_path, "--list"], capture_output=True, text=True, timeout=60, check=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("tmp", 0o1777)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        program = Path(busybox_path).read_bytes()
        if b"/ld-linux" in program or b"/ld-musl" in program:
            raise CannotMake("busybox is not a static one: apt-get install busybox-static")
        member = tarfile.TarInfo("bin/busybox")
        member.size, member.mode = len(program), 0o755
        tar.addfile(member, io.BytesIO(program))
        for applet in sorted(set(applets.stdout.split()) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    _import(client, data.getvalue(), tag, '["/bin/sh"]')


def _make_debian(client: docker.DockerClient, tag: str) -> None:
    # Both: the second one is the first with three packages more.
    if os.geteuid() != 0:
        raise CannotMake("debootstrap takes root")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if shutil.which("debootstrap") is None:
        raise CannotMake("there is no debootstrap: apt-get install debootstrap")
    # In memory where that is possible: dpkg waits for the disk after each file. Not below the test's own temporary
    # folder: pytest keeps those of several runs.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 4 << 30 else None
    with tempfile.TemporaryDirectory(prefix="agentix-debootstrap-", dir=memory) as folder:
        root = Path(folder) / "root"
        _run("debootstrap", "--variant=minbase", "--include=git", SUITE, str(root))
        _import_root(client, root, DEBIAN)
        install = ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends"]
        _run("chroot", str(root), *install, "python3", "python3-venv", "python3-pip")
        _import_root(client, root, PYTHON)


def _run(*command: str) -> None:
    made = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
    )
    if made.returncode != 0:
        end = made.stdout.decode(errors="replace").strip().splitlines()[-3:]
        raise CannotMake(f"{command[0]} ended with {made.returncode}: {' / '.join(end)}")


def _import_root(client: docker.DockerClient, root: Path, tag: str) -> None:
    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if os.path.dirname(member.name) in _EMPTIED else member

    with tempfile.TemporaryFile(dir=root.parent) as stream:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name in sorted(set(os.listdir(root)) - {"dev", "proc", "sys"}):
                tar.add(root / name, arcname=name, filter=kept)
        stream.seek(0)
        _import(client, stream, tag, '["/bin/bash"]')


def main(names: list[str]) -> int:
    """Make the images `names` ("busybox", "debian", ...), or all of them; print each tag."""
    tags = {tag.split("/")[1].split(":")[0]: tag for tag in (EMPTY, BUSYBOX, DEBIAN, PYTHON)}
    unknown = [name for name in names if name not in tags]
    if unknown:
        print(f"images: {unknown[0]} is not known; known are {', '.join(tags)}", file=sys.stderr)
        return 2
    client = docker.from_env(timeout=600)
    try:
        for name in names or tags:
            print(ensure(client, tags[name]), flush=True)
    except CannotMake as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
