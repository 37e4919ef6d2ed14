"""What the tests of docker sandboxes share: a bundle with their functions, and a look at what is left behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from agentix_runner.bundle.default import default_bundle
from agentix_runner.bundle.image import build, find_project
from agentix_runner.bundle.tree import ThisPython
from agentix_runner.providers import owners

from .images import one_at_a_time
from .processes import eventually

HERE = Path(__file__).parent
REPOSITORY = "agentix-test/suite"
_FILES = ("__init__.py", "wire_functions.py", "docker_functions.py")


@pytest.fixture(scope="session")
def suite_bundle(engine: docker.DockerClient) -> str:
    """A bundle that has the modules of functions of these tests."""
    return ensure_suite_bundle(engine)


def ensure_suite_bundle(engine: docker.DockerClient) -> str:
    """Make the bundle, where the functions or the package have changed since it was made; return its tag."""
    with one_at_a_time():
        return _suite_bundle(engine)


def _suite_bundle(engine: docker.DockerClient) -> str:
    content = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _FILES)).hexdigest()[:16]
    tag = f"{REPOSITORY}:{default_bundle(engine).rpartition(':')[2][:16]}-{content}"
    try:
        engine.images.get(tag)
    except docker.errors.ImageNotFound:
        with tempfile.TemporaryDirectory() as folder:
            build(engine, ThisPython(), tag, project=find_project(_make_wheel(Path(folder))), pip_args=["--no-index"])
        # Loading doesn't tell when it was; tagging does.
        engine.api.tag(tag, REPOSITORY, tag.rpartition(":")[2])
        _forget_old(engine, tag)
    return tag


def _make_wheel(folder: Path) -> Path:
    """A project made of these tests' functions, without asking a build backend."""
    about = "suite-1.dist-info"
    path = folder / "suite-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(zipfile.ZipInfo("tests/__init__.py"), b"")
        for name in _FILES:
            wheel.writestr(zipfile.ZipInfo(f"tests/support/{name}"), (HERE / name).read_bytes())
        wheel.writestr(zipfile.ZipInfo(f"{about}/METADATA"), "Metadata-Version: 2.1\nName: suite\nVersion: 1\n")
        wheel.writestr(zipfile.ZipInfo(f"{about}/WHEEL"), "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(zipfile.ZipInfo(f"{about}/RECORD"), "")
    return path


def _forget_old(client: docker.DockerClient, current: str) -> None:
    """Keep a few: another checkout's tests may be using theirs."""
    # Another process may be removing the same ones.
    with contextlib.suppress(docker.errors.APIError):
        images = client.images.list(REPOSITORY)
        images.sort(key=lambda image: str(image.attrs.get("Metadata", {}).get("LastTagTime")), reverse=True)
        for image in images[4:]:
            for tag in image.tags:
                if tag.startswith(f"{REPOSITORY}:") and tag != current:
                    client.images.remove(tag)


def containers_of(client: docker.DockerClient, pid: int | None = None) -> list[dict[str, Any]]:
    """The containers that a process of this machine owns; this process by default."""
    mine = [f"{owners.PID}={os.getpid() if pid is None else pid}", f"{owners.HOST}={owners.host()}"]
    found: list[dict[str, Any]] = client.api.containers(all=True, filters={"label": mine})
    return found


def sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count


@pytest.fixture
def nothing_left(
    engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The test leaves no container, thread, socket or temporary file behind."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    # Its idle connections, that is: those of this client are not what is counted.
    engine.close()
    threads = set(threading.enumerate())
    before = sockets()
    yield
    # One that removes itself is in the engine's list for a moment after it can't be inspected any more.
    eventually(lambda: containers_of(engine) == [], 2)
    engine.close()
    eventually(lambda: set(threading.enumerate()) <= threads)
    eventually(lambda: sockets() <= before)
    assert os.listdir(temporary) == []
