"""One image on its way into the engine: its progress in the log, and its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from typing import Any

from ..errors import SandboxStartError
from ..retry import REGISTRY_TROUBLE
from .engine import Engine

_log = logging.getLogger("agentix_runner.providers.docker")

# Seconds without any news of a pull after which nobody waits for it any longer, and between two lines of the log.
_STALLED_S = 300.0
_TELL_EVERY_S = 10.0
_LOOK_EVERY_S = 5.0


class Pull:
    """The pull of one image. `future` is that of `run`."""

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
                self.future.result(timeout=_LOOK_EVERY_S)
                return
            except TimeoutError:
                if self.future.running() and self._now() - self._heard_at > _STALLED_S:
                    raise SandboxStartError(
                        f"there was no news of the image {self._full} for {_STALLED_S:g} s", transient=True
                    ) from None

    def run(self, engine: Engine) -> None:
        """Pull it. Raises SandboxStartError."""
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(self.name)
        began = tell_at = self._heard_at = self._now()
        _log.info("pulling the image %s", self._full)
        with engine.doing(f"pull the image {self._full}"):
            # Not the limited client: an engine may be silent while it unpacks. `wait` has a limit.
            events = engine.client.api.pull(
                repository, tag=tag or "latest", platform=self.platform, stream=True, decode=True
            )
            for event in events:
                self._heard_at = self._now()
                self._take(event)
                if self._heard_at - tell_at > _TELL_EVERY_S:
                    tell_at = self._heard_at
                    _log.info("pulling the image %s: %s", self._full, self._progress())
        _log.info("pulled the image %s in %.0f s", self._full, self._now() - began)

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            text = str(event["error"])
            transient = any(words in text.lower() for words in REGISTRY_TROUBLE)
            hint = "" if transient else "; check its name, and that you may pull it"
            raise SandboxStartError(f"the engine can't pull the image {self._full}: {text}{hint}", transient=transient)
        detail = event.get("progressDetail") or {}
        if detail.get("total") and event.get("status") == "Downloading":
            self._layers[str(event.get("id"))] = (detail.get("current", 0), detail["total"])

    def _progress(self) -> str:
        current = sum(got for got, _ in self._layers.values())
        total = sum(size for _, size in self._layers.values())
        return f"{current >> 20} of {total >> 20} MiB" if total else "nothing has come yet"

    @property
    def _full(self) -> str:
        return full_name(self.name, self.platform)


def full_name(name: str, platform: str | None) -> str:
    """An image, as messages name it."""
    return repr(name) if platform is None else f"{name!r} for {platform}"
