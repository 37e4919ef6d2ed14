"""The images that sandboxes run: there, or pulled once each, a few at a time; and removed again where that is asked."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import field, frozen

from ..errors import SandboxStartError
from ..threads import DaemonExecutor
from .engine import Engine, one_line
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
        # Guards what follows. Never held while the engine is asked.
        self._lock = threading.Lock()
        self._known: dict[_Key, Image] = {}
        self._pulls: dict[_Key, Pull] = {}
        self._pullers: DaemonExecutor | None = None
        self._ours: set[_Key] = set()
        # What a run has said it will use: how often, and which of it is still to be pulled ahead.
        self._uses: Counter[_Key] = Counter()
        self._coming: deque[_Key] = deque()
        self._ahead: set[_Key] = set()

    def get(self, name: str, platform: str | None = None) -> Image:
        """The image `name`, pulled first where it has to be.

        Raises:
            SandboxStartError: there is none; `transient` where another try may find it.
        """
        key = (name, platform)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = self._found(key)
            with self._lock:
                self._known[key] = known
        with self._lock:
            self._ahead.discard(key)
        self._pull_ahead()
        return known

    def forget(self, name: str) -> None:
        """What is known of `name` is not true any more."""
        with self._lock:
            for key in [key for key in self._known if key[0] == name]:
                del self._known[key]

    @contextmanager
    def expecting(self, names: Iterable[str], platform: str | None) -> Iterator[Callable[[str], None]]:
        """Inside, the images `names` are pulled ahead, in this order; each name stands for one use. Gives a function
        that takes the name of a use that is over."""
        expected = [(name, platform) for name in names]
        mine = Counter(expected)
        with self._lock:
            self._uses.update(mine)
            if self._pull != "never":
                self._coming.extend(mine)
        self._pull_ahead()

        def over(name: str) -> None:
            key = (name, platform)
            with self._lock:
                if mine[key] <= 0:
                    return
                mine[key] -= 1
                self._uses[key] -= 1
                last = self._uses[key] <= 0
            if last:
                self._leave(key)

        try:
            yield over
        finally:
            with self._lock:
                self._coming.clear()
                self._ahead.clear()
            for key, left in list(mine.items()):
                for _ in range(left):
                    over(key[0])

    def remove_ours(self) -> None:
        """Remove what was pulled here and is not expected any more."""
        with self._lock:
            left = [key for key in self._ours if self._uses[key] <= 0]
        for key in left:
            self._leave(key)

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
                if self._pullers is None:
                    self._pullers = DaemonExecutor(AT_A_TIME)
                pull = self._pulls[key] = Pull(*key)
                pull.future = self._pullers.submit(self._run, pull, ahead)
            return pull

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
            self._pull_ahead()
            with self._lock:
                if not self._pulls and self._pullers is not None:
                    self._pullers.shutdown()
                    self._pullers = None

    def _pull_ahead(self) -> None:
        while True:
            with self._lock:
                if not self._coming or len(self._ahead) >= AHEAD:
                    return
                key = self._coming.popleft()
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
            with self._lock:
                self._uses.clear()
            self.remove_ours()

    def _leave(self, key: _Key) -> None:
        with self._lock:
            if key not in self._ours:
                return
            self._ours.discard(key)
            self._known.pop(key, None)
            if not self._ours:
                atexit.unregister(self._at_exit)
        try:
            with self._engine.used():
                self._engine.brief.remove_image(key[0])
            _log.info("removed the image %s", key[0])
        except Exception as error:  # of many layers; an image that stays harms nothing
            _log.warning("the image %s was pulled for this run and stays: %s", key[0], one_line(error))


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
