"""Sandboxes in containers, on any engine that speaks Docker's API.

A sandbox is a container of the instance's image whose first process is the bundle's own Python, so that the image needs
none. It is spoken to over the socket of the attached container: no port, no network. It ends when the connection does,
also when this process is killed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from attrs import field, frozen

from ...errors import BadArgument, BundleError, SandboxStartError
from ...records import SandboxConfig
from .. import settings
from ..sandbox import RemoteSandbox
from .container import Container
from .engine import connect
from .shared import Here

_log = logging.getLogger("agentix_runner.providers.docker")

_PULL = ("missing", "always", "never")


def _mounts(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@frozen(kw_only=True)
class DockerProvider:
    """Makes sandboxes that are containers.

    The engine is the one that docker's own command would use (DOCKER_HOST, or its current context). `SandboxConfig`
    overrides `network`, `memory` and `cpus`.

    Args:
        client: a `docker.DockerClient`, or a function that makes one: it is called once in each process.
        network: the containers' network: "none", "bridge", or the name of one.
        memory: most memory of a sandbox: bytes, or text such as "4g". None: no limit.
        cpus: how many CPUs' time a sandbox may take; 0.5 is half of one. None: no limit.
        pids_limit: most processes and threads in a sandbox. None: no limit.
        mounts: what else is mounted: "SOURCE:TARGET" or "SOURCE:TARGET:ro", as for `docker run -v`, or
            `docker.types.Mount` objects.
        pull: "missing" (pull images that the engine lacks), "always" (once in each process), or "never".
        remove_images: remove an image that was pulled for this run after its last use.
        labels: more labels for the containers.
        read_only: the image's files can't be changed; /tmp is in memory.
        user: who the sandbox runs as, as for `docker run -u`. Default: as the image says.
        workdir: the working directory. Default: as the image says.
        runtime: the OCI runtime, as in "runsc". Default: the engine's.
        start_timeout: seconds that a started sandbox may take to answer for the first time.
        engine_timeout: seconds that the engine may take for one answer.
        max_result: most bytes of one result.
        max_log: most bytes that one sandbox may print; the rest is dropped, and the log says so.
        options: more arguments of docker-py's `create_host_config`, as in `{"shm_size": "1g"}`.
    """

    fds_per_session: ClassVar[int] = 3
    """Most file descriptors that one session takes in this process: its own connection, and those for requests."""

    client: Any = field(default=None, repr=False)
    network: str = "none"
    memory: int | str | None = field(default=None, validator=settings.memory)
    cpus: float | None = field(default=None, validator=settings.above_zero_or_none)
    pids_limit: int | None = field(default=4096, validator=settings.above_zero_or_none)
    mounts: Sequence[Any] = field(default=(), converter=_mounts, validator=settings.mounts)
    pull: str = field(default="missing", repr=False)
    remove_images: bool = field(default=False, repr=False)
    labels: Mapping[str, str] = field(factory=dict, repr=False, validator=settings.texts)
    read_only: bool = False
    user: str | None = None
    workdir: str | None = None
    runtime: str | None = None
    start_timeout: float = field(default=60.0, validator=settings.above_zero)
    engine_timeout: float = field(default=60.0, validator=settings.above_zero)
    max_result: int = field(default=1 << 30, validator=settings.whole_number)
    max_log: int = field(default=64 << 20, validator=settings.whole_number)
    options: Mapping[str, Any] = field(factory=dict)
    _state: _State = field(factory=lambda: _State(), init=False, repr=False, eq=False)

    @pull.validator
    def _check_pull(self, attribute: Any, value: str) -> None:
        if value not in _PULL:
            raise BadArgument(f"DockerProvider.pull is {value!r}: give one of {', '.join(map(repr, _PULL))}")

    def check_run(self, *, bundle: str | None, platform: str | None) -> None:
        """Raises BadArgument where no sandbox of a run could be made: no engine answers, or the bundle is none.

        What another try may mend is left to the sessions. A default bundle is made here, if need be.
        """
        here = self._state.here(self)
        try:
            with here.engine.used(at_first=here.sweep):
                here.bundle(bundle)
        except BundleError as error:
            raise BadArgument(str(error)) from error
        except SandboxStartError as error:
            if not error.transient:
                raise BadArgument(str(error)) from error

    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[RemoteSandbox]:
        """A sandbox, and its end.

        Raises:
            SandboxStartError: it could not be started; `transient` where another try may work.
            BundleError: what was given as the bundle is none, or none can be made.
            SandboxError: at the end: it can't be told that the container is gone.
        """
        here = self._state.here(self)
        with here.engine.used(at_first=here.sweep):
            here.remove_owed()
            container = Container(self, here, config)
            try:
                sandbox = container.start()
                yield sandbox
            except BaseException:
                container.end(quiet=True)
                raise
            container.end()

    def expect_image(self, image: str, platform: str | None = None) -> Callable[[], None]:
        """A rollout is to come that will use this image: it is pulled ahead, a few at a time, in the order told.

        Returns what is to be called when that rollout is over, from any thread; neither waits for the engine. With
        `remove_images` an image goes after its last rollout.
        """
        return self._state.here(self).images.expect(image, platform)


class _State:
    """What a provider keeps in each process. Left out when the provider is pickled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: Here | None = None

    def here(self, provider: DockerProvider) -> Here:
        with self._lock:
            if self._here is None or self._here.engine.pid != os.getpid():
                self._here = Here(_maker(provider), pull=provider.pull, remove_images=provider.remove_images)
            return self._here

    def __reduce__(self) -> tuple[Any, ...]:
        return _State, ()

    def __deepcopy__(self, memo: Any) -> _State:
        return _State()


def _maker(provider: DockerProvider) -> Callable[[], Any]:
    if provider.client is None:
        return lambda: connect(provider.engine_timeout)
    if callable(provider.client):
        make: Callable[[], Any] = provider.client
        return make
    return lambda: provider.client
