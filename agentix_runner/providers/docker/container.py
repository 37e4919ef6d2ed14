"""One sandbox's container: made, attached to, started, ended."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...bundle import BUNDLE_LABEL, PYTHON, ROOT, SITE
from ...errors import SandboxError, SandboxStartError
from ...records import SandboxConfig
from ...remote.sandbox import guard
from .. import owners
from ..sandbox import RemoteSandbox
from . import sweep
from .attach import AttachTransport
from .engine import one_line
from .events import Watch
from .images import Image, normal

if TYPE_CHECKING:
    from .provider import DockerProvider
    from .shared import Here

_log = logging.getLogger("agentix_runner.providers.docker")

COMMAND = (PYTHON, "-I", "-S", "-c", guard.BOOT, SITE)
"""What a sandbox's first process is."""

# Seconds that a container may take to end and remove itself once its connection is closed.
_BY_ITSELF_S = 2.0
# Variables of an image that would change what the bundle's own loader loads. The worker puts them back for what it
# starts.
_LOADER = ("LD_PRELOAD", "LD_AUDIT")


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
        self._unsure = False
        self._emptied: str | None = None
        self._watch: Watch | None = None
        self._started = False
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
        self._check_runtime()
        watch = self._watch = self._engine.events.watch(self._id, self.name)
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
        except SandboxStartError as error:
            if not error.transient and PYTHON in str(error):
                # It ran when the volume was made, so that the volume has been removed. The engine made an empty one.
                self._here.forget_bundle(config.bundle)
                self._emptied = volume
                raise SandboxStartError(f"the bundle's volume is gone: {error}", transient=True) from error
            raise
        self._started = True
        self._sandbox.connect(self._provider.start_timeout, {"environ": kept})
        return self._sandbox

    def _create(self, env: dict[str, str], volume: str) -> None:
        from docker.errors import APIError, NotFound

        config, provider, api = self._config, self._provider, self._engine.api
        self._asked = self._unsure = True
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
                )
            except NotFound as error:
                self._unsure = False
                self._here.images.forget(config.image, config.platform)
                raise SandboxStartError(
                    f"the image {config.image!r} is not in the engine any more: {one_line(error)}", transient=True
                ) from error
            except APIError:
                self._unsure = False
                raise
        self._unsure = False
        self._id = made["Id"]

    def _check_runtime(self) -> None:
        """A runtime is chosen for how it isolates: one that the engine passes over in silence is an error."""
        wanted = self._provider.options.get("runtime", self._provider.runtime)
        if wanted is None:
            return
        with self._engine.doing("look at a container"):
            settings = self._engine.api.inspect_container(self._id).get("HostConfig") or {}
        if settings.get("Runtime") != wanted:
            raise SandboxStartError(
                f"the engine does not take {wanted!r} as a container's runtime (it says {settings.get('Runtime')!r}): "
                "set the runtime in the engine's own configuration (podman: containers.conf), and give none"
            )

    def _host_config(self, volume: str) -> Any:
        from docker.types import DeviceRequest, LogConfig, Mount

        config, provider = self._config, self._provider
        resource = config.resource
        memory = (resource.memory if resource else None) or provider.memory
        cpus = (resource.cpu if resource else None) or provider.cpus
        gpu = resource.gpu if resource else None
        # The engine makes an empty one where it is gone: with the label `agentix clean` knows it.
        labels = {BUNDLE_LABEL: "1"}
        mounts = [Mount(ROOT, volume, type="volume", read_only=True, no_copy=True, labels=labels)]
        settings: dict[str, Any] = {
            "auto_remove": True,
            "network_mode": config.network or provider.network,
            # The default one would write every frame to the engine's disk.
            "log_config": LogConfig(type="none"),
            "security_opt": ["no-new-privileges"],
            "pids_limit": provider.pids_limit,
            "read_only": provider.read_only,
            "runtime": provider.runtime,
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

    def _is_gone(self) -> bool:
        """Whether it has removed itself, now that it was hung up on: the least work for the engine, and as quick."""
        if self._watch is None or not self._here.tells_removals:
            return False
        if self._watch.is_gone(_BY_ITSELF_S):
            return True
        if self._watch.ended:
            # This engine has other words for it: don't wait for them again.
            self._here.tells_removals = False
        return False

    def _remove(self) -> None:
        from docker.errors import DockerException
        from requests import RequestException

        if self._started and self._is_gone():
            return
        api = self._engine.brief
        try:
            self._engine.knock()
            sweep.remove(api, self._id or self.name)
            if self._unsure:
                # The engine has not told what became of it: it may be making it still.
                self._here.owe(self.name)
            if self._emptied is not None:
                api.remove_volume(self._emptied)
        except (DockerException, RequestException, OSError) as error:
            self._here.owe(self.name)
            raise SandboxError(
                f"container {self.name} could not be removed: {one_line(error)}. `agentix clean` removes it later"
            ) from error


def _name(labels: Mapping[str, str]) -> str:
    about = re.sub(r"[^a-zA-Z0-9_.-]+", "-", labels.get("instance_id", ""))[:60].strip("-.")
    return "-".join(filter(None, ("agentix", about, labels.get("phase", ""), secrets.token_hex(6))))
