"""The volumes that bundles are mounted from: each is filled once from its image, and holds what the image holds below
`/agentix`.

A volume can be neither renamed nor labelled when it is full, so there are two for each bundle: the *contents*, under a
name that nobody else uses, and the *pointer*, an empty one under a name made of the digest, whose label tells the
name of the contents. The pointer is made last. The engine makes a volume of one name only once, so:

- contents that a pointer names are whole; a process or engine that is killed in the middle leaves none that is named;
- of two processes, also on two machines with one engine, one makes the pointer; the other takes that one's contents.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from ..errors import BundleError
from . import BUNDLE_LABEL, DIGEST_LABEL, PYTHON, ROOT, marks

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

_log = logging.getLogger("agentix_runner.bundle")

FILL_LABEL = "agentix.bundle.fill"
"""On the container that fills a volume: the volume's name. It has an owner's labels too, so that it is swept like
the containers of sandboxes when its owner has died."""
_CONTENTS_LABEL = "agentix.bundle.contents"
_PREFIX = "agentix-bundle-"
_FILL_LIMIT_S = 900.0
_CHECK = "import sys; sys.exit(0)"
_TRIES = 3


def bundle_volume(client: docker.DockerClient, image: str) -> str:
    """The name of the volume that holds the bundle `image`, to be mounted read-only at /agentix. The first time it is
    made, which takes a second or more; after that it costs three questions to the engine.

    Raises:
        BundleError: there is no such image, it is no bundle, or it does not run here.
    """
    from docker.errors import DockerException
    from requests import RequestException

    try:
        found = bundle_image(client, image)
        digest = found.labels[DIGEST_LABEL]
        contents = _contents_of(client, digest)
        return contents if contents is not None else _make(client, found, image, digest)
    except (DockerException, RequestException) as error:
        raise BundleError(f"the volume of the bundle {image} can't be made: {_one_line(error)}") from error


def bundle_image(client: docker.DockerClient, image: str) -> Image:
    """The bundle image `image` in the engine.

    Raises:
        BundleError: there is no such image, it is no bundle, or it is for another architecture than the engine's.
    """
    from docker.errors import DockerException, ImageNotFound
    from requests import RequestException

    try:
        found = client.images.get(image)
    except ImageNotFound as error:
        raise BundleError(f"the engine has no image {image}: make it with `agentix build -t {image}`") from error
    except (DockerException, RequestException) as error:
        raise BundleError(f"the engine can't be asked for the image {image}: {_one_line(error)}") from error
    if BUNDLE_LABEL not in found.labels or not found.labels.get(DIGEST_LABEL):
        raise BundleError(f"{image} is no bundle: make one with `agentix build -t NAME:TAG`, and give that")
    return found


def unused_volumes(client: docker.DockerClient) -> list[str]:
    """The bundle volumes that no bundle image in the engine refers to any more, and those that were never filled to
    their end, as far as no container and no process of this user uses them. Contents come before the pointer that
    names them."""
    volumes = client.api.volumes(filters={"label": BUNDLE_LABEL})["Volumes"] or []
    images = client.api.images(all=True, filters={"label": BUNDLE_LABEL})
    wanted = {(image.get("Labels") or {}).get(DIGEST_LABEL) for image in images}
    used = {
        mount.get("Name")
        for container in client.api.containers(all=True)
        for mount in container.get("Mounts") or []
        if mount.get("Type") == "volume"
    }
    labels = {volume["Name"]: volume.get("Labels") or {} for volume in volumes}
    named = {name: found[_CONTENTS_LABEL] for name, found in labels.items() if _CONTENTS_LABEL in found}
    contents = sorted(set(labels) - set(named))
    # An empty one that the engine made in the place of contents does not have their digest.
    digests = {name: found.get(DIGEST_LABEL) for name, found in labels.items()}
    kept = {to for name, to in named.items() if digests[name] in wanted and digests.get(to) == digests[name]}
    gone = [name for name in contents if name not in kept and name not in used and not _is_marked(name)]
    # A pointer goes with its contents, and when somebody else has removed them.
    return gone + sorted(name for name, to in named.items() if to in gone or to not in labels)


def remove_unused_volumes(client: docker.DockerClient, dry_run: bool = False) -> list[str]:
    """Remove the `unused_volumes`, or with `dry_run` only tell. Returns their names. One that is being used after all
    is left alone."""
    from docker.errors import APIError, NotFound

    found = unused_volumes(client)
    if dry_run:
        return found
    removed: list[str] = []
    for name in found:
        try:
            if _is_pointer_to_living(client, name):
                continue
            with marks.unmarked(name) as free:
                if not free:
                    continue
                client.api.remove_volume(name)
            removed.append(name)
        except NotFound:
            removed.append(name)
        except APIError as error:
            # 409: a container uses it, perhaps one that is just being made.
            _log.log(logging.DEBUG if error.status_code == 409 else logging.WARNING, "%s stays: %s", name, error)
    return removed


def _contents_of(client: docker.DockerClient, digest: str) -> str | None:
    """The name of the contents that the pointer of `digest` names; None where there are no whole ones."""
    pointer = _volume(client, _pointer_name(digest))
    name = _labels(pointer).get(_CONTENTS_LABEL)
    if pointer is None or name is None:
        return None
    # One that somebody removed comes back empty, and without labels, when it is mounted.
    if _labels(_volume(client, name)).get(DIGEST_LABEL) == digest:
        return name
    _remove(client, pointer["Name"])
    return None


def _make(client: docker.DockerClient, image: Image, title: str, digest: str) -> str:
    _log.info("making the volume of the bundle %s", title)
    labels = {BUNDLE_LABEL: "1", DIGEST_LABEL: digest}
    for _ in range(_TRIES):
        contents = f"{_pointer_name(digest)}-{secrets.token_hex(6)}"
        try:
            client.api.create_volume(contents, labels=labels)
            container = _fill(client, image, title, contents)
            try:
                # Somebody may have removed it while no container used it yet; the engine then made another one.
                whole = _labels(_volume(client, contents)).get(DIGEST_LABEL) == digest
                winner = _point_to(client, digest, contents, labels) if whole else None
            finally:
                # Only now: as long as a container has them, nobody takes the contents for abandoned.
                _remove_container(client, container)
        except BaseException:
            _remove(client, contents)
            raise
        if winner == contents:
            return contents
        _remove(client, contents)
        if winner is not None:
            return winner
    raise BundleError(f"the volume of the bundle {title} is removed again and again: what else removes volumes here?")


def _point_to(client: docker.DockerClient, digest: str, contents: str, labels: dict[str, str]) -> str:
    """Make the pointer to `contents`. Returns the contents that it does name: another process may have been faster."""
    name = _pointer_name(digest)
    pointer = client.api.create_volume(name, labels={**labels, _CONTENTS_LABEL: contents})
    named = _labels(pointer).get(_CONTENTS_LABEL)
    if named is None:
        raise BundleError(f"the volume {name} is not one of a bundle: remove it (docker volume rm {name})")
    return named


def _fill(client: docker.DockerClient, image: Image, title: str, volume: str) -> str:
    """Have the engine fill the new volume, and see that the bundle's Python runs. Returns the container's name."""
    from docker.errors import APIError
    from docker.types import Mount
    from requests import ReadTimeout

    from ..providers.owners import owner

    name = f"{volume}-fill"
    mount = Mount(ROOT, volume, type="volume", labels={BUNDLE_LABEL: "1"})
    config = client.api.create_host_config(mounts=[mount], network_mode="none", read_only=True, cap_drop=["ALL"])
    labels = {FILL_LABEL: volume, **owner()}
    try:
        try:
            # The engine copies the image's /agentix into the empty volume: now (docker), or at the start (podman).
            client.api.create_container(
                image.id,
                entrypoint=[PYTHON],
                command=["-I", "-S", "-c", _CHECK],
                name=name,
                host_config=config,
                labels=labels,
                network_disabled=True,
            )
        except ReadTimeout:
            # It goes on copying: a large bundle takes longer than the client's patience with one answer.
            _wait_until_made(client, name)
        try:
            client.api.start(name)
        except APIError as error:
            why = _one_line(error)
            if PYTHON in why or "exec format" in why.lower():
                raise _does_not_run(client, image, title, why) from error
            raise BundleError(f"the engine can't start a container of the bundle {title}: {why}") from error
        status = _wait_until_ended(client, name)
        if status != 0:
            said = client.api.logs(name, tail=5).decode(errors="replace")
            raise _does_not_run(client, image, title, f"exit code {status} {' '.join(said.split())[-300:]}")
    except BaseException:
        _remove_container(client, name)
        raise
    return name


def _does_not_run(client: docker.DockerClient, image: Image, title: str, why: str) -> BundleError:
    engine = client.api.version().get("Arch")
    own = image.attrs.get("Architecture")
    if own != engine:
        return BundleError(f"the bundle {title} is for {own}, and the engine runs {engine}: build one for that")
    return BundleError(f"the Python of the bundle {title} does not run ({why}): build it anew")


def _wait_until_made(client: docker.DockerClient, name: str) -> None:
    from docker.errors import NotFound

    until = time.monotonic() + _FILL_LIMIT_S
    while True:
        try:
            client.api.inspect_container(name)
            return
        except NotFound:
            if time.monotonic() > until:
                raise BundleError(f"the engine has not filled a volume in {_FILL_LIMIT_S:.0f} s: is it busy?") from None
            time.sleep(0.25)


def _wait_until_ended(client: docker.DockerClient, name: str) -> int:
    until = time.monotonic() + _FILL_LIMIT_S
    pause = 0.01
    while True:
        state = client.api.inspect_container(name)["State"]
        if state["Status"] in ("exited", "dead"):
            return int(state["ExitCode"])
        if time.monotonic() > until:
            raise BundleError(f"the container {name} has not ended in {_FILL_LIMIT_S:.0f} s: is the engine busy?")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _pointer_name(digest: str) -> str:
    return _PREFIX + digest.rpartition(":")[2][:24]


def _volume(client: docker.DockerClient, name: str) -> dict[str, Any] | None:
    from docker.errors import NotFound

    try:
        found: dict[str, Any] = client.api.inspect_volume(name)
    except NotFound:
        return None
    return found


def _labels(volume: dict[str, Any] | None) -> dict[str, str]:
    return (volume or {}).get("Labels") or {}


def _is_marked(name: str) -> bool:
    with marks.unmarked(name) as free:
        return not free


def _is_pointer_to_living(client: docker.DockerClient, name: str) -> bool:
    to = _labels(_volume(client, name)).get(_CONTENTS_LABEL)
    return to is not None and _volume(client, to) is not None


def _remove(client: docker.DockerClient, volume: str) -> None:
    """Remove a volume; failing leaves it to `remove_unused_volumes`."""
    from docker.errors import DockerException
    from requests import RequestException

    with contextlib.suppress(DockerException, RequestException):
        client.api.remove_volume(volume)


def _remove_container(client: docker.DockerClient, name: str) -> None:
    from docker.errors import DockerException
    from requests import RequestException

    with contextlib.suppress(DockerException, RequestException):
        client.api.remove_container(name, force=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "explanation", None) or error).split())[:500]
