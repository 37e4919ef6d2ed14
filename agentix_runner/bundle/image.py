"""The image of a bundle: assembled, and loaded into the engine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from .._version import __version__
from ..errors import BadArgument, BundleError
from . import PYTHON_LABEL, VERSION_LABEL
from .cache import scratch
from .layers import write_image
from .tree import Assembled, Project, Source, assembled

if TYPE_CHECKING:
    import docker

_TAG = re.compile(r"(?P<name>[a-z0-9]+(?:[._:/-]+[a-z0-9]+)*?)(?::(?P<version>\w[\w.-]{0,127}))?\Z", re.ASCII)
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_ARCHIVES = (".whl", ".tar.gz", ".zip")


@frozen(kw_only=True)
class Built:
    """A bundle image in the engine. `digest` is that of its content, `id` the image's own, `python` its version.
    `missing` are libraries that were not found, as "FILE needs NAME"."""

    tag: str
    id: str
    digest: str
    python: str
    missing: tuple[str, ...]


def build(
    client: docker.DockerClient,
    source: Source,
    tag: str,
    *,
    project: Project | None = None,
    add: Iterable[tuple[Path, str]] = (),
    pip_args: Iterable[str] = (),
    labels: dict[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> Built:
    """Make a bundle image and load it into the engine as `tag`. The same input gives the same image.

    Raises:
        BundleError: it can't be made, or the engine does not take it.
        BadArgument: an argument is not possible.
    """
    tag = checked_tag(tag)
    with assembled(source, project=project, add=add, pip_args=pip_args, on_line=on_line) as parts:
        return _load(client, parts, tag, source.architecture, labels or {}, on_line)


def checked_tag(tag: str) -> str:
    """`tag`, with its version written out.

    Raises:
        BadArgument: it is no NAME:TAG.
    """
    match = _TAG.match(tag)
    if match is None or len(tag) > 255:
        raise BadArgument(f"{tag!r} is no name for an image: give NAME:TAG in lower case, as in eval:0.1.0")
    return tag if match["version"] else f"{tag}:latest"


def find_project(path: Path) -> Project:
    """What is to be installed for `path`: a project's folder, a requirements file, a wheel or a source archive.

    Raises:
        BadArgument: it is none of them.
    """
    path = path.absolute()
    if path.is_dir():
        if any((path / name).is_file() for name in _PROJECT_FILES):
            return Project(folder=path, requirements=(".",))
        raise BadArgument(f"{path} is no project: it has no {', '.join(_PROJECT_FILES[:-1])} or {_PROJECT_FILES[-1]}")
    if not path.is_file():
        raise BadArgument(f"there is no {path}: give a project's folder or a requirements file")
    if path.name.endswith(_ARCHIVES):
        return Project(folder=path.parent, requirements=(f"./{path.name}",))
    return Project(folder=path.parent, requirements=("-r", path.name))


def _load(
    client: docker.DockerClient,
    parts: Assembled,
    tag: str,
    architecture: str,
    labels: dict[str, str],
    on_line: Callable[[str], None],
) -> Built:
    import docker.errors
    import requests

    marks = {**labels, PYTHON_LABEL: parts.version, VERSION_LABEL: __version__}
    with scratch() as folder:
        archive = folder / "image.tar"
        image, digest = write_image(archive, list(parts.layers), tags=[tag], architecture=architecture, labels=marks)
        on_line(f"loading {tag} into the engine ({os.stat(archive).st_size >> 20} MiB)")
        try:
            with open(archive, "rb") as file:
                for event in client.api.load_image(file):
                    if "error" in event:
                        raise BundleError(f"the engine does not take the image {tag}: {event['error']}")
            loaded = client.images.get(tag)
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise BundleError(f"the engine does not take the image {tag}: {' '.join(str(error).split())}") from error
    if loaded.labels.get("agentix.bundle.digest") != digest:
        raise BundleError(f"the engine has another image as {tag} than was just loaded: is another build running?")
    return Built(tag=tag, id=image, digest=digest, python=parts.version, missing=parts.missing)
