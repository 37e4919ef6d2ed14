"""`agentix build`: makes a bundle, the image that sandboxes take their Python and a project's functions from."""

from __future__ import annotations

import contextlib
import platform as machine
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import BadArgument, BundleError
from ..text import clean, printable
from . import exit_codes
from .options import Option, command
from .streams import write

if TYPE_CHECKING:
    import docker

    from ..bundle.tree import Source

EPILOG = """\
\b
Examples:
  agentix build . -t eval:0.1.0
  agentix build . -t eval:0.1.0 --from-host --add ./agent:bin/agent
  agentix build requirements.txt -t eval:0.1.0 --base python:3.12-slim

\b
Exit codes:
  0    the image is in the engine
  1    it could not be made
  2    an argument is not possible; nothing was started
"""
# How long (seconds) the engine may take to answer at all, and with one thing that it does: it says nothing while it
# takes in an image of many gigabytes.
_ANSWER_S = 30
_WORK_S = 3600


OPTIONS = {
    "What": [
        Option("-t, --tag NAME:TAG", "The image's name, as in eval:0.1.0.", required=True),
        Option(
            "--add SRC:DEST",
            "Also put the file or folder SRC at DEST below /agentix; can be repeated.",
            multiple=True,
        ),
        Option("--pip-arg ARG", "Hand ARG to pip install; can be repeated.", name="pip_args", multiple=True),
    ],
    "Python": [
        Option("--base IMAGE", "Take the Python of this image.  [default: python:X.Y-slim]"),
        Option("--from-host", "Take this Python itself: no base image, Linux only."),
        Option("--python X.Y", "The version that it must be.  [default: this one's]"),
        Option("--platform OS/ARCH", "What the image is for, as in linux/arm64."),
    ],
    "Output": [Option("-q, --quiet", "Don't tell how it goes.")],
}


@command(
    "build",
    click.Argument(["project"], required=False, type=click.Path(path_type=Path)),
    groups=OPTIONS,
    epilog=EPILOG,
    on_interrupt="no image was made",
)
def build(
    *,
    project: Path | None,
    tag: str,
    add: tuple[str, ...],
    pip_args: tuple[str, ...],
    base: str | None,
    from_host: bool,
    python: str | None,
    platform: str | None,
    quiet: bool,
) -> int:
    """Make a bundle: an image whose /agentix is mounted in sandboxes, with a Python, what agentix-runner needs there,
    and PROJECT.

    PROJECT is a project's folder, a requirements file, a wheel or a source archive. Its functions can then be called
    in the sandbox by name. The same input gives the same image.
    """
    from ..bundle import image as bundle_image

    def show(line: str) -> None:
        if not quiet and line:
            click.echo(click.style(printable(line), dim=True), err=True)

    # All that can be told to be wrong is told before the engine is asked.
    if base is not None and from_host:
        raise BadArgument("--base and --from-host exclude each other: give one of them")
    tag = bundle_image.checked_tag(tag)
    if python is not None and not re.fullmatch(r"3\.\d{1,2}", python):
        raise BadArgument(f"--python {python!r}: give a version as X.Y, as in 3.12")
    found = bundle_image.find_project(project) if project is not None else None
    extra = [_addition(text) for text in add]
    with _engine() as client:
        source = _source(client, base, from_host, python, platform, show)
        built = bundle_image.build(client, source, tag, project=found, add=extra, pip_args=pip_args, on_line=show)
    for missing in built.missing:
        click.echo(f"Warning: {clean(missing)}, and that library is not there", err=True)
    write(f"{built.tag} {built.digest} (Python {built.python})", sys.stdout)
    return exit_codes.OK


def _source(
    client: docker.DockerClient,
    base: str | None,
    from_host: bool,
    python: str | None,
    platform: str | None,
    show: Callable[[str], None],
) -> Source:
    own = ".".join(machine.python_version_tuple()[:2])
    if not from_host:
        from ..bundle.base_image import BaseImage

        image = base or f"python:{python or own}-slim"
        return BaseImage(client, image, platform=platform, python=python, on_line=show)
    from ..bundle.tree import ThisPython

    source = ThisPython()
    if python not in (None, own):
        raise BadArgument(
            f"--from-host takes this Python, which is {own}, not {python}: give --base python:{python}-slim"
        )
    if platform not in (None, f"linux/{source.architecture}"):
        raise BadArgument(f"--from-host makes bundles for linux/{source.architecture}, not {platform}: give a --base")
    return source


def _addition(text: str) -> tuple[Path, str]:
    source, colon, destination = text.rpartition(":")
    if not colon or not source or not destination:
        raise BadArgument(f"--add {text}: give SRC:DEST, as in ./agent:bin/agent")
    if not Path(source).exists():
        raise BadArgument(f"--add {text}: there is no {source}")
    return Path(source), destination


@contextlib.contextmanager
def _engine() -> Iterator[docker.DockerClient]:
    from ..providers.docker.engine import Engine, connect

    try:
        with contextlib.closing(connect(_ANSWER_S)) as client:
            client.ping()
        client = connect(_WORK_S)
    except Exception as error:  # requests and urllib3 have many, and each means the same here
        raise BundleError(str(Engine(lambda: None, "").explained(error, "be reached"))) from error
    with contextlib.closing(client):
        yield client
