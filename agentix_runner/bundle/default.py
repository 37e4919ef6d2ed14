"""The bundle of runs that name none: this interpreter and the remote side, made once and kept in the engine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BundleError
from . import INPUTS_LABEL
from .cache import locked
from .image import build
from .interpreter import CannotCollect
from .seed import recipe_key, seed_key
from .tree import ThisPython, host_architecture

if TYPE_CHECKING:
    import docker

_log = logging.getLogger("agentix_runner.bundle")

REPOSITORY = "agentix-bundle/default"
_KEPT = 4
"""How many default bundles are kept in the engine; other environments and versions have others."""
_RECIPE = ("__init__.py", "tree.py", "image.py", "interpreter.py", "elf.py", "inside.py", "layers.py", "project.py")
_REMEDY = "build one with `agentix build -t NAME:TAG`, and give that as the bundle"


def default_bundle(client: docker.DockerClient, on_line: Callable[[str], None] = _log.info) -> str:
    """The tag of the default bundle in the engine. It is made when it is not there yet, which takes some 20 seconds for
    an interpreter that has not been bundled before, and 3 for one that has. Several processes make it once.

    Raises:
        BundleError: none can be made from this interpreter, for this engine.
    """
    from docker.errors import DockerException
    from requests import RequestException

    try:
        source = ThisPython()
        engine = client.api.version()
        if not sys.platform.startswith("linux"):
            raise BundleError(f"there is no default bundle on {sys.platform}: {_REMEDY}")
        if engine.get("Arch", "").partition("/")[0] != host_architecture().partition("/")[0]:
            raise BundleError(
                f"the engine runs {engine.get('Arch')} and this machine {host_architecture()}, so that there is no "
                f"default bundle: {_REMEDY}"
            )
        key = _key(source)
        tag = f"{REPOSITORY}:{key[:24]}"
        if _is_there(client, tag, key):
            return tag
        with locked("default"):
            if not _is_there(client, tag, key):
                on_line("making the default bundle from this interpreter")
                build(client, source, tag, labels={INPUTS_LABEL: key}, on_line=on_line)
                # Loading doesn't tell when it was; tagging does.
                client.api.tag(tag, REPOSITORY, key[:24])
                _forget_old(client, tag)
        return tag
    except CannotCollect as error:
        raise BundleError(f"there is no default bundle: {error}; {_REMEDY}") from error
    except (DockerException, RequestException) as error:
        raise BundleError(f"the default bundle can't be asked for: {' '.join(str(error).split())[:500]}") from error


def _key(source: ThisPython) -> str:
    inputs = [source.key(), source.architecture, seed_key(), recipe_key(*_RECIPE)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def _is_there(client: docker.DockerClient, tag: str, key: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        return bool(client.images.get(tag).labels.get(INPUTS_LABEL) == key)
    except ImageNotFound:
        return False


def _forget_old(client: docker.DockerClient, current: str) -> None:
    """Remove all but the last few default bundles: each edit of the remote side makes another one."""
    from docker.errors import DockerException
    from requests import RequestException

    with contextlib.suppress(DockerException, RequestException):
        images = client.images.list(REPOSITORY, filters={"label": INPUTS_LABEL})
        dated = sorted(images, key=lambda image: str(image.attrs.get("Metadata", {}).get("LastTagTime")), reverse=True)
        for image in dated[_KEPT:]:
            if current not in image.tags:
                for tag in image.tags:
                    if tag.startswith(f"{REPOSITORY}:"):
                        client.images.remove(tag)
