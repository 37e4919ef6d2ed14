"""What a docker provider keeps in each process: its engine, what is known of images and bundles, what is still owed."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import sweep
from .engine import Engine
from .images import Images
from .once import Once

if TYPE_CHECKING:
    from ...bundle.marks import Mark

_log = logging.getLogger("agentix_runner.providers.docker")


class Here:
    """A provider in this process: its engine, and what is known of images and bundles there."""

    def __init__(self, make: Callable[[], Any], *, pull: str, remove_images: bool) -> None:
        self.label = f"agentix.provider={secrets.token_hex(8)}"
        self.engine = Engine(make, self.label)
        self.images = Images(self.engine, pull=pull, remove=remove_images)
        self.tells_removals = True
        self._bundles: Once[str | None, tuple[str, str]] = Once()
        # Guards what follows. Never held while the engine is asked.
        self._lock = threading.Lock()
        self._owed: set[str] = set()
        self._marks: dict[str | None, Mark] = {}

    def sweep(self) -> None:
        """Remove what dead owners have left."""
        sweep.sweep(self.engine.brief)

    def owe(self, container: str) -> None:
        """Note the name of a container that may still be there, or come to be: the engine did not answer."""
        with self._lock:
            self._owed.add(container)

    def remove_owed(self) -> None:
        """Try again to remove what is owed, now that the engine answers."""
        with self._lock:
            owed, self._owed = self._owed, set()
        for container in owed:
            try:
                sweep.remove(self.engine.brief, container)
            except Exception as error:  # of many layers; it is only put off once more
                _log.debug("container %s stays for now: %s", container, error)
                self.owe(container)

    def bundle(self, name: str | None) -> tuple[str, str]:
        """The volume of a bundle, and its architecture. Looked for once; who comes meanwhile waits for the outcome.

        Raises:
            BundleError: it is none, or there can be none.
        """
        return self._bundles.get(name, lambda: self._look_for(name))

    def forget_bundle(self, name: str | None) -> None:
        """What is known of a bundle is not true any more."""
        self._bundles.forget(name)
        with self._lock:
            self._marks.pop(name, None)

    def _look_for(self, name: str | None) -> tuple[str, str]:
        from ...bundle.default import default_bundle
        from ...bundle.marks import mark
        from ...bundle.mount import bundle_image, bundle_volume

        client = self.engine.client
        tag = name or default_bundle(client)
        architecture = bundle_image(client, tag).attrs.get("Architecture", "")
        volume = ""
        # Looked for again once it is marked: `agentix clean` may have been faster.
        while (found := bundle_volume(client, tag)) != volume:
            volume, marked = found, mark(found)
            if marked is None:
                break
            with self._lock:
                self._marks[name] = marked
        return volume, architecture
