"""An engine that goes away and comes back, or does not answer. On an engine of this test's own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest

from agentix_runner import AgentResult, DockerProvider, RetryPolicy, Rollout, SandboxConfig, run_rollouts
from agentix_runner.errors import BadArgument, SandboxDied, SandboxError, SandboxStartError

from ...conftest import eventually
from ...support import docker_functions as there
from ...support.background import in_background
from ...support.docker_tools import containers_of
from ...support.engine import skip_or_fail
from ...support.fakes import PlainAgent, PlainDataset, Solver
from ...support.images import BUSYBOX, ensure

SCRIPT = Path(__file__).parents[3] / ".ci" / "engine.sh"


class OwnEngine:
    """A dockerd to stop and start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        settings = {"DATA": self.folder / "data", "RUN": self.folder / "run", "UNSHARE": 1}
        env = {**os.environ, "DOCKER_HOST": self.url, **{f"AGENTIX_ENGINE_{k}": str(v) for k, v in settings.items()}}
        return subprocess.run([str(SCRIPT), *args], env=env, capture_output=True, text=True, timeout=100)

    def start(self) -> None:
        done = self.run()
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        assert self.run("stop").returncode == 0

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.url, timeout=60)


@pytest.fixture(scope="module")
def own(engine: docker.DockerClient, suite_bundle: str) -> Iterator[OwnEngine]:
    """The engine, with the images of the shared one that these tests take."""
    if os.geteuid() != 0 or shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        skip_or_fail("an engine to stop and start takes root and dockerd")
    # Not below pytest's folder: the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="agentix-engine-"))
    own = OwnEngine(folder)
    try:
        own.start()
        client = own.client()
        try:
            ensure(client, BUSYBOX)
            list(client.api.load_image(b"".join(engine.images.get(suite_bundle).save(named=suite_bundle))))
        finally:
            client.close()
        yield own
    finally:
        own.run("stop")
        shutil.rmtree(folder)


class Data(PlainDataset):
    def image(self, instance: dict[str, Any]) -> str:
        return BUSYBOX


# docker-py leaves a socket that could not be connected to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.slow
def test_a_restart_of_the_engine_costs_the_rollouts_that_ran(own: OwnEngine, suite_bundle: str) -> None:
    """Those in the middle get an error; the making of further sandboxes is tried again until the engine is back."""
    provider = DockerProvider(client=own.client)
    running: list[str] = []
    restarted = threading.Event()

    def solve(sandbox: Any, instance: dict[str, Any]) -> AgentResult:
        if not restarted.is_set():
            running.append(instance["instance_id"])
            sandbox.remote(there.sleep, 300)
        return AgentResult(patch=f"patch {sandbox.remote(there.double, 21)}")

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            run_rollouts,
            dataset=Data(6),
            agent=Solver(solve),  # type: ignore[arg-type]
            provider=provider,
            bundle=suite_bundle,
            n_concurrent=2,
            retry=RetryPolicy(attempts=30, wait_initial=0.2, wait_max=1.0, wait_jitter=0.1),
        )
        eventually(lambda: len(running) == 2, 60)
        own.stop()
        restarted.set()
        own.start()
        rollouts: list[Rollout] = run.result(100)
    died = {rollout.instance_id: rollout.error for rollout in rollouts if rollout.error}
    assert sorted(died) == sorted(running)
    assert all((error or "").startswith("SandboxDied: ") for error in died.values()), died
    assert [rollout.patch for rollout in rollouts if rollout.instance_id not in died] == ["patch 42"] * 4
    client = own.client()
    eventually(lambda: containers_of(client) == [])
    client.close()
    gc.collect()


