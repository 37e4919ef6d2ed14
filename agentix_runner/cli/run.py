"""`agentix-run`: run an agent over a dataset from a shell. Its options, and how they become the arguments of a run."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

from .._version import __version__
from ..errors import BadArgument
from ..protocols import Agent, Dataset
from ..records import LIMITED_PHASES, RetryPolicy, Timeouts
from ..report.progress import LogProgress, ProgressDisplay, TerminalProgress
from ..report.terminal import table
from ..text import clean, is_terminal, plural
from . import exit_codes
from .adapters import add_working_directory, load_adapter, load_provider, read_instances
from .options import Option, command
from .select import choose
from .streams import LineHandler, ensure_streams, logging_to, reserved_stdout, write
from .values import amount, duration, error_limit, key_value, part, to_mapping

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


def _pairs(usage: str, help: str, type: Callable[[str], tuple[str, Any]]) -> Option:
    return Option(usage, f"{help}; repeatable.", type=type, multiple=True, callback=to_mapping)


SELECTION = "Which instances (applied in this order)"
OPTIONS = {
    "What to run": [
        Option("--dataset MODULE:ATTR", "The dataset: an object, a class or a factory.", required=True),
        Option("--agent MODULE:ATTR", "The agent, likewise.", required=True),
        Option("--provider NAME", "What makes the sandboxes: a name, or MODULE:ATTR.", default="local"),
        _pairs("--dataset-arg K=V", "An argument of the dataset's class or factory", key_value),
        _pairs("--agent-arg K=V", "An argument of the agent's", key_value),
        _pairs("--provider-arg K=V", "An argument of the provider's", key_value),
        Option("--model TEXT", "The model, handed to the agent.", to_runner=True),
        Option("--bundle IMAGE", "The bundle image that `agentix build` made.", to_runner=True),
        Option("--platform OS/ARCH", "The sandboxes' platform, where the provider offers several.", to_runner=True),
    ],
    SELECTION: [
        Option("--shuffle SEED", "Put them in a random order, the same for the same seed.", type=int),
        Option("--instance-id ID", "Only this one; a glob such as 'django*'; repeatable.", name="ids", multiple=True),
        Option("--slice A:B", "Only a part of them, counted as in Python.", name="part", type=part),
        Option("--limit N", "Only the first N of what is left.", type=click.IntRange(min=1)),
    ],
    "How": [
        Option("--n-concurrent N", "How many rollouts run at once.", type=int, default=4, to_runner=True),
        Option(
            "--dask ADDRESS",
            "Run on a Dask cluster, at its scheduler's address; local:N for N worker processes here.",
        ),
        _pairs("--dask-resource K=N", "What a rollout takes of a resource that Dask workers offer", amount),
        Option("--n-attempts K", "How often each instance is run (pass@k).", type=int, default=1, to_runner=True),
        Option("--no-score", "Keep the patches, score none."),
        Option("--retry-attempts N", "How often making a sandbox is tried.  [default: 4]", type=int),
        Option(
            "--max-errors N",
            "Stop after N errors; below 1: that fraction of all rollouts.",
            type=error_limit,
            to_runner=True,
        ),
        Option("--fail-on-unresolved", "Exit code 1 unless every rollout is resolved."),
    ],
    "Limits": [
        Option("--timeout-session TIME", "For making one sandbox, retries included.  [default: 10m]", type=duration),
        Option("--timeout-setup TIME", "For preparing an instance.  [default: 30m]", type=duration),
        Option("--timeout-agent TIME", "For the agent.  [default: 1h]", type=duration),
        Option("--timeout-score TIME", "For scoring.  [default: 30m]", type=duration),
        Option("--timeout-teardown TIME", "For removing one sandbox.  [default: 1m]", type=duration),
        Option("--timeout-total TIME", "For a whole rollout.  [default: none]", type=duration),
    ],
    "Results": [
        Option(
            "--out DIR",
            "Where results are kept; a run that is there already is resumed.  [default: a new folder in runs/]",
        ),
        Option("--retry-errors", "When resuming, run those with an error again.", to_runner=True),
        Option("--json", "Print the summary as JSON on stdout, and nothing else."),
        Option("-v, --verbose", "Tell everything, what sandboxes print too."),
        Option("-q, --quiet", "Tell errors only."),
    ],
}


@command("agentix-run", groups=OPTIONS, epilog=EPILOG)
@click.version_option(__version__, "--version", prog_name="agentix-run", message="%(prog)s %(version)s")
def main(**options: Any) -> int:
    """Run an agent over a dataset, each instance in a sandbox of its own, and score every patch in a fresh one.

    MODULE:ATTR is imported, the working directory first (bench.py:ATTR names a file). A class or a factory is called
    with the K=V that are given for it, converted as its signature says. TIME is in seconds, or 30m, 2h, none.
    """
    ensure_streams()
    verbose, quiet = options["verbose"], options["quiet"]
    with logging_to(sys.stderr, verbose=verbose, quiet=quiet) as handler:
        run_dir, progress = options["out"], _progress(handler, verbose=verbose, quiet=quiet)
        if run_dir is None:
            run_dir = fresh_run_dir(options["dataset"])
            progress.headline = f"results: {clean(run_dir)}"
        return exit_codes.run(
            lambda: _run(options, run_dir, progress),
            verbose=verbose,
            on_interrupt=lambda: _how_to_go_on(progress, run_dir),
        )


def _run(options: Mapping[str, Any], run_dir: str, progress: ProgressDisplay) -> int:
    from ..rundir.summary import summarize
    from ..runner import run_rollouts

    with reserved_stdout() as stdout:
        if options["verbose"] and options["quiet"]:
            raise BadArgument("-v and -q exclude each other: leave one of them out")
        if options["no_score"] and options["fail_on_unresolved"]:
            raise BadArgument("--fail-on-unresolved needs scores: leave one of --no-score and it out")
        arguments = run_arguments(options)
        with _executor(options) as executor:
            rollouts = run_rollouts(**arguments, run_dir=run_dir, progress=progress, executor=executor)
        summary = summarize(rollouts)
        write(json.dumps(summary, indent=2) if options["json"] else table(summary, run_dir=run_dir), stdout)
    failed = any(r.error is not None or (options["fail_on_unresolved"] and not r.resolved) for r in rollouts)
    return exit_codes.FAILED if failed else exit_codes.OK


def run_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `options` say as arguments of `run_rollouts`: all but the run directory, the progress and the executor.

    Raises:
        BadArgument, BadAdapter: before anything of the user's is loaded where that is possible.
    """
    limits = {name: options[f"timeout_{name}"] for name in (*LIMITED_PHASES, "total")}
    timeouts = Timeouts(**{k: None if v == math.inf else v for k, v in limits.items() if v is not None})
    attempts = options["retry_attempts"]
    retry = None if attempts is None else RetryPolicy(attempts=attempts)
    add_working_directory()
    names = {name: options[name] for name in ("dataset", "agent", "provider")}
    given = {name: options[f"{name}_arg"] for name in names}
    dataset = load_adapter(names["dataset"], Dataset, option="--dataset", args=given["dataset"])
    agent = load_adapter(names["agent"], Agent, option="--agent", args=given["agent"])
    provider = load_provider(names["provider"], given["provider"])
    selection = {option.name: options[option.name] for option in OPTIONS[SELECTION]}
    return {
        "dataset": dataset,
        "agent": agent,
        "provider": provider,
        "instances": choose(read_instances(dataset, names["dataset"]), **selection),
        "score": not options["no_score"],
        "timeouts": timeouts,
        "retry": retry,
        # What makes it the same run, when it is resumed.
        "arguments": {**names, **{f"{name}_args": args for name, args in given.items() if args}},
        **{o.name: options[o.name] for group in OPTIONS.values() for o in group if o.to_runner},
    }


