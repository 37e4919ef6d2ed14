"""`agentix report`: one HTML page from one run directory or several."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..text import clean, plural
from . import exit_codes
from .options import Command, Option
from .output import write

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


@click.command(
    name="report",
    cls=Command,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out",
    cls=Option,
    group="Options",
    default="report.html",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The page. A report that is there is replaced, any other file is not.",
)
@click.option(
    "--watch",
    "watching",
    cls=Option,
    group="Options",
    is_flag=True,
    help="Write the page again and again until the run ends; the open page follows.",
)
@click.pass_context
def report(ctx: click.Context, /, run_dirs: tuple[Path, ...], out: Path, watching: bool) -> None:
    """Make one HTML page of a run, or of several side by side.

    The page needs no server, no network and nothing beside it, so that it can be sent to others. The first of several
    runs is what the others are held against.
    """
    ctx.exit(_report(run_dirs, out, watching))


def _report(run_dirs: tuple[Path, ...], out: Path, watching: bool) -> int:
    from ..report.write import Written, watch, write_report

    def told(written: Written) -> str:
        size = written.size
        amount = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(size // 1000, 1)} kB"
        return f"{clean(out)}: {plural(written.rollouts, 'rollout')}, {amount}"

    last: list[Written] = []

    def run() -> int:
        if not watching:
            write(told(write_report(run_dirs, out)), sys.stdout)
            return exit_codes.OK

        def on_write(written: Written) -> None:
            first = not last
            last[:] = [written]
            if first:
                click.echo(f"watching until the run ends; open {clean(out)}", err=True)

        watch(run_dirs, out, on_write=on_write)
        write(told(last[0]), sys.stdout)
        return exit_codes.OK

    with exit_codes.interruptible():
        return exit_codes.exit_code(
            run, verbose=False, on_interrupt=lambda: told(last[0]) if last else "no page was written"
        )
