"""What `agentix-run` does: load the adapters, choose the instances, run them, show what came of it."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from attrs import define, frozen

from ..errors import AgentixError, BadArgument
from ..protocols import Agent, Dataset, SandboxProvider
from ..records import RetryPolicy, Rollout, Timeouts
from ..report.progress import LogProgress, Progress, TerminalProgress
from ..report.terminal import table
from ..text import clean, is_terminal, plural
from . import exit_codes
from .adapters import add_working_directory, load_adapter, read_instances, users_error
from .output import reserved_stdout, write
from .select import choose
from .streams import LOGGER, LineHandler, logging_to
from .values import to_mapping

logger = logging.getLogger(LOGGER)


@frozen(kw_only=True)
class Request:
    """What the command line asks for: the options, under the names of run.py."""

    dataset: str
    agent: str
    provider: str
    dataset_arg: Sequence[tuple[str, str]]
    agent_arg: Sequence[tuple[str, str]]
    provider_arg: Sequence[tuple[str, str]]
    model: str | None
    bundle: str | None
    platform: str | None
    shuffle: int | None
    instance_ids: Sequence[str]
    part: slice | None
    limit: int | None
    n_concurrent: int
    dask: str | None
    dask_resource: Sequence[tuple[str, float]]
    n_attempts: int
    no_score: bool
    retry_attempts: int | None
    max_errors: float | None
    fail_on_unresolved: bool
    timeouts: Mapping[str, float | None]
    out: str | None
    retry_errors: bool
    as_json: bool
    verbose: bool
    quiet: bool


@define
class Standing:
    """How far the command is, for who interrupts it. The runner's progress: hands everything on to `shown`."""

    run_dir: str
    announce: bool
    shown: Progress
    started: bool = False
    finished: int = 0

    def start(self, *, total: int, finished: Sequence[Rollout]) -> None:
        self.started = True
        if self.announce:
            logger.info("results: %s", clean(self.run_dir))
        self.shown.start(total=total, finished=finished)

    def event(self, instance_id: str, phase: str) -> None:
        self.shown.event(instance_id, phase)

    def result(self, rollout: Rollout) -> None:
        self.finished += 1
        self.shown.result(rollout)

    def tick(self) -> None:
        self.shown.tick()

    def close(self) -> None:
        self.shown.close()

    def __str__(self) -> str:
        if not self.started:
            return "nothing was started"
        return (
            f"{plural(self.finished, 'rollout')} finished and kept; "
            f"the rest: the same command with --out {shlex.quote(clean(self.run_dir))}"
        )


def launch(request: Request) -> int:
    """Do what `request` asks for, and return the exit code."""
    with logging_to(sys.stderr, verbose=request.verbose, quiet=request.quiet) as handler, exit_codes.interruptible():
        run_dir = fresh_run_dir(request.dataset) if request.out is None else request.out
        standing = Standing(run_dir, announce=request.out is None, shown=_progress(request, handler))
        return exit_codes.exit_code(
            lambda: _run(request, standing), verbose=request.verbose, on_interrupt=lambda: str(standing)
        )


def _run(request: Request, standing: Standing) -> int:
    with reserved_stdout() as stdout:
        if request.verbose and request.quiet:
            raise BadArgument("-v and -q exclude each other: leave one of them out")
        if request.no_score and request.fail_on_unresolved:
            raise BadArgument("--fail-on-unresolved needs scores: leave one of --no-score and it out")
        settings = _settings(request)
        instances = _instances(request, settings["dataset"])
        from ..rundir.summary import summarize
        from ..runner import run_rollouts

        with _executor(request) as executor:
            rollouts = run_rollouts(
                **settings, instances=instances, run_dir=standing.run_dir, progress=standing, executor=executor
            )
        summary = summarize(rollouts)
        text = json.dumps(summary, indent=2) if request.as_json else table(summary, run_dir=standing.run_dir)
        write(text, stdout)
    failed = any(r.error is not None or (request.fail_on_unresolved and not r.resolved) for r in rollouts)
    return exit_codes.FAILED if failed else exit_codes.OK


def _settings(request: Request) -> dict[str, Any]:
    """The arguments of `run_rollouts`, all but the instances and where outcomes go.

    Raises:
        BadArgument, BadAdapter: before anything of the user's is loaded where that is possible.
    """
    timeouts = Timeouts(**request.timeouts)
    retry = None if request.retry_attempts is None else RetryPolicy(attempts=request.retry_attempts)
    args = {
        name: to_mapping(pairs, f"--{name}-arg")
        for name, pairs in (
            ("dataset", request.dataset_arg),
            ("agent", request.agent_arg),
            ("provider", request.provider_arg),
        )
    }
    add_working_directory()
    return {
        "dataset": load_adapter(request.dataset, Dataset, option="--dataset", args=args["dataset"]),
        "agent": load_adapter(request.agent, Agent, option="--agent", args=args["agent"]),
        "provider": _provider(request.provider, args["provider"]),
        "bundle": request.bundle,
        "model": request.model,
        "platform": request.platform,
        "n_concurrent": request.n_concurrent,
        "n_attempts": request.n_attempts,
        "score": not request.no_score,
        "timeouts": timeouts,
        "retry": retry,
        "max_errors": request.max_errors,
        "retry_errors": request.retry_errors,
        "arguments": {
            "dataset": request.dataset,
            "agent": request.agent,
            "provider": request.provider,
            **{f"{name}_args": given for name, given in args.items() if given},
        },
    }


def _executor(request: Request) -> AbstractContextManager[Executor | None]:
    if request.dask is None:
        if request.dask_resource:
            raise BadArgument("--dask-resource needs --dask: give the cluster's address, or leave it out")
        return nullcontext()
    from .dask import dask_executor

    return dask_executor(request.dask, resources=dict(request.dask_resource), n_concurrent=request.n_concurrent)


def _provider(name: str, args: Mapping[str, str]) -> Any:
    if ":" in name:
        return load_adapter(name, SandboxProvider, option="--provider", args=args)
    from ..providers import load_provider

    try:
        return load_provider(name, args)
    except AgentixError:
        raise
    except Exception as exc:
        raise users_error(f"--provider {name} raised", exc) from exc


def _instances(request: Request, dataset: Any) -> list[dict[str, Any]]:
    from ..batch.checks import instance_id_of

    return choose(
        read_instances(dataset, request.dataset),
        id_of=instance_id_of,
        shuffle=request.shuffle,
        ids=request.instance_ids,
        part=request.part,
        limit=request.limit,
    )


def _progress(request: Request, handler: LineHandler) -> Progress:
    if request.quiet or not is_terminal(sys.stderr):
        return LogProgress()
    line = TerminalProgress(sys.stderr, running=request.verbose, clear_for_logs=False)
    handler.around = line.hidden
    return line


def fresh_run_dir(dataset: str) -> str:
    """A run directory for a run without --out: when, of what, and letters that tell apart runs of one second."""
    module, _, _ = dataset.rpartition(":")
    name = re.sub(r"\W+", "-", module.removesuffix(".py").rpartition("/")[2].rpartition(".")[2])[:40].strip("-")
    return os.path.join("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{name or 'run'}-{secrets.token_hex(2)}")