def _executor(options: Mapping[str, Any]) -> AbstractContextManager[Executor | None]:
    where, resources = options["dask"], options["dask_resource"]
    if where is None:
        if resources:
            raise BadArgument("--dask-resource needs --dask: give the cluster's address, or leave it out")
        return nullcontext()
    from .dask import dask_executor

    return dask_executor(where, resources=resources, n_concurrent=options["n_concurrent"])


def _progress(handler: LineHandler, *, verbose: bool, quiet: bool) -> ProgressDisplay:
    if quiet or not is_terminal(sys.stderr):
        return LogProgress()
    line = TerminalProgress(sys.stderr, running=verbose, clear_for_logs=False)
    handler.around = line.hidden
    return line


def _how_to_go_on(progress: ProgressDisplay, run_dir: str) -> str:
    if not progress.started:
        return "nothing was started"
    return (
        f"{plural(progress.counts.finished_here, 'rollout')} finished and kept; "
        f"the rest: the same command with --out {shlex.quote(clean(run_dir))}"
    )


def fresh_run_dir(dataset: str) -> str:
    """A run directory for a run without --out: when, of what, and letters that tell apart runs of one second."""
    module, _, _ = dataset.rpartition(":")
    name = re.sub(r"\W+", "-", module.removesuffix(".py").rpartition("/")[2].rpartition(".")[2])[:40].strip("-")
    return os.path.join("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{name or 'run'}-{secrets.token_hex(2)}")


if __name__ == "__main__":
    main(prog_name="agentix-run")
