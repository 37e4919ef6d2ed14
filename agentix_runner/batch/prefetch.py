"""Tells a provider which images the rollouts to come will use, so that it can get them meanwhile.

`dataset.image()` is the user's code: it may be slow, raise, or hang, for any of 10,000 instances. So it is called on a
daemon thread of its own, which nobody waits for; what is wrong with an image is told when its sandbox is made.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..rollout.job import Job, Options

logger = logging.getLogger("agentix_runner")


class Prefetch:
    """The images of one run's rollouts, in order. A rollout's end is passed on only when all have been told of: an
    image must not go while a rollout that will use it waits to be told of."""

    def __init__(self, options: Options, jobs: Sequence[Job]) -> None:
        self._options = options
        self._expect_image: Any = getattr(options.provider, "expect_image", None)
        # Guards what follows. Never held while anybody else's code runs.
        self._lock = threading.Lock()
        self._jobs = jobs if self._expect_image is not None else ()
        self._untold = {job.number for job in self._jobs}
        self._releases: dict[int, Callable[[], None]] = {}  # of those that were told of and have not ended
        self._ended: list[Callable[[], None]] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        if self._jobs:
            # In the caller's context, as everything of the user's.
            prefetch = contextvars.copy_context().run
            self._thread = threading.Thread(target=prefetch, args=(self._tell_all,), name="agentix-images", daemon=True)
            self._thread.start()

    def done_with(self, job: Job) -> None:
        """That rollout has ended, or won't run. From any thread; waits for nothing."""
        with self._lock:
            self._untold.discard(job.number)
            release = self._releases.pop(job.number, None)
            if release is not None:
                self._ended.append(release)
        self._pass_on()

    def close(self) -> None:
        """The run is over. A call that hangs is left behind."""
        with self._lock:
            self._closed = True
            self._untold.clear()
            self._ended += self._releases.values()
            self._releases.clear()
        self._pass_on()

    def join(self, limit_s: float) -> None:
        if self._thread is not None:
            self._thread.join(limit_s)

    def _pass_on(self) -> None:
        with self._lock:
            if self._untold:
                return
            ended, self._ended = self._ended, []
        for release in ended:
            try:
                release()
            except Exception:
                logger.warning("the provider could not be told that an image is not used any more", exc_info=True)

    def _tell_all(self) -> None:
        for job in self._jobs:
            with self._lock:
                if self._closed:
                    return
                if job.number not in self._untold:
                    continue
            release = self._tell_of(job)
            with self._lock:
                runs = job.number in self._untold
                self._untold.discard(job.number)
                if release is not None and runs:
                    self._releases[job.number] = release
                elif release is not None:
                    self._ended.append(release)
            self._pass_on()

    def _tell_of(self, job: Job) -> Callable[[], None] | None:
        try:
            image = self._options.dataset.image(job.instance)
            if self._closed or not isinstance(image, str):
                return None
            release: Callable[[], None] = self._expect_image(image, self._options.platform)
        except BaseException:
            logger.debug("instance %s: its image is not expected", job.instance_id, exc_info=True)
            return None
        return release
