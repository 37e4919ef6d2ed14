"""The images that sandboxes run: there, or pulled once each, a few at a time; and removed again where that is asked."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from ...errors import SandboxStartError
from ...threads import DaemonExecutor
from .engine import Engine, one_line
from .once import Once
from .pulls import Pull, full_name

_log = logging.getLogger("agentix_runner.providers.docker")

AT_A_TIME = 4
"""How many images are pulled at once."""
AHEAD = 8
"""How many images may be there, or on their way, before their first use."""

_Key = tuple[str, str | None]


@frozen(kw_only=True)
class Image:
    """An image in the engine."""

    id: str
    architecture: str
    env: Mapping[str, str] = field(factory=dict)


class Images:
    """What is known of images in one process. `pull` is "missing", "always" or "never"; with `remove` an image that
    was pulled here, and was not there before, goes again when it is not expected any more."""

    def __init__(self, engine: Engine, *, pull: str, remove: bool) -> None:
        self._engine = engine
        self._pull = pull
        self._remove = remove
        self._known: Once[_Key, Image] = Once()
        # Guards what follows. Never held while the engine is asked.
        self._lock = threading.Lock()
        self._pulls: dict[_Key, Pull] = {}
        self._pullers: DaemonExecutor | None = None
        self._ours: set[_Key] = set()
        self._leaving: set[_Key] = set()
        # What a run has said it will use: how often, and which of it is still to be pulled ahead.
        self._uses: Counter[_Key] = Counter()
        self._announced: set[_Key] = set()
        self._coming: dict[_Key, None] = {}
        self._ahead: set[_Key] = set()

    def get(self, name: str, platform: str | None = None) -> Image:
        """The image `name`, pulled first where it has to be.

        Raises:
            SandboxStartError: there is none; `transient` where another try may find it.
        """
        if not name:
            raise SandboxStartError("the image is '': return the name of one from the dataset's image()")
        key = (name, platform)
        known = self._known.get(key, lambda: self._found(key))
        with self._lock:
            self._ahead.discard(key)
        self._pull_ahead()
        return known

    def forget(self, name: str, platform: str | None = None) -> None:
        """What is known of an image is not true any more."""
        self._known.forget((name, platform))

    def expect(self, name: str, platform: str | None) -> Callable[[], None]:
        """One more use is to come: the image is pulled ahead, after those that are expected already. Returns what is
        to be called when that use is over, from any thread; it waits for nothing."""
        key = (name, platform)
        with self._lock:
            self._uses[key] += 1
            self._announced.add(key)
            if name and self._uses[key] == 1 and self._pull != "never":
                self._coming[key] = None
        self._pull_ahead()
        once = iter((True,))

        def over() -> None:
            if next(once, False):
                self._over(key)

        return over

    def _over(self, key: _Key) -> None:
        with self._lock:
            self._uses[key] -= 1
            if self._uses[key] > 0:
                return
            del self._uses[key]
            self._coming.pop(key, None)
            self._ahead.discard(key)
            self._leave_soon(key)
        # Nothing is pulled in its place: where a run is stopped this is said of all that it expected, one by one.

    def _leave_soon(self, key: _Key) -> None:
        if key in self._ours and key in self._announced and self._uses[key] <= 0:
            self._puller().submit(self._leave, key)

    # --- there or not ---

    def _found(self, key: _Key) -> Image:
        name, platform = key
        image = None if self._pull == "always" else self._inspect(name, platform)
        if image is None:
            if self._pull == "never":
                raise SandboxStartError(
                    f"the engine has no image {full_name(name, platform)}, and pull is 'never': pull or build it first"
                )
            self._pulled(key).wait()
            image = self._inspect(name, platform)
        if image is None:
            raise SandboxStartError(f"the image {full_name(name, platform)} was pulled, but is not in the engine")
        return image

    def _inspect(self, name: str, platform: str | None) -> Image | None:
        from docker.errors import ImageNotFound

        with self._engine.doing(f"look at the image {name!r}"):
            try:
                found = self._engine.api.inspect_image(name)
            except ImageNotFound:
                return None
        if platform is not None and not _is_for(found, platform):
            return None
        return Image(
            id=found["Id"],
            architecture=found.get("Architecture", ""),
            env=dict(entry.partition("=")[::2] for entry in (found.get("Config") or {}).get("Env") or ()),
        )

    # --- pulling ---

    def _pulled(self, key: _Key, *, ahead: bool = False) -> Pull:
        """The pull of an image that is under way, or else a new one."""
        with self._lock:
            pull = self._pulls.get(key)
            if pull is None:
                pull = self._pulls[key] = Pull(*key)
                pull.future = self._puller().submit(self._run, pull, ahead)
            return pull

    def _puller(self) -> DaemonExecutor:
        if self._pullers is None:
            self._pullers = DaemonExecutor(AT_A_TIME)
        return self._pullers

    def _rest(self) -> None:
        """Let the threads go, unless there is more to do. They end what they have begun."""
        with self._lock:
            if not self._pulls and not self._leaving and self._pullers is not None:
                self._pullers.shutdown()
                self._pullers = None

    def _run(self, pull: Pull, ahead: bool) -> None:
        key = (pull.name, pull.platform)
        try:
            with self._engine.used():
                if ahead and self._pull == "missing" and self._inspect(*key) is not None:
                    with self._lock:
                        self._ahead.discard(key)
                    return
                new = self._remove and self._inspect(pull.name, None) is None
                pull.run(self._engine)
                if new:
                    self._own(key)
        except SandboxStartError as error:
            # Whoever waits for it is told, and who uses it later tries again.
            _log.debug("%s", error)
            raise
        finally:
            with self._lock:
                del self._pulls[key]
                # Its use may be over before it has come.
                self._leave_soon(key)
            self._pull_ahead()
            self._rest()

    def _pull_ahead(self) -> None:
        while True:
            with self._lock:
                if not self._coming or len(self._ahead) >= AHEAD:
                    return
                key = next(iter(self._coming))
                del self._coming[key]
                if key in self._known:
                    continue
                self._ahead.add(key)
            self._pulled(key, ahead=True)

    # --- removing ---

    def _own(self, key: _Key) -> None:
        with self._lock:
            if not self._ours:
                atexit.register(self._at_exit, os.getpid())
            self._ours.add(key)

    def _at_exit(self, pid: int) -> None:
        # Where nobody has said what was expected, this is when it is known not to be used again.
        if os.getpid() == pid:
            for key in list(self._ours):
                self._leave(key)

    def _leave(self, key: _Key) -> None:
        """Remove an image that was pulled here."""
        with self._lock:
            if key not in self._ours or key in self._leaving or self._uses[key] > 0:
                return
            self._leaving.add(key)
            self._known.forget(key)
        try:
            with self._engine.used():
                self._engine.brief.remove_image(key[0])
            _log.info("removed the image %s", key[0])
        except Exception as error:  # of many layers; an image that stays harms nothing
            _log.warning("the image %s was pulled for this run and stays: %s", key[0], one_line(error))
        finally:
            with self._lock:
                self._leaving.discard(key)
                self._ours.discard(key)
                if not self._ours:
                    atexit.unregister(self._at_exit)
            self._rest()


def _is_for(found: Mapping[str, Any], platform: str) -> bool:
    system, _, rest = platform.lower().partition("/")
    architecture, _, variant = rest.partition("/")
    return (
        found.get("Os", "linux") == system
        and (not architecture or normal(found.get("Architecture", "")) == normal(architecture))
        and (not variant or found.get("Variant") in (None, "", variant))
    )


def normal(architecture: str) -> str:
    """One name for each architecture."""
    return {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}.get(architecture.lower(), architecture.lower())
