"""`agentix-run`: run an agent over a dataset from a shell. The options and their help; what they do is in launch.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .._version import __version__
from ..records import LIMITED_PHASES
from .launch import Request, launch
from .options import Command, Option
from .output import ensure_streams
from .values import amount, duration, error_limit, key_value, part

EPILOG = """\
\b
Examples:
  agentix-run --dataset examples.humaneval:dataset \\
    --agent examples.humaneval:canonical --n-concurrent 4 --out runs/humaneval
  agentix-run --dataset bench.py:Tasks --dataset-arg split=test \\
    --agent my_agent:Agent --model my-model --limit 10 --json

\b
Exit codes:
  0    every rollout ran to its end
  1    a rollout has an error (--fail-on-unresolved: or is not resolved)
  2    the command can't be run as given; nothing was started
  70   a bug in agentix-runner, with its traceback
  74   the results can't be written
  130  Ctrl-C (143: SIGTERM, 129: SIGHUP); a second one leaves at once
"""

WHICH = "Which instances (applied in this order)"

F = TypeVar("F", bound=Callable[..., Any])


def _option(group: str, *names: str, **settings: Any) -> Callable[[F], F]:
    return click.option(*names, cls=Option, group=group, **settings)


def _limit(phase: str, what: str) -> Callable[[F], F]:
    return _option("Limits", f"--timeout-{phase}", type=duration, metavar="TIME", help=what)


def _pairs(name: str, of: str) -> Callable[[F], F]:
    return _option(
        "What to run", name, type=key_value, multiple=True, metavar="K=V", help=f"An argument of the {of}; repeatable."
    )


@click.command(
    cls=Command, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@_option(
    "What to run",
    "--dataset",
    required=True,
    metavar="MODULE:ATTR",
    help="The dataset: an object, a class or a factory.",
)
@_option("What to run", "--agent", required=True, metavar="MODULE:ATTR", help="The agent, likewise.")
@_option(
    "What to run",
    "--provider",
    default="local",
    show_default=True,
    metavar="NAME",
    help="What makes the sandboxes: a name, or MODULE:ATTR.",
)
@_pairs("--dataset-arg", "dataset's class or factory")
@_pairs("--agent-arg", "agent's")
@_pairs("--provider-arg", "provider's")
@_option("What to run", "--model", help="The model, handed to the agent.")
@_option("What to run", "--bundle", metavar="IMAGE", help="The bundle image that `agentix build` made.")
@_option(
    "What to run", "--platform", metavar="OS/ARCH", help="The sandboxes' platform, where the provider offers several."
)
@_option(
    WHICH,
    "--shuffle",
    type=int,
    metavar="SEED",
    help="Put them in a random order, the same for the same seed.",
)
@_option(
    WHICH,
    "--instance-id",
    "instance_ids",
    multiple=True,
    metavar="ID",
    help="Only this one; a glob such as 'django*'; repeatable.",
)
@_option(
    WHICH,
    "--slice",
    "part",
    type=part,
    metavar="A:B",
    help="Only a part of them, counted as in Python.",
)
@_option(
    WHICH,
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the first N of what is left.",
)
@_option(
    "How", "--n-concurrent", type=int, default=4, show_default=True, metavar="N", help="How many rollouts run at once."
)
@_option(
    "How",
    "--dask",
    metavar="ADDRESS",
    help="Run on a Dask cluster, at its scheduler's address; local:N for N worker processes here.",
)
@_option(
    "How",
    "--dask-resource",
    type=amount,
    multiple=True,
    metavar="K=N",
    help="What a rollout takes of a resource that Dask workers offer; repeatable.",
)
@_option(
    "How",
    "--n-attempts",
    type=int,
    default=1,
    show_default=True,
    metavar="K",
    help="How often each instance is run (pass@k).",
)
@_option("How", "--no-score", is_flag=True, help="Keep the patches, score none.")
@_option("How", "--retry-attempts", type=int, metavar="N", help="How often making a sandbox is tried.  [default: 4]")
@_option(
    "How",
    "--max-errors",
    type=error_limit,
    metavar="N",
    help="Stop after N errors; below 1: that fraction of all rollouts.",
)
@_option("How", "--fail-on-unresolved", is_flag=True, help="Exit code 1 unless every rollout is resolved.")
@_limit("session", "For making one sandbox, retries included.  [default: 10m]")
@_limit("setup", "For preparing an instance.  [default: 30m]")
@_limit("agent", "For the agent.  [default: 1h]")
@_limit("score", "For scoring.  [default: 30m]")
@_limit("teardown", "For removing one sandbox.  [default: 1m]")
@_limit("total", "For a whole rollout.  [default: none]")
@_option(
    "Results",
    "--out",
    metavar="DIR",
    help="Where results are kept; a run that is there already is resumed.  [default: a new folder in runs/]",
)
@_option("Results", "--retry-errors", is_flag=True, help="When resuming, run those with an error again.")
@_option("Results", "--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout, and nothing else.")
@_option("Results", "-v", "--verbose", is_flag=True, help="Tell everything, what sandboxes print too.")
@_option("Results", "-q", "--quiet", is_flag=True, help="Tell errors only.")
@click.version_option(__version__, "--version", prog_name="agentix-run", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Run an agent over a dataset, each instance in a sandbox of its own, and score every patch in a fresh one.

    MODULE:ATTR is imported, the working directory first (bench.py:ATTR names a file). A class or a factory is called
    with the K=V that are given for it, converted as its signature says. TIME is in seconds, or 30m, 2h, none.
    """
    ensure_streams()
    limits = {name: options.pop(f"timeout_{name}") for name in (*LIMITED_PHASES, "total")}
    options["timeouts"] = {k: None if v == math.inf else v for k, v in limits.items() if v is not None}
    ctx.exit(launch(Request(**options)))


if __name__ == "__main__":
    main(prog_name="agentix-run")