@pytest.mark.slow
def test_an_engine_that_stops_answering_hangs_nobody(own: OwnEngine, suite_bundle: str) -> None:
    """With the engine frozen a call ends by kill(), and the session's end comes back with an error in bounded time;
    the container is removed when the engine answers again."""
    provider = DockerProvider(client=partial(docker.DockerClient, base_url=own.url, timeout=2))
    config = SandboxConfig(image=BUSYBOX, bundle=suite_bundle)
    pid = int((own.folder / "run" / "dockerd.pid").read_text())
    session = provider.session(config)
    sandbox = session.__enter__()
    call = in_background(sandbox.remote, there.sleep, 300)
    os.kill(pid, signal.SIGSTOP)
    try:
        sandbox.kill()
        assert isinstance(call.exception(10), SandboxDied)
        with pytest.raises(SandboxError, match="could not be removed"):
            session.__exit__(None, None, None)
        with pytest.raises(SandboxStartError, match="took too long to") as caught:
            provider.session(config).__enter__()
        assert caught.value.transient is True
    finally:
        os.kill(pid, signal.SIGCONT)
    with provider.session(config) as again:
        assert again.remote(there.double, 21) == 42
    client = own.client()
    eventually(lambda: containers_of(client) == [])
    client.close()


@pytest.mark.slow
def test_a_removed_volume_is_made_again(own: OwnEngine, suite_bundle: str) -> None:
    """Where somebody has removed the bundle's volume meanwhile, the making of the sandbox is tried again and works."""
    provider = DockerProvider(client=own.client)
    config = SandboxConfig(image=BUSYBOX, bundle=suite_bundle)
    client = own.client()
    with provider.session(config):
        pass
    for volume in client.volumes.list():
        volume.remove()
    with pytest.raises(SandboxStartError, match="the bundle's volume is gone") as caught, provider.session(config):
        pass
    assert caught.value.transient is True
    assert client.volumes.list() == []
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
    client.close()


# --- no engine at all ---


def test_no_engine_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at the socket's place, or nobody behind it, is an error with the remedy, not worth another try."""
    config = SandboxConfig(image="x")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(SandboxStartError, match=r"no container engine answers at unix://.*/no.sock: start Docker, or"):
        DockerProvider().session(config).__enter__()
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(f"{tmp_path}/no.sock")
        with pytest.raises(SandboxStartError, match="no container engine answers") as caught:
            DockerProvider().session(config).__enter__()
    assert caught.value.transient is False
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(SandboxStartError, match=r"no container engine answers at tcp://127\.0\.0\.1:9"):
        DockerProvider().session(config).__enter__()


def test_a_run_without_an_engine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is run, and no run directory is made."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(BadArgument, match=r"^no container engine answers at unix://.*/no.sock: start Docker, or"):
        run_rollouts(dataset=PlainDataset(), agent=PlainAgent(), provider=DockerProvider(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_permission_is_a_clear_error(tmp_path: Path) -> None:
    """A socket that may not be used is an error that names the group."""
    path = tmp_path / "docker.sock"
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/tmp") and folder != Path("/"):
            os.chmod(folder, 0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        os.chmod(path, 0o600)
        code = (
            "import os; from agentix_runner import AgentResult, DockerProvider, SandboxConfig\n"
            "import docker, requests\n"
            "import agentix_runner.providers.docker.container, agentix_runner.providers.docker.sweep\n"
            "os.setuid(65534)\n"
            "try: DockerProvider().session(SandboxConfig(image='x')).__enter__()\n"
            "except Exception as error: print(type(error).__name__, error)\n"
        )
        env = {**os.environ, "DOCKER_HOST": f"unix://{path}", "HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"SandboxStartError no permission to use the container engine at unix://{path}: bec")


def test_an_engine_that_answers_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that takes connections and is silent costs one time limit."""
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        before = time.monotonic()
        with pytest.raises(SandboxStartError, match="took too long to be reached") as caught:
            DockerProvider(engine_timeout=0.3).session(SandboxConfig(image="x")).__enter__()
        assert time.monotonic() - before < 30
    assert caught.value.transient is True
