"""`agentix`: what there is to do around runs."""

from __future__ import annotations

import click

from .._version import __version__
from .build import build
from .clean import clean
from .options import CONTEXT, Group
from .report import report
from .show import show
from .streams import ensure_streams


@click.group(cls=Group, invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...", context_settings=CONTEXT)
@click.version_option(__version__, "--version", prog_name="agentix", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Tools around agentix-runner. To run an agent over a dataset: agentix-run."""
    ensure_streams()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for each in (build, clean, report, show):
    main.add_command(each)
