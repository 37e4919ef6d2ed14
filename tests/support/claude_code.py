"""The real `claude` CLI for tests, from the npm registry, in a bundle made by `agentix build --add`.

It is downloaded (186 MB) where AGENTIX_REQUIRE_SWE=1, as in CI, or by hand: `python -m tests.support.claude_code`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from click.testing import CliRunner

from agentix_runner.bundle.mount import _pointer_name, bundle_volume
from agentix_runner.cli.build import build

from .swe_example import missing, required

VERSION = "2.1.332"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def cached() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "agentix-tests" / f"claude-code-{VERSION}" / "claude"


def download() -> Path:
    """The CLI's binary. Raises OSError or SubprocessError where npm can't bring it."""
    target = cached()
    if not target.exists():
        package = f"@anthropic-ai/claude-code-linux-{_MACHINES[platform.machine()]}@{VERSION}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            command = ["npm", "pack", package, "--silent", "--pack-destination", folder]
            subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL, timeout=600)
            [archive] = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as tar:
                source = tar.extractfile("package/claude")
                assert source is not None
                with source, open(Path(folder, "claude"), "wb") as file:
                    shutil.copyfileobj(source, file)
            os.chmod(file.name, 0o755)
            os.replace(file.name, target)
    return target


@pytest.fixture(scope="session")
def claude_bundle(engine: docker.DockerClient) -> Iterator[str]:
    """A bundle with the CLI in it. It is large, so it goes at the end."""
    if not cached().exists() and not required():
        pytest.skip("the claude CLI is not here: python -m tests.support.claude_code downloads it (186 MB)")
    try:
        binary = download()
    except (OSError, subprocess.SubprocessError, KeyError) as error:
        missing(f"npm can't bring the claude CLI: {error}")
    tag = f"agentix-test/claude:{os.getpid()}"
    arguments = ["-t", tag, "--from-host", "--quiet", "--add", f"{binary}:claude/claude"]
    done = CliRunner().invoke(build, arguments)
    assert done.exit_code == 0, done.output
    volume = bundle_volume(engine, tag)
    pointer = _pointer_name(engine.images.get(tag).labels["agentix.bundle.digest"])
    try:
        yield tag
    finally:
        engine.images.remove(tag, force=True)
        for name in (pointer, volume):
            with contextlib.suppress(docker.errors.NotFound):
                engine.volumes.get(name).remove(force=True)


if __name__ == "__main__":
    print(download(), file=sys.stderr)
