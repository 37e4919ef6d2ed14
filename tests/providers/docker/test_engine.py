"""Which engine is used, and the ways there: contexts, DOCKER_HOST, TCP."""

from __future__ import annotations

import contextlib
import hashlib
import json
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentix_runner import DockerProvider, SandboxConfig
from agentix_runner.errors import SandboxDied, SandboxStartError
from agentix_runner.providers.docker.contexts import DEFAULT, Endpoint, find_endpoint
from agentix_runner.providers.docker.engine import _tls

from ...conftest import eventually
from ...support import docker_functions as there
from ...support.background import in_background
from ...support.docker_tools import containers_of


class Forwarder:
    """Another way to the engine's socket. `taken` is how many connections came by it."""

    def __init__(self, listening: socket.socket, target: str) -> None:
        self._listening = listening
        self._target = target
        self.taken = 0
        self._ends: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Forwarder:
        self._listening.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.taken += 1
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far, selectors.DefaultSelector() as ready:
            far.connect(self._target)
            self._ends |= {near, far}
            others = {near: far, far: near}
            for end in others:
                ready.register(end, selectors.EVENT_READ)
            while ready.get_map():
                for key, _ in ready.select():
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    with contextlib.suppress(OSError):
                        data = end.recv(65536)
                        if data:
                            others[end].sendall(data)
                            continue
                    ready.unregister(end)
                    with contextlib.suppress(OSError):
                        others[end].shutdown(socket.SHUT_WR)
            self._ends -= {near, far}


@pytest.fixture
def target(engine: docker.DockerClient) -> str:
    """The path of the engine's own socket."""
    path = getattr(getattr(engine.api, "_custom_adapter", None), "socket_path", None)
    if path is None:
        pytest.skip("the tests' engine has no Unix socket")
    return str(path)


