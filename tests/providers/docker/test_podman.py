"""Podman's socket in the place of docker's, on a podman service of these tests' own. Skipped without podman."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentix_runner import DockerProvider, SandboxConfig
from agentix_runner.errors import SandboxDied, SandboxStartError

from ...conftest import eventually
from ...support import docker_functions as there
from ...support import wire_functions as wire
from ...support.background import in_background
from ...support.docker_tools import containers_of
from ...support.images import BUSYBOX, ensure

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("podman") is None, reason="there is no podman here: apt-get install podman"),
    pytest.mark.skipif(os.geteuid() != 0, reason="podman's service is started as root here"),
]

HOST = """
import sys
from agentix_runner import DockerProvider, SandboxConfig
from tests.support import docker_functions as there
with DockerProvider().session(SandboxConfig(image=sys.argv[1])) as sandbox:
    call = in_background(sandbox.remote, there.sleep, 300)
    print("ready", flush=True)
    call.result()
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[str]:
    """The address of a podman service, in DOCKER_HOST too. It has the smallest image."""
    # Not below pytest's folder: the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="agentix-podman-"))
    # Podman's own limits are higher than those that some machines allow.
    (folder / "containers.conf").write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
    env = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
    base = ["podman", "--root", str(folder / "root"), "--runroot", str(folder / "run"), "--cgroup-manager", "cgroupfs"]
    url = f"unix://{folder}/podman.sock"
    with open(folder / "log", "wb") as log:
        service = subprocess.Popen([*base, "system", "service", "--time=0", url], env=env, stdout=log, stderr=log)
    try:
        eventually((folder / "podman.sock").exists, 60)
        client = docker.DockerClient(base_url=url, timeout=120)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", url)
            ensure(client, BUSYBOX)
            yield url
        client.close()
    finally:
        service.terminate()
        service.wait(60)
        subprocess.run([*base, "system", "reset", "--force"], env=env, capture_output=True, timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def client(podman: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=podman, timeout=120)
    yield client
    client.close()


def test_a_sandbox_on_podman(client: docker.DockerClient) -> None:
    """The default bundle is made, functions run, an end is told with its code at once, and nothing is left."""
    provider = DockerProvider(memory="256m", start_timeout=60)
    config = SandboxConfig(image=BUSYBOX)
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
        assert sandbox.remote(there.facts).interfaces == ["lo"]
        call = in_background(sandbox.remote, there.sleep, 300)
        client.api.kill(containers_of(client)[0]["Id"])
        error = call.exception(60)
    assert isinstance(error, SandboxDied)
    assert error.exit_code == -signal.SIGKILL
    with provider.session(config) as sandbox, pytest.raises(SandboxDied) as caught:
        sandbox.remote(wire.exit_hard, 3)
    assert caught.value.exit_code == 3
    assert containers_of(client) == []


def test_a_killed_host_leaves_no_container_on_podman(client: docker.DockerClient, podman: str, tmp_path: Path) -> None:
    """kill -9 of the host ends its sandbox there too."""
    script = tmp_path / "host.py"
    script.write_text(textwrap.dedent(HOST))
    env = {**os.environ, "DOCKER_HOST": podman, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), BUSYBOX]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True)
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        assert len(containers_of(client, host.pid)) == 1
    finally:
        host.kill()
        host.wait(60)
        if host.stdout is not None:
            host.stdout.close()
    eventually(lambda: containers_of(client, host.pid) == [], 60)


def test_a_runtime_that_podman_passes_over_is_an_error(client: docker.DockerClient, podman: str) -> None:
    """Its API takes a runtime and ignores it: a sandbox that is less isolated than was asked is none."""
    with pytest.raises(SandboxStartError, match=r"does not take 'runsc' as a container's runtime .*containers\.conf"):
        DockerProvider(runtime="runsc").session(SandboxConfig(image=BUSYBOX)).__enter__()
    assert containers_of(client) == []
