"""The script that starts an engine for the tests: it leaves other engines, and what is theirs, alone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "engine.sh"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin") is None,
        reason="starting an engine takes root and dockerd",
    ),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not below pytest's folder: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="agentix-engine-") as name:
        yield Path(name)


def engine_script(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("AGENTIX_ENGINE_")}
    env |= {"DOCKER_HOST": f"unix://{folder}/docker.sock"}
    env |= {"AGENTIX_ENGINE_DATA": str(folder / "data"), "AGENTIX_ENGINE_RUN": str(folder / "run")}
    return subprocess.run([str(SCRIPT), *args], env=env, capture_output=True, text=True, timeout=100)


def test_a_second_engine_leaves_the_firsts_bridge_alone(engine: docker.DockerClient, folder: Path) -> None:
    """Beside another engine it runs in a network namespace of its own, also where nobody has asked for that."""
    bridge = Path("/sys/class/net/docker0/ifindex")
    if not bridge.exists():
        pytest.skip("the first engine has no docker0 in this network namespace")
    before = bridge.read_text()
    try:
        done = engine_script(folder)
        assert done.returncode == 0, done.stderr
        assert "in a network namespace of its own" in done.stderr
        pid = (folder / "run" / "dockerd.pid").read_text()
        assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
        assert bridge.read_text() == before
    finally:
        assert engine_script(folder, "stop").returncode == 0
    assert bridge.read_text() == before
    assert engine.ping() is True


def test_a_socket_of_somebody_else_is_not_taken_away(folder: Path) -> None:
    """Where somebody listens and does not answer, nothing is started."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "docker.sock"))
        silent.listen()
        done = engine_script(folder)
    assert done.returncode == 1
    assert "somebody listens at" in done.stderr
    assert not (folder / "run" / "dockerd.pid").exists()
