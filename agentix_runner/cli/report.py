"""`agentix report`: one HTML page from one run directory or several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..text import clean, plural
from . import exit_codes
from .options import Option, command
from .streams import write

if TYPE_CHECKING:
    from ..report.write import Written

EPILOG = """\
\b
Examples:
  agentix report runs/humaneval
  agentix report runs/before runs/after -o comparison.html
  agentix report runs/humaneval --watch

\b
Exit codes:
  0    the page is written
  2    a directory is no run directory, or the page can't be written
  130  Ctrl-C while it watched; the page is as far as the run was
"""


@command(
    "report",
    click.Argument(["run_dirs"], metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)),
    Option(
        "-o, --output FILE",
        "The page. A report that is there is replaced, any other file is not.",
        default="report.html",
        type=click.Path(path_type=Path),
    ),
    Option("--watch", "Write the page again and again until the run ends; the open page follows."),
    epilog=EPILOG,
)
def report(run_dirs: tuple[Path, ...], output: Path, watch: bool) -> int:
    """Make one HTML page of a run, or of several side by side.

    The page needs no server, no network and nothing beside it, so that it can be sent to others. The first of several
    runs is what the others are held against.
    """
    from ..report import write as pages

    last: list[Written] = []  # the page as it was written last

    def on_write(written: Written) -> None:
        first = not last
        last[:] = [written]  # before anybody can be told, and interrupt
        if watch and first:
            click.echo(f"watching until the run ends; open {clean(output)}", err=True)

    def summary() -> str:
        if not last:
            return "no page was written"
        size = last[0].size
        amount = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(size // 1000, 1)} kB"
        return f"{clean(output)}: {plural(last[0].rollouts, 'rollout')}, {amount}"

    def run() -> int:
        if watch:
            pages.watch(run_dirs, output, on_write=on_write)
        else:
            on_write(pages.write_report(run_dirs, output))
        write(summary(), sys.stdout)
        return exit_codes.OK

    return exit_codes.run(run, on_interrupt=summary)
