"""`agentix`: what there is to do around runs."""

from __future__ import annotations

import click

from .._version import __version__
from .build import build
from .clean import clean
from .options import Group
from .output import ensure_streams
from .report import report
from .show import show


@click.group(
    cls=Group,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "--version", prog_name="agentix", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Tools around agentix-runner. To run an agent over a dataset: agentix-run."""
    ensure_streams()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


main.add_command(build)
main.add_command(clean)
main.add_command(report)
main.add_command(show)
