"""One image on its way into the engine: its progress in the log, and its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ...errors import SandboxStartError, is_registry_trouble, is_transient
from .engine import Engine, limited, one_line

_log = logging.getLogger("agentix_runner.providers.docker")

STALLED_S = 300.0
"""Seconds without any news of a pull after which it is given up."""
# Seconds between two lines of the log about one.
_TELL_EVERY_S = 10.0


class Pull:
    """The pull of one image. `future` is that of `run`."""

    def __init__(self, name: str, platform: str | None, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.platform = platform
        self.future: Future[None] = Future()
        self._now = now
        self._layers: dict[str, tuple[int, int]] = {}

    def wait(self) -> None:
        """Wait for the end. Raises SandboxStartError."""
        self.future.result()

    def run(self, engine: Engine) -> None:
        """Pull it. Raises SandboxStartError."""
        from docker.errors import APIError
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(self.name)
        began = tell_at = self._now()
        _log.info("pulling the image %s", self._full)
        # Any news will do: how long it all takes is nobody's business but the session's limit's.
        api = limited(engine.client.api, STALLED_S)
        with engine.doing(f"pull the image {self._full}"):
            try:
                events = api.pull(repository, tag=tag or "latest", platform=self.platform, stream=True, decode=True)
                for event in events:
                    self._take(event)
                    if self._now() - tell_at > _TELL_EVERY_S:
                        tell_at = self._now()
                        _log.info("pulling the image %s: %s", self._full, self._progress())
            except APIError as error:
                raise self._refused(one_line(error), is_transient(error)) from None
        _log.info("pulled the image %s in %.0f s", self._full, self._now() - began)

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise self._refused(" ".join(str(event["error"]).split()))
        detail = event.get("progressDetail") or {}
        if detail.get("total") and event.get("status") == "Downloading":
            self._layers[str(event.get("id"))] = (detail.get("current", 0), detail["total"])

    def _refused(self, text: str, transient: bool = False) -> SandboxStartError:
        transient = transient or is_registry_trouble(text)
        hint = "" if transient else "; check its name, and that you may pull it"
        return SandboxStartError(f"the engine can't pull the image {self._full}: {text}{hint}", transient=transient)

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
