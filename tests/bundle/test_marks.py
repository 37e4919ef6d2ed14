"""Bundle volumes that live processes use are left alone, also while no container mounts them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from agentix_runner import DockerProvider, SandboxConfig
from agentix_runner.bundle import BUNDLE_LABEL, DIGEST_LABEL, marks, mount
from agentix_runner.errors import SandboxStartError

from ..support import docker_functions as there
from ..support.docker_tools import containers_of


def is_free(volume: str) -> bool:
    with marks.unmarked(volume) as free:
        return free


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "volumes"


def test_a_volume_is_marked_while_anybody_uses_it(cache: Path) -> None:
    """Until the last one has let go of it, or nobody has the mark any more; no file is left then."""
    first, second = marks.mark("v"), marks.mark("v")
    assert first is not None
    assert second is not None
    assert (is_free("v"), is_free("other")) == (False, True)
    first.release()
    first.release()
    assert is_free("v") is False
    assert os.listdir(cache) == ["v"]
    del second
    gc.collect()
    assert is_free("v") is True
    assert os.listdir(cache) == []


def test_a_killed_process_has_no_mark(cache: Path) -> None:
    """kill -9 of a process that uses a volume frees it; while it lives, its forks leave the mark as it is."""
    code = (
        "import os, time\nfrom agentix_runner.bundle import marks\nkept = marks.mark('v')\n"
        "if os.fork() == 0:\n    del kept\n    os._exit(0)\n"
        "os.wait()\nprint('ready', flush=True)\ntime.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert is_free("v") is False
        finally:
            process.send_signal(signal.SIGKILL)
    assert is_free("v") is True


def test_without_a_cache_folder_nothing_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What protects a volume then are its image and its containers; that it can't be marked is no error."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path / "file"))
    assert marks.mark("v") is None
    assert is_free("v") is True


@pytest.fixture
def own_bundle(engine: docker.DockerClient, suite_bundle: str) -> Iterator[str]:
    """A bundle image with a digest of its own, so that its volume is nobody else's."""
    tag = f"agentix-test/marked:{secrets.token_hex(6)}"
    digest = secrets.token_hex(32)
    lines = f"FROM {suite_bundle}\nLABEL {DIGEST_LABEL}=sha256:{digest}\n"
    engine.images.build(fileobj=io.BytesIO(lines.encode()), tag=tag, rm=True, forcerm=True)
    yield tag
    with contextlib.suppress(docker.errors.ImageNotFound):
        engine.images.remove(tag, force=True)
    for volume in engine.volumes.list():
        if digest[:24] in volume.name:
            volume.remove()


def test_a_live_process_keeps_its_volume_between_sandboxes(
    engine: docker.DockerClient, busybox: str, own_bundle: str
) -> None:
    """`agentix clean` at a moment when a run has no container leaves its volume, though the image is gone. When nobody
    uses it any more it is removed."""
    digest = engine.images.get(own_bundle).labels[DIGEST_LABEL].rpartition(":")[2][:24]

    def removed() -> list[str]:
        return [name for name in mount.remove_unused_volumes(engine) if digest in name]

    provider = DockerProvider()
    config = SandboxConfig(image=busybox, bundle=own_bundle)
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
    engine.images.remove(own_bundle, force=True)
    assert containers_of(engine) == []
    assert [name for name in mount.unused_volumes(engine) if digest in name] == []
    assert removed() == []
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
    del provider, sandbox
    gc.collect()
    assert len(removed()) == 2


def test_an_empty_volume_in_the_place_of_a_removed_one_is_unused(
    engine: docker.DockerClient, busybox: str, own_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine makes one when a container is to mount what is gone. It has our label, so that `agentix clean` takes
    it."""
    provider = DockerProvider()
    config = SandboxConfig(image=busybox, bundle=own_bundle)
    with provider.session(config) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
    volume = mount.bundle_volume(engine, own_bundle)
    engine.api.remove_volume(volume)

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        raise docker.errors.APIError("the engine ends here")

    with monkeypatch.context() as patch:
        patch.setattr(docker.api.APIClient, "start", start)
        with pytest.raises(SandboxStartError, match="the engine ends here"):
            provider.session(config).__enter__()
    assert engine.api.inspect_volume(volume)["Labels"] == {BUNDLE_LABEL: "1"}
    del provider, sandbox
    gc.collect()
    assert volume in mount.remove_unused_volumes(engine)
