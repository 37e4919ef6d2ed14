"""An interpreter from a base image: what runs on it runs in a container of that image, which is removed at the end.

The container gets the network, because pip needs it, and this process's settings for pip and proxies. What comes out
of it is unpacked with care, and never run here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ..errors import BundleError
from .interpreter import CannotCollect
from .layers import unpack

if TYPE_CHECKING:
    import docker

_HOME = "/agentix-build"
_LIMIT_S = 7200.0
_PASSED_ON = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_TRUSTED_HOST",
)  # fmt: skip
_MAX_FACTS = 1 << 20
_PACKAGE = Path(__file__).resolve().parent.parent
_RUNS_THERE = (
    "__init__.py", "_version.py", "bundle/__init__.py", "bundle/interpreter.py", "bundle/elf.py", "bundle/inside.py",
    "bundle/project.py",
)  # fmt: skip


class BaseImage:
    """The interpreter of the image `image`, pulled where the engine does not have it. `python` is the X.Y that it must
    be, None for any.

    Raises:
        BundleError: there is no such image, or it can't be pulled.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        image: str,
        *,
        platform: str | None = None,
        python: str | None = None,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.client = client
        self.image = image
        self.platform = platform
        self.python = python
        attributes = self._image(on_line)
        self.id: str = attributes["Id"]
        name, variant = attributes.get("Architecture") or "", attributes.get("Variant") or ""
        self.architecture = f"{name}/{variant}" if variant else name

    def key(self) -> str:
        return f"base {self.id}"

    def gather(self, spec: dict[str, Any], work: Path, on_line: Callable[[str], None]) -> dict[str, Any]:
        from docker.errors import DockerException
        from requests import RequestException

        inside = json.loads(json.dumps(spec).replace(json.dumps(str(work))[1:-1], _HOME))
        try:
            with self._container() as name:
                self._send(name, work, inside)
                self.client.api.start(name)
                status, last = self._follow(name, on_line)
                if status != 0:
                    raise CannotCollect(f"in {self.image}: {last.removeprefix('agentix: ') or f'exit code {status}'}")
                self._fetch(name, work)
        except (DockerException, RequestException) as error:
            why = " ".join(str(getattr(error, "explanation", None) or error).split())[-300:]
            raise CannotCollect(f"python3 of {self.image} can't be run in a container: {why}") from error
        facts_file = work / "out" / "facts.json"
        if not facts_file.is_file() or facts_file.stat().st_size > _MAX_FACTS:
            raise CannotCollect(f"{self.image} gave no facts about its Python")
        facts: dict[str, Any] = json.loads(facts_file.read_text())
        if self.python is not None and not f"{facts['version']}.".startswith(f"{self.python}."):
            raise CannotCollect(f"the Python of {self.image} is {facts['version']}, not {self.python}")
        return facts

    def _image(self, on_line: Callable[[str], None]) -> dict[str, Any]:
        from docker.errors import DockerException, ImageNotFound
        from requests import RequestException

        try:
            with contextlib.suppress(ImageNotFound):
                found: dict[str, Any] = self.client.api.inspect_image(self.image)
                wanted = (self.platform or "").split("/")
                if len(wanted) < 2 or wanted[1] == found.get("Architecture"):
                    return found
            on_line(f"pulling {self.image}")
            pulled: dict[str, Any] = self.client.images.pull(
                self.image, tag=None if ":" in self.image.rpartition("/")[2] else "latest", platform=self.platform
            ).attrs
            return pulled
        except (DockerException, RequestException) as error:
            why = " ".join(str(getattr(error, "explanation", None) or error).split())[:500]
            raise BundleError(
                f"the base image {self.image} is not here and can't be pulled ({why}): name another with --base, or "
                "use --from-host"
            ) from error

    @contextlib.contextmanager
    def _container(self) -> Iterator[str]:
        from ..providers.owners import owner

        name = f"agentix-build-{secrets.token_hex(6)}"
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        try:
            self.client.api.create_container(
                self.id,
                entrypoint=["python3"],
                command=["-s", "-m", "agentix_runner.bundle.inside", f"{_HOME}/spec.json"],
                name=name,
                user="0:0",
                working_dir="/",
                environment={
                    **environment,
                    "PYTHONPATH": f"{_HOME}/code",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "HOME": _HOME,
                },
                labels={"agentix.bundle.build": name, **owner()},
            )
            yield name
        finally:
            self._remove(name)

    def _remove(self, name: str) -> None:
        from docker.errors import DockerException
        from requests import RequestException

        with contextlib.suppress(DockerException, RequestException):
            self.client.api.remove_container(name, force=True, v=True)

    def _send(self, name: str, work: Path, spec: dict[str, Any]) -> None:
        """Put the spec, the code that reads it, and all that lies in `work` into the container."""
        (work / "spec.json").write_text(json.dumps(spec))
        packed = work.parent / f"{work.name}.sent.tar"
        try:
            with tarfile.open(packed, "w") as tar:
                tar.add(work, arcname=_HOME.strip("/"), filter=_as_root)
                for relative in _RUNS_THERE:
                    tar.add(
                        _PACKAGE / relative,
                        arcname=f"{_HOME.strip('/')}/code/agentix_runner/{relative}",
                        filter=_as_root,
                    )
            with open(packed, "rb") as file:
                self.client.api.put_archive(name, "/", file)
        finally:
            packed.unlink(missing_ok=True)

    def _fetch(self, name: str, work: Path) -> None:
        """Bring what was made, and only that."""
        stream, _ = self.client.api.get_archive(name, f"{_HOME}/out")
        (work / "out").rmdir()
        try:
            unpack(cast("IO[bytes]", _Reader(stream)), work)
        except (ValueError, tarfile.TarError, OSError) as error:
            raise CannotCollect(f"what {self.image} gave can't be unpacked: {error}") from error

    def _follow(self, name: str, on_line: Callable[[str], None]) -> tuple[int, str]:
        """Tell what the container prints until it ends. Returns its exit code and its last line."""
        from docker.errors import DockerException
        from requests import RequestException

        def end() -> None:
            with contextlib.suppress(DockerException, RequestException):
                self.client.api.kill(name)

        timer = threading.Timer(_LIMIT_S, end)
        timer.daemon = True
        timer.start()
        last = ""
        try:
            since = 0
            while True:
                # A stream may end early where nothing is printed for longer than the client's patience.
                with contextlib.suppress(RequestException):
                    rest = b""
                    for piece in self.client.api.logs(name, stream=True, follow=True, since=since or None):
                        *lines, rest = (rest + piece).split(b"\n")
                        rest = rest[-4096:]
                        for line in lines:
                            last = line.decode(errors="replace").strip()[:1000] or last
                            on_line(last)
                state = self.client.api.inspect_container(name)["State"]
                if state["Status"] not in ("running", "created"):
                    return int(state["ExitCode"]), last
                since = int(time.time())
                time.sleep(0.1)
        finally:
            timer.cancel()


class _Reader:
    """A file to read of the pieces that the engine sends."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        data, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return data


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
