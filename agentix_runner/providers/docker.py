"""Sandboxes in containers, on any engine that speaks Docker's API.

A sandbox is a container of the instance's image whose first process is the bundle's own Python, so that the image needs
none. It is spoken to over the socket of the attached container: no port, no network. It ends when the connection does,
also when this process is killed.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from attrs import field, frozen

from ..errors import BadArgument, SandboxError, SandboxStartError
from ..records import SandboxConfig
from ..remote.client import RemoteSandbox
from . import owners, sweep
from .attach import AttachTransport
from .engine import Engine, connect, one_line
from .images import Image, Images, normal

_log = logging.getLogger("agentix_runner.providers.docker")

_PULL = ("missing", "always", "never")
# Variables of an image that would change what the bundle's own loader loads. The worker puts them back for what it
# starts.
_LOADER = ("LD_PRELOAD", "LD_AUDIT")


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
    memory: int | str | None = None
    cpus: float | None = None
    pids_limit: int | None = 4096
    mounts: Sequence[Any] = field(default=(), converter=_mounts)
    pull: str = field(default="missing", repr=False)
    remove_images: bool = field(default=False, repr=False)
    labels: Mapping[str, str] = field(factory=dict, repr=False)
    read_only: bool = False
    user: str | None = None
    workdir: str | None = None
    runtime: str | None = None
    start_timeout: float = 60.0
    engine_timeout: float = 60.0
    max_result: int = 1 << 30
    max_log: int = 64 << 20
    options: Mapping[str, Any] = field(factory=dict)
    _state: _State = field(factory=lambda: _State(), init=False, repr=False, eq=False)

    @pull.validator
    def _check_pull(self, attribute: Any, value: str) -> None:
        if value not in _PULL:
            raise BadArgument(f"DockerProvider.pull is {value!r}: give one of {', '.join(map(repr, _PULL))}")

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
            container = Container(self, here, config)
            try:
                sandbox = container.start()
                yield sandbox
            except BaseException:
                container.end(quiet=True)
                raise
            container.end()


class _State:
    """What a provider keeps in each process. Left out when the provider is pickled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: Here | None = None

    def here(self, provider: DockerProvider) -> Here:
        with self._lock:
            if self._here is None or self._here.engine.pid != os.getpid():
                self._here = Here(provider)
            return self._here

    def __reduce__(self) -> tuple[Any, ...]:
        return _State, ()

    def __deepcopy__(self, memo: Any) -> _State:
        return _State()


class Here:
    """A provider in this process: its engine, and what is known of images and bundles there."""

    def __init__(self, provider: DockerProvider) -> None:
        self.label = f"agentix.provider={secrets.token_hex(8)}"
        self.engine = Engine(_maker(provider), self.label)
        self.images = Images(self.engine, provider.pull)
        self._making = threading.Lock()
        self._bundles: dict[str | None, tuple[str, str]] = {}

    def sweep(self) -> None:
        """Remove what dead owners have left."""
        sweep.sweep(self.engine.api)

    def bundle(self, name: str | None) -> tuple[str, str]:
        """The volume of a bundle, and its architecture. Raises BundleError."""
        with self._making:
            if name not in self._bundles:
                from ..bundle.default import default_bundle
                from ..bundle.volumes import bundle_image, bundle_volume

                client = self.engine.client
                tag = name or default_bundle(client)
                architecture = bundle_image(client, tag).attrs.get("Architecture", "")
                self._bundles[name] = bundle_volume(client, tag), architecture
            return self._bundles[name]

    def forget_bundle(self, name: str | None) -> None:
        with self._making:
            self._bundles.pop(name, None)


