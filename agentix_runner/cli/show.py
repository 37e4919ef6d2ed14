"""`agentix show`: a run's summary, or one rollout in full, in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..records import STATUSES
from . import exit_codes
from .options import Command, Option
from .output import write

EPILOG = """\
\b
Examples:
  agentix show runs/humaneval
  agentix show runs/humaneval --status error
  agentix show runs/humaneval HumanEval/12
"""


@click.command(
    name="show",
    cls=Command,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("run_dir", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.argument("instance_id", metavar="[ID]", required=False)
@click.option(
    "--attempt",
    cls=Option,
    group="Options",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this attempt, counted from 0.",
)
@click.option(
    "--status",
    cls=Option,
    group="Options",
    multiple=True,
    type=click.Choice(STATUSES),
    metavar="STATUS",
    help=f"List the rollouts of this status; repeatable: {', '.join(STATUSES)}.",
)
@click.option("--json", "as_json", cls=Option, group="Options", is_flag=True, help="Print it as JSON.")
@click.pass_context
def show(
    ctx: click.Context,
    /,
    run_dir: Path,
    instance_id: str | None,
    attempt: int | None,
    status: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the summary of a run, or with ID one of its rollouts in full.

    ID is an instance's id, or the beginning of it where only one begins so. All of its attempts are shown.
    """
    from .look import look

    with exit_codes.interruptible():
        code = exit_codes.exit_code(
            lambda: _show(look(run_dir, instance_id, attempt=attempt, statuses=status, as_json=as_json)),
            verbose=False,
            on_interrupt=lambda: "nothing more is shown",
        )
    ctx.exit(code)


def _show(text: str) -> int:
    write(text, sys.stdout)
    return exit_codes.OK
