"""Tells a provider which images the rollouts to come will use, so that it can get them meanwhile.

`dataset.image()` is the user's code: it may be slow, raise, or hang, for any of 10,000 instances. So it is called on a
daemon thread of its own, which nobody waits for; what is wrong with an image is told when its sandbox is made.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..rollout.phases import Spec

if TYPE_CHECKING:
    from .checks import Planned

logger = logging.getLogger("agentix_runner")


class Ahead:
    """The images of one run's rollouts, in order. A rollout's end is passed on only when all have been told of: an
    image must not go while a rollout that will use it waits to be told of."""

    def __init__(self, spec: Spec, coming: Sequence[Planned], context: contextvars.Context) -> None:
        self._spec = spec
        self._expect: Any = getattr(spec.provider, "expect_image", None)
        # Guards what follows. Never held while anybody else's code runs.
        self._lock = threading.Lock()
        self._coming = coming if self._expect is not None else ()
        self._untold = {(planned.instance_id, planned.attempt) for planned in self._coming}
        self._told: dict[tuple[str, int], Callable[[], None]] = {}
        self._ended: list[Callable[[], None]] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        if self._coming:
            # In the caller's context, as everything of the user's.
            self._thread = threading.Thread(target=context.run, args=(self._tell,), name="agentix-images", daemon=True)
            self._thread.start()

    def over(self, instance_id: str, attempt: int) -> None:
        """That rollout has ended, or won't run. From any thread; waits for nothing."""
        key = (instance_id, attempt)
        with self._lock:
            self._untold.discard(key)
            over = self._told.pop(key, None)
            if over is not None:
                self._ended.append(over)
        self._pass_on()

    def close(self) -> None:
        """The run is over. A call that hangs is left behind."""
        with self._lock:
            self._closed = True
            self._untold.clear()
            self._ended += self._told.values()
            self._told.clear()
        self._pass_on()

    def join(self, limit_s: float) -> None:
        if self._thread is not None:
            self._thread.join(limit_s)

    def _pass_on(self) -> None:
        with self._lock:
            if self._untold:
                return
            ended, self._ended = self._ended, []
        for over in ended:
            try:
                over()
            except Exception:
                logger.warning("the provider could not be told that an image is not used any more", exc_info=True)

    def _tell(self) -> None:
        for planned in self._coming:
            key = (planned.instance_id, planned.attempt)
            with self._lock:
                if self._closed:
                    return
                if key not in self._untold:
                    continue
            over = self._over_of(planned)
            with self._lock:
                runs = key in self._untold
                self._untold.discard(key)
                if over is not None and runs:
                    self._told[key] = over
                elif over is not None:
                    self._ended.append(over)
            self._pass_on()

    def _over_of(self, planned: Planned) -> Callable[[], None] | None:
        try:
            image = self._spec.dataset.image(planned.instance)
            if self._closed or not isinstance(image, str):
                return None
            over: Callable[[], None] = self._expect(image, self._spec.platform)
        except BaseException:
            logger.debug("instance %s: its image is not expected", planned.instance_id, exc_info=True)
            return None
        return over