class Container:
    """One sandbox's container, from before it is made until after it is gone."""

    def __init__(self, provider: DockerProvider, here: Here, config: SandboxConfig) -> None:
        self._provider = provider
        self._here = here
        self._engine = here.engine
        self._config = config
        # A name of our own: a create whose answer did not come has no id to remove it by.
        self.name = _name(config.labels)
        self._id: str | None = None
        self._asked = False
        self._transport: AttachTransport | None = None
        self._sandbox: RemoteSandbox | None = None

    def start(self) -> RemoteSandbox:
        """Make it, attach to it, start it, and wait until its worker answers."""
        config, api = self._config, self._engine.api
        image = self._here.images.get(config.image, config.platform)
        volume, architecture = self._here.bundle(config.bundle)
        if normal(image.architecture) != normal(architecture):
            raise SandboxStartError(
                f"the image {config.image!r} is for {image.architecture}, and the bundle "
                f"{config.bundle or '(the default one)'} for {architecture}: give a platform, or another bundle"
            )
        env, kept = self._environment(image)
        self._create(env, volume)
        assert self._id is not None
        watch = self._engine.events.watch(self._id, self.name)
        with self._engine.doing("attach to a container"):
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            self._transport = AttachTransport(api.attach_socket(self._id, params=params), watch.exit_of)
        self._sandbox = RemoteSandbox(
            self._transport,
            on_log=config.on_log,
            labels=config.labels,
            max_result=self._provider.max_result,
            max_log=self._provider.max_log,
        )
        try:
            with self._engine.doing(f"start a container of {config.image!r}"):
                api.start(self._id)
        except SandboxStartError:
            # Its volume may have been removed: look again.
            self._here.forget_bundle(config.bundle)
            raise
        self._sandbox.connect(self._provider.start_timeout, {"environ": kept})
        return self._sandbox

    def _create(self, env: dict[str, str], volume: str) -> None:
        from docker.errors import NotFound

        from ..bundle import COMMAND

        config, provider, api = self._config, self._provider, self._engine.api
        self._asked = True
        with self._engine.doing(f"make a container of {config.image!r}"):
            try:
                made = api.create_container(
                    config.image,
                    # An entrypoint: the image's own would get a command as its arguments.
                    entrypoint=list(COMMAND),
                    command=[],
                    name=self.name,
                    stdin_open=True,
                    environment=env,
                    labels={**provider.labels, **self._labels()},
                    host_config=self._host_config(volume),
                    healthcheck={"test": ["NONE"]},
                    platform=config.platform,
                    user=provider.user,
                    working_dir=provider.workdir,
                    runtime=provider.runtime,
                )
            except NotFound as error:
                self._here.images.forget(config.image)
                raise SandboxStartError(
                    f"the image {config.image!r} is not in the engine any more: {one_line(error)}", transient=True
                ) from error
        self._id = made["Id"]

    def _host_config(self, volume: str) -> Any:
        from docker.types import DeviceRequest, LogConfig, Mount

        from ..bundle import ROOT

        config, provider = self._config, self._provider
        resource = config.resource
        memory = (resource.memory if resource else None) or provider.memory
        cpus = (resource.cpu if resource else None) or provider.cpus
        gpu = resource.gpu if resource else None
        mounts = [Mount(ROOT, volume, type="volume", read_only=True, no_copy=True)]
        settings: dict[str, Any] = {
            "auto_remove": True,
            "network_mode": config.network or provider.network,
            # The default one would write every frame to the engine's disk.
            "log_config": LogConfig(type="none"),
            "security_opt": ["no-new-privileges"],
            "pids_limit": provider.pids_limit,
            "read_only": provider.read_only,
            "binds": [mount for mount in provider.mounts if isinstance(mount, str)],
        }
        if memory is not None:
            # No swap on top: a limit that is passed by swapping ends nothing, and slows everything.
            settings |= {"mem_limit": memory, "memswap_limit": memory}
        if cpus is not None:
            settings["nano_cpus"] = int(cpus * 1e9)
        if gpu:
            settings["device_requests"] = [DeviceRequest(count=int(gpu), capabilities=[["gpu"]])]
        if provider.read_only:
            settings["tmpfs"] = {"/tmp": ""}
        options = dict(provider.options)
        mounts += [mount for mount in provider.mounts if not isinstance(mount, str)]
        mounts += options.pop("mounts", [])
        return self._engine.api.create_host_config(**{**settings, **options}, mounts=mounts)

    def _environment(self, image: Image) -> tuple[dict[str, str], dict[str, str]]:
        """The container's own environment, and what the worker has to put back into it."""
        env = dict(self._config.env or {})
        kept = {}
        for name in _LOADER:
            value = env.get(name, image.env.get(name))
            if value:
                kept[name] = value
                env[name] = ""
        return env, kept

    def _labels(self) -> dict[str, str]:
        key, _, value = self._here.label.partition("=")
        return {**owners.labels_for(self._config.labels), key: value}

    def end(self, *, quiet: bool = False) -> None:
        """Kill it, remove it, and free what it holds here. With `quiet` failure is only logged.

        Raises:
            SandboxError: it can't be told that it is gone.
        """
        # A fork of this process may come by here too, and the sandbox is not its own.
        if self._engine.pid != os.getpid():
            return
        if self._sandbox is not None:
            self._sandbox.kill()
        try:
            if self._asked:
                self._remove()
        except SandboxError as error:
            if not quiet:
                raise
            _log.error("%s", error)
        finally:
            if self._sandbox is not None:
                self._sandbox.close()
            if self._id is not None:
                self._engine.events.forget(self._id)

    def _remove(self) -> None:
        from docker.errors import DockerException
        from requests import RequestException

        try:
            sweep.remove(self._engine.api, self._id or self.name)
        except (DockerException, RequestException) as error:
            raise SandboxError(
                f"container {self.name} could not be removed: {one_line(error)}. `agentix clean` removes it later"
            ) from error


def _maker(provider: DockerProvider) -> Callable[[], Any]:
    if provider.client is None:
        return lambda: connect(provider.engine_timeout)
    if callable(provider.client):
        make: Callable[[], Any] = provider.client
        return make
    return lambda: provider.client


def _name(labels: Mapping[str, str]) -> str:
    about = re.sub(r"[^a-zA-Z0-9_.-]+", "-", labels.get("instance_id", ""))[:60].strip("-.")
    return "-".join(filter(None, ("agentix", about, labels.get("phase", ""), secrets.token_hex(6))))
