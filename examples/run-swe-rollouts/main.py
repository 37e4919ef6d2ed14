"""Run SWE-bench: the gold patches, recorded patches, or an agent, each row in a sandbox of its own.

python examples/run-swe-rollouts/main.py --dataset verified --limit 10 --ground-truth --out runs/gold
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from agents.gold import GoldPatchAgent
from agents.recorded import RecordedAgent, read_predictions
from dataset import SweDataset
from jsonfiles import content_hash
from rows import check_ids, need

from agentix_runner import DockerProvider, Timeouts, run_rollouts
from agentix_runner.cli import exit_codes
from agentix_runner.cli.options import Command
from agentix_runner.cli.select import choose
from agentix_runner.cli.streams import logging_to
from agentix_runner.cli.values import duration
from agentix_runner.errors import BadArgument
from agentix_runner.report.terminal import table
from agentix_runner.rundir.summary import summarize

MOST_S = 30 * 86400.0


def limit_of(text: str) -> float:
    """A limit in seconds. There is always one: the limits around it are made from it."""
    with suppress(click.BadParameter):
        value = duration(text)
        if value <= MOST_S:
            return value
    raise click.BadParameter(f"{text!r} is not a valid time: expected seconds above 0, 30m or 2h, at most 30d")


@click.command(cls=Command)
@click.option("--rows", type=click.Path(dir_okay=False), help="A file of rows, one JSON object a line.")
@click.option("--dataset", metavar="NAME", help="A dataset: an alias (verified), a hub's name, or a path.")
@click.option("--split", default="test", show_default=True, help="Which part of --dataset.")
@click.option("--instance-id", "ids", multiple=True, metavar="ID", help="Only this row; a glob; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N rows.")
@click.option("--ground-truth", is_flag=True, help="The rows' own patches.")
@click.option("--predictions", type=click.Path(dir_okay=False), help="The patches in a .json or .jsonl file.")
@click.option("--agent", type=click.Choice(["claude-code", "mini"]), help="An agent's patches.")
@click.option("--model", help="The agent's model.")
@click.option("--bundle", metavar="IMAGE", help="The bundle: for claude-code one with the CLI (see README.md).")
@click.option("--n-concurrent", type=int, default=4, show_default=True, help="How many rows at once.")
@click.option(
    "--eval-timeout", type=limit_of, metavar="TIME", default="30m", show_default=True, help="For a row's tests."
)
@click.option("--agent-timeout", type=limit_of, metavar="TIME", default="1h", show_default=True, help="For the agent.")
@click.option(
    "--network", default="none", show_default=True, help="The sandboxes' network; \"bridge\" is the harness'."
)
@click.option("--memory", help='Most memory of a sandbox, as in "8g".')
@click.option("--fail-on-unresolved", is_flag=True, help="Exit code 1 unless every row is resolved.")
@click.option("--retry-errors", is_flag=True, help="When resuming --out, run rows with an error again.")
@click.option("--out", required=True, metavar="DIR", help="Where results are kept; a run that is there is resumed.")
@click.pass_context
def main(ctx: click.Context, /, **options: Any) -> None:
    """Run SWE-bench rows, and score each patch as swebench's own harness does.

    TIME is in seconds, or 30m, 2h.
    """
    with logging_to(sys.stderr, verbose=False, quiet=False):
        how_to_resume = f"the same command goes on with {options['out']}"
        ctx.exit(exit_codes.run(lambda: run(**options), on_interrupt=lambda: how_to_resume))


def run(
    *,
    rows: str | None,
    dataset: str | None,
    split: str,
    ids: tuple[str, ...],
    limit: int | None,
    ground_truth: bool,
    predictions: str | None,
    agent: str | None,
    model: str | None,
    bundle: str | None,
    n_concurrent: int,
    eval_timeout: float,
    agent_timeout: float,
    network: str,
    memory: str | None,
    fail_on_unresolved: bool,
    retry_errors: bool,
    out: str,
) -> int:
    if (rows is None) == (dataset is None):
        raise BadArgument("give the rows: --rows FILE or --dataset NAME")
    if ground_truth + (predictions is not None) + (agent is not None) != 1:
        raise BadArgument("give one of --ground-truth, --predictions FILE and --agent NAME")
    swe = SweDataset(rows=rows, name=dataset, split=split, eval_timeout=eval_timeout)
    try:
        if dataset is not None:
            click.echo(f"Loading {dataset}; a first download takes its time", err=True)
        every = list(swe.instances())
        check_ids(every)
        solver, chosen = solver_for(
            every, ground_truth=ground_truth, predictions=predictions, agent=agent, timeout=agent_timeout
        )
        chosen = choose(chosen, ids=ids, limit=limit)
        swe.check(chosen)
        for row in chosen if predictions is None else ():
            need(
                row, "patch" if ground_truth else "problem_statement", "--ground-truth" if ground_truth else "an agent"
            )
        if agent == "mini":
            solver.check(model)
        rollouts = run_rollouts(
            dataset=swe,
            instances=chosen,
            agent=solver,
            provider=DockerProvider(network=network, memory=memory, user="root"),
            bundle=bundle,
            model=model,
            n_concurrent=n_concurrent,
            # The limits inside come first: they leave a log, and a patch.
            timeouts=Timeouts(agent=agent_timeout, score=eval_timeout + 900),
            run_dir=out,
            retry_errors=retry_errors,
            progress="auto",
            arguments={
                "dataset": "run-swe-rollouts",
                # With the contents: files of the same name may hold something else the next time.
                "dataset_args": {"rows": rows, "name": dataset, "split": split, "rows_content": content_hash(every)},
                "agent": agent or ("predictions" if predictions else "ground-truth"),
                "agent_args": {
                    "predictions": predictions,
                    "predictions_content": content_hash(solver.predictions.values()) if predictions else None,
                },
            },
        )
    finally:
        swe.harness.close()
    click.echo(table(summarize(rollouts), run_dir=out))
    failed = any(r.error is not None or (fail_on_unresolved and not r.resolved) for r in rollouts)
    return exit_codes.FAILED if failed else exit_codes.OK


def solver_for(
    rows: list[dict[str, Any]], *, ground_truth: bool, predictions: str | None, agent: str | None, timeout: float
) -> tuple[Any, list[dict[str, Any]]]:
    """The agent, and the rows that it has something for."""
    if ground_truth:
        return GoldPatchAgent(), rows
    if predictions is not None:
        found = read_predictions(predictions)
        unknown = set(found) - {row["instance_id"] for row in rows}
        if unknown:
            raise BadArgument(
                f"{predictions} has a prediction for {min(unknown):.200}, which is no row of this dataset"
            )
        return RecordedAgent(found), [row for row in rows if row["instance_id"] in found]
    if agent == "mini":
        from agents.mini_swe import MiniSweAgent

        return MiniSweAgent(settings={"agent": {"wall_time_limit_seconds": int(timeout * 0.9)}}), rows
    from agents.claude_code import ClaudeCodeAgent

    return ClaudeCodeAgent(timeout=timeout * 0.9), rows


if __name__ == "__main__":
    main(prog_name=f"python {Path(sys.argv[0])}")
