"""click commands whose help is in groups, and whose errors are one line with an exit code."""

from __future__ import annotations

import sys
from typing import Any

import click


class Option(click.Option):
    """An option that belongs to a group of the help."""

    def __init__(self, *args: Any, group: str = "Other", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class OneLine:
    """Mixed into a click command: an error in its use is one line on stderr and exit code 2."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        run = super().main  # type: ignore[misc]
        if not standalone_mode:
            return run(*args, standalone_mode=False, **kwargs)
        try:
            code = run(*args, standalone_mode=False, **kwargs)
        except click.ClickException as exc:
            sys.exit(show(exc))
        except click.Abort:
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def show(exc: click.ClickException) -> int:
    """Tell `exc` in one line on stderr, and return its exit code."""
    message = " ".join(exc.format_message().split())
    ctx = getattr(exc, "ctx", None)
    hint = f" (see {ctx.command_path} --help)" if ctx is not None else ""
    click.echo(f"Error: {message}{hint}", err=True)
    return exc.exit_code


class Command(OneLine, click.Command):
    """A command whose options are shown in the groups that they name, in the order of their first option; those without
    one come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        rest: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Arguments are in the usage line, and the text above says what they are.
            if record is not None and not isinstance(parameter, click.Argument):
                group = getattr(parameter, "group", None)
                (rest if group is None else groups.setdefault(group, [])).append(record)
        groups.setdefault("Options" if "Options" in groups or not groups else "Other", []).extend(rest)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=34)


class Group(OneLine, click.Group):
    """A group of commands with the same manners."""
