"""`agentix clean`: removes what runs have left in a container engine because they were killed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadArgument, SandboxError
from ..text import clean as cleaned
from ..text import plural
from . import exit_codes
from .options import Option, command
from .streams import write

if TYPE_CHECKING:
    from ..providers.docker.sweep import Found

EPILOG = """\
\b
Without --run it removes what belongs to runs whose process on this machine is dead: --all-dead says the same in so
many words. It never touches the containers of a run that goes on, nor any that agentix-run did not make.

\b
Exit codes:
  0    all of it is removed
  1    something could not be removed, or no engine answers
  2    an argument is not possible
"""
_TIMEOUT_S = 60.0


OPTIONS = {
    "What": [
        Option("--run ID", "Only the containers of this run (run_id in run.json).", name="run_id"),
        Option("--all-dead", "Those of every run that is dead.  [default]"),
        Option("--dry-run", "Tell what would be removed, and remove nothing."),
        Option(
            "--force",
            "With --run, also what runs and belongs to a process that can't be seen from here: of another machine, or "
            "in another container.",
        ),
    ]
}


@command("clean", groups=OPTIONS, epilog=EPILOG, on_interrupt="some of it may be left")
def clean(run_id: str | None, all_dead: bool, dry_run: bool, force: bool) -> int:
    """Remove containers that dead runs have left, and the volumes of bundles that are gone.

    It takes a killed process to leave any: a run removes its own, and those of dead ones when it starts.
    """
    from ..bundle.mount import remove_unused_volumes
    from ..providers.docker.sweep import find

    if run_id is not None and all_dead:
        raise BadArgument("--run and --all-dead exclude each other: give one of them")
    if run_id == "":
        raise BadArgument("--run is empty: give a run's id (run_id in its run.json)")
    if force and run_id is None:
        raise BadArgument("--force needs --run ID: without, only what is dead for certain is removed")
    word = "would remove" if dry_run else "removed"
    with _engine() as client:
        containers = _doomed(find(client.api, run_id), run_id, force)
        failed = 0
        for one in containers:
            about = f"container {one.name} ({one.status}{f', run {one.run_id}' if one.run_id else ''})"
            if not dry_run and not _removed(client, one, about):
                failed += 1
                continue
            write(f"{word} {cleaned(about)}", sys.stdout)
        volumes = [] if run_id is not None else remove_unused_volumes(client, dry_run)
        for name in volumes:
            write(f"{word} volume {cleaned(name)}", sys.stdout)
    count = f"{plural(len(containers) - failed, 'container')} and {plural(len(volumes), 'volume')}"
    write(f"{word} {count}", sys.stdout)
    return exit_codes.FAILED if failed else exit_codes.OK


def _doomed(found: list[Found], run_id: str | None, force: bool) -> list[Found]:
    """Those to be removed. Raises BadArgument for a run that goes on."""
    if run_id is None:
        return [one for one in found if one.owner.is_dead]
    for one in found:
        if one.owner.is_here and not one.owner.is_dead:
            raise BadArgument(f"run {run_id} goes on (process {one.owner.pid}): stop that first")
        if not one.owner.is_dead and not force and one.status not in ("created", "exited", "dead"):
            where = f"process {one.owner.pid} on {one.owner.host or '?'}"
            raise BadArgument(
                f"run {run_id} may go on ({cleaned(where)}, which can't be seen from here): stop that first, or give "
                "--force"
            )
    return found


def _removed(client: Any, one: Found, about: str) -> bool:
    from docker.errors import DockerException
    from requests import RequestException

    from ..providers.docker.sweep import remove

    try:
        remove(client.api, one.id)
    except (DockerException, RequestException, SandboxError) as error:
        click.echo(f"Error: {cleaned(f'{about} could not be removed: {error}', 2000)}", err=True)
        return False
    return True


@contextlib.contextmanager
def _engine() -> Iterator[Any]:
    from ..providers.docker.engine import Engine, connect

    engine = Engine(lambda: connect(_TIMEOUT_S), "agentix.provider=none")
    with engine.used(), engine.doing("look for what is left"):
        yield engine.client