@pytest.fixture
def second(target: str) -> Iterator[tuple[str, Forwarder]]:
    """Another socket of the engine: its address, and what goes through it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/second.sock")
        with Forwarder(listening, target) as forwarder:
            yield f"unix://{folder}/second.sock", forwarder


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of docker's settings of the test's own; nothing else says where the engine is."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker"


def add_context(settings: Path, name: str, **endpoint: object) -> Path:
    """A context, as docker writes it; the folder that its certificates would be in."""
    key = hashlib.sha256(name.encode()).hexdigest()
    folder = settings / "contexts" / "meta" / key
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    return settings / "contexts" / "tls" / key / "docker"


def use(busybox: str, bundle: str) -> int:
    with DockerProvider().session(SandboxConfig(image=busybox, bundle=bundle)) as sandbox:
        return sandbox.remote(there.double, 21)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", ["variable", "current"])
def test_the_context_is_used(
    settings: Path,
    second: tuple[str, Forwarder],
    busybox: str,
    suite_bundle: str,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DOCKER_CONTEXT, and without it the current context, say where the engine is; no config.json is needed."""
    url, forwarder = second
    add_context(settings, "second", Host=url, SkipTLSVerify=False)
    if how == "variable":
        monkeypatch.setenv("DOCKER_CONTEXT", "second")
    else:
        (settings / "config.json").write_text('{"auths": {}, "currentContext": "second"}')
    assert use(busybox, suite_bundle) == 42
    assert forwarder.taken > 0


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker command here")
def test_what_docker_has_written_is_understood(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts made and chosen by docker's own command are found as it finds them."""
    for command in (["create", "mine", "--docker", "host=tcp://192.0.2.1:2375"], ["use", "mine"]):
        subprocess.run(["docker", "context", *command], check=True, capture_output=True, timeout=60)
    assert find_endpoint() == Endpoint(url="tcp://192.0.2.1:2375")
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert find_endpoint() == Endpoint(url=DEFAULT)


def test_what_takes_precedence(settings: Path) -> None:
    """DOCKER_HOST goes before DOCKER_CONTEXT, and that before the current context; "default" is the usual socket."""
    add_context(settings, "a", Host="unix:///a.sock")
    add_context(settings, "b", Host="unix:///b.sock")
    env = {"DOCKER_CONFIG": str(settings)}
    assert find_endpoint(env).url == DEFAULT
    (settings / "config.json").write_text('{"currentContext": "a"}')
    assert find_endpoint(env).url == "unix:///a.sock"
    assert find_endpoint({**env, "DOCKER_CONTEXT": "b"}).url == "unix:///b.sock"
    assert find_endpoint({**env, "DOCKER_CONTEXT": "default"}).url == DEFAULT
    host = find_endpoint({**env, "DOCKER_CONTEXT": "no", "DOCKER_HOST": "tcp://c:1"})
    assert (host.url, host.from_environment) == ("tcp://c:1", True)


def test_a_contexts_certificates_are_used(settings: Path) -> None:
    """Those that docker keeps for a context identify this end and check the other, unless that is not wanted."""
    folder = add_context(settings, "tls", Host="tcp://192.0.2.1:2376", SkipTLSVerify=False)
    folder.mkdir(parents=True)
    for kind in ("ca", "cert", "key"):
        (folder / f"{kind}.pem").write_text("")
    tls = _tls(find_endpoint({"DOCKER_CONFIG": str(settings), "DOCKER_CONTEXT": "tls"}))
    assert tls.cert == (str(folder / "cert.pem"), str(folder / "key.pem"))
    assert (tls.verify, tls.ca_cert) == (True, str(folder / "ca.pem"))
    add_context(settings, "lax", Host="tcp://192.0.2.1:2376", SkipTLSVerify=True)
    lax = _tls(find_endpoint({"DOCKER_CONFIG": str(settings), "DOCKER_CONTEXT": "lax"}))
    assert (lax.cert, lax.verify) == (None, False)
    assert _tls(Endpoint(url="tcp://192.0.2.1:2375")) is False


@pytest.mark.parametrize(
    ("context", "text", "message"),
    [
        ("gone", "{}", r"there is no docker context 'gone' in .*: give one of `docker context ls`"),
        ("", "{", r"docker's settings in .*config\.json can't be read: "),
        ("", '{"currentContext": "x"}', "there is no docker context 'x'"),
    ],
)
def test_a_context_that_is_not_there_is_a_clear_error(
    settings: Path, monkeypatch: pytest.MonkeyPatch, context: str, text: str, message: str
) -> None:
    """No other engine is used in its place; it is one line, and not worth another try."""
    monkeypatch.setenv("DOCKER_CONTEXT", context)
    (settings / "config.json").write_text(text)
    with pytest.raises(SandboxStartError, match=message) as caught:
        DockerProvider().session(SandboxConfig(image="x")).__enter__()
    assert caught.value.transient is False
    assert "\n" not in str(caught.value)


def test_ssh_is_a_clear_error(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine behind ssh is told how to be reached: its socket is forwarded."""
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@there:22/run/x.sock")
    remedy = r"`ssh -nNT -L /tmp/docker\.sock:/run/x\.sock ssh://me@there:22`\), and set DOCKER_HOST=unix:"
    with pytest.raises(SandboxStartError, match=remedy):
        DockerProvider().session(SandboxConfig(image="x")).__enter__()


@pytest.mark.usefixtures("nothing_left")
def test_an_engine_on_tcp(
    engine: docker.DockerClient, target: str, busybox: str, suite_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOCKER_HOST=tcp://... works like a socket: calls, large results, an end that is told, a kill that wakes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        with Forwarder(listening, target) as forwarder:
            monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{listening.getsockname()[1]}")
            provider = DockerProvider()
            config = SandboxConfig(image=busybox, bundle=suite_bundle)
            with provider.session(config) as sandbox:
                assert sandbox.remote(there.double, 21) == 42
                assert len(sandbox.remote(there.zeros, 20_000_000)) == 20_000_000
                call = in_background(sandbox.remote, there.sleep, 300)
                engine.api.kill(containers_of(engine)[0]["Id"])
                error = call.exception(60)
                assert isinstance(error, SandboxDied)
                assert error.exit_code == -9
            with provider.session(config) as sandbox:
                call = in_background(sandbox.remote, there.sleep, 300)
                sandbox.kill()
                assert isinstance(call.exception(60), SandboxDied)
            assert forwarder.taken > 0
            eventually(lambda: containers_of(engine) == [])
