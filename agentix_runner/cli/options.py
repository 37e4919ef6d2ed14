"""click commands whose options come from a table, whose help is in groups, and whose errors are one line."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from . import exit_codes

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Option(click.Option):
    """An option of a table: as the help shows it ("-o, --output FILE"), and what it is for. Without a metavar it is a
    flag. `to_runner`: its value is the argument of that name of `run_rollouts`."""

    group = ""
    """Under which heading the help shows it."""

    def __init__(
        self, usage: str, help: str, *, name: str | None = None, to_runner: bool = False, **settings: Any
    ) -> None:
        names = usage.replace(",", " ").split()
        metavar = None if names[-1].startswith("-") else names.pop()
        if name is not None:
            names.append(name)
        if metavar is None:
            settings["is_flag"] = True
        super().__init__(names, help=help, metavar=metavar, show_default="default" in settings, **settings)
        self.to_runner = to_runner


class OneLine:
    """Mixed into a click command: an error in its use is one line on stderr and exit code 2, and what its function
    returns is the exit code."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        run = super().main  # type: ignore[misc]
        if not standalone_mode:
            return run(*args, standalone_mode=False, **kwargs)
        try:
            code = run(*args, standalone_mode=False, **kwargs)
        except click.ClickException as exc:
            sys.exit(show_error(exc))
        except click.Abort:
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def show_error(exc: click.ClickException) -> int:
    """Print `exc` in one line on stderr, and return its exit code."""
    message = " ".join(exc.format_message().split())
    ctx = getattr(exc, "ctx", None)
    hint = f" (see {ctx.command_path} --help)" if ctx is not None else ""
    click.echo(f"Error: {message}{hint}", err=True)
    return exc.exit_code


class Command(OneLine, click.Command):
    """A command whose options are shown in their groups, in the order of each group's first option; those without one
    come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Arguments are in the usage line, and the text above says what they are.
            if record is not None and not isinstance(parameter, click.Argument):
                groups.setdefault(getattr(parameter, "group", ""), []).append(record)
        rest = groups.pop("", [])
        groups["Other" if groups else "Options"] = rest
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=34)


class Group(OneLine, click.Group):
    """A group of commands with the same manners."""


def command(
    name: str,
    *parameters: click.Parameter,
    groups: Mapping[str, Sequence[Option]] | None = None,
    epilog: str,
    on_interrupt: str | None = None,
) -> Callable[[Callable[..., int]], Command]:
    """Make a function, which returns the exit code, the command `name`. Its docstring is the help, `groups` are its
    options under their headings, `parameters` its arguments and the options without a heading.

    `on_interrupt` is what is said of it when a signal has ended it; without, the function sees to its own errors and
    signals (`exit_codes.run`).
    """
    params = list(parameters)
    for group, options in (groups or {}).items():
        for option in options:
            option.group = group
        params += options

    def decorate(function: Callable[..., int]) -> Command:
        @functools.wraps(function)
        def run(**arguments: Any) -> int:
            if on_interrupt is None:
                return function(**arguments)
            return exit_codes.run(lambda: function(**arguments), on_interrupt=lambda: on_interrupt)

        return click.command(name, cls=Command, params=params, epilog=epilog, context_settings=CONTEXT)(run)

    return decorate
