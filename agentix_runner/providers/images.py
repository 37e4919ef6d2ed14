"""The images that sandboxes run: there, or pulled once each, a few at a time; and removed again where that is asked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from typing import Any

from attrs import field, frozen

from ..errors import SandboxStartError
from ..retry import REGISTRY_TROUBLE
from ..threads import DaemonExecutor
from .engine import Engine, one_line

_log = logging.getLogger("agentix_runner.providers.docker")

AT_A_TIME = 4
"""How many images are pulled at once."""

# Seconds without any news of a pull after which it is given up, and between two lines of the log about it.
_STALLED_S = 300.0
_TELL_EVERY_S = 10.0


@frozen(kw_only=True)
class Image:
    """An image in the engine."""

    id: str
    architecture: str
    env: Mapping[str, str] = field(factory=dict)
    user: str = ""


class Images:
    """What is known of images in one process. `pull` is "missing", "always" or "never"."""

    def __init__(self, engine: Engine, pull: str) -> None:
        self._engine = engine
        self._pull = pull
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str | None], Image] = {}
        self._pulls: dict[tuple[str, str | None], Pull] = {}
        self._pullers: DaemonExecutor | None = None

    def get(self, name: str, platform: str | None = None) -> Image:
        """The image `name`, pulled first where it has to be.

        Raises:
            SandboxStartError: there is none; `transient` where another try may find it.
        """
        key = (name, platform)
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        image = None if self._pull == "always" else self._inspect(name, platform)
        if image is None:
            if self._pull == "never":
                raise SandboxStartError(
                    f"the engine has no image {_full(name, platform)}, and pull is 'never': pull or build it first"
                )
            self._pulled(key)
            image = self._inspect(name, platform)
            if image is None:
                raise SandboxStartError(
                    f"the image {_full(name, platform)} was pulled, but the engine does not have it"
                )
        with self._lock:
            self._known[key] = image
        return image

    def forget(self, name: str) -> None:
        """What is known of `name` is not true any more."""
        with self._lock:
            for key in [key for key in self._known if key[0] == name]:
                del self._known[key]

    def _inspect(self, name: str, platform: str | None) -> Image | None:
        from docker.errors import ImageNotFound

        with self._engine.doing(f"look at the image {name!r}"):
            try:
                found = self._engine.api.inspect_image(name)
            except ImageNotFound:
                return None
        if platform is not None and not _is_for(found, platform):
            return None
        config = found.get("Config") or {}
        return Image(
            id=found["Id"],
            architecture=found.get("Architecture", ""),
            env=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            user=config.get("User") or "",
        )

    def _pulled(self, key: tuple[str, str | None]) -> None:
        with self._lock:
            pull = self._pulls.get(key)
            if pull is None:
                if self._pullers is None:
                    self._pullers = DaemonExecutor(AT_A_TIME)
                pull = self._pulls[key] = Pull(*key)
                pull.future = self._pullers.submit(self._run, pull)
        pull.wait()

    def _run(self, pull: Pull) -> None:
        try:
            with self._engine.used():
                pull.run(self._engine)
        finally:
            with self._lock:
                del self._pulls[pull.name, pull.platform]
                if not self._pulls and self._pullers is not None:
                    self._pullers.shutdown()
                    self._pullers = None


class Pull:
    """One image on its way into the engine."""

    def __init__(self, name: str, platform: str | None, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.platform = platform
        self.future: Future[None] = Future()
        self._now = now
        self._heard_at = now()
        self._layers: dict[str, tuple[int, int]] = {}

    def wait(self) -> None:
        """Wait for the end. Raises SandboxStartError."""
        while True:
            try:
                self.future.result(timeout=5.0)
                return
            except TimeoutError:
                if self._now() - self._heard_at > _STALLED_S and self.future.running():
                    raise SandboxStartError(
                        f"pulling {self._full()} has not gone on for {_STALLED_S:g} s", transient=True
                    ) from None

    def run(self, engine: Engine) -> None:
        """Pull it. Raises SandboxStartError."""
        from docker.errors import NotFound
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(self.name)
        began = tell_at = self._heard_at = self._now()
        _log.info("pulling %s", self._full())
        try:
            with engine.doing(f"pull the image {self._full()}"):
                for event in engine.api.pull(
                    repository, tag=tag or "latest", platform=self.platform, stream=True, decode=True
                ):
                    self._heard_at = self._now()
                    self._take(event)
                    if self._heard_at - tell_at > _TELL_EVERY_S:
                        tell_at = self._heard_at
                        _log.info("pulling %s: %s", self._full(), self._progress())
        except SandboxStartError as error:
            raise self._explained(error) from error.__cause__
        except NotFound as error:
            raise self._explained(error) from None
        _log.info("pulled %s in %.0f s", self._full(), self._now() - began)

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            text = str(event["error"])
            trouble = any(words in text.lower() for words in REGISTRY_TROUBLE)
            raise SandboxStartError(f"the engine can't pull the image {self._full()}: {text}", transient=trouble)
        detail = event.get("progressDetail") or {}
        if detail.get("total") and event.get("status") == "Downloading":
            self._layers[event.get("id", "")] = (detail.get("current", 0), detail["total"])

    def _progress(self) -> str:
        current, total = (sum(each) for each in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        return f"{current >> 20} of {total >> 20} MiB" if total else "no news"

    def _explained(self, error: Exception) -> SandboxStartError:
        transient = bool(getattr(error, "transient", False))
        hint = "" if transient else ". Check its name, and that you may pull it: `docker pull` tells more"
        return SandboxStartError(f"no image {self._full()}: {one_line(error)}{hint}", transient=transient)

    def _full(self) -> str:
        return _full(self.name, self.platform)


def _full(name: str, platform: str | None) -> str:
    return repr(name) if platform is None else f"{name!r} for {platform}"


def _is_for(found: Mapping[str, Any], platform: str) -> bool:
    system, _, rest = platform.lower().partition("/")
    architecture, _, variant = rest.partition("/")
    return (
        found.get("Os", "linux") == system
        and (not architecture or normal(found.get("Architecture", "")) == normal(architecture))
        and (not variant or found.get("Variant", variant) in ("", variant))
    )


def normal(architecture: str) -> str:
    """One name for each architecture."""
    return {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}.get(architecture.lower(), architecture.lower())
