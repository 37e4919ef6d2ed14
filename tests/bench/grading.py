"""Grading side by side: `main.py --predictions` of examples/run-swe-rollouts, and swebench's own harness, on the same
images, rows, predictions and number of workers.

    python -m tests.bench.grading [--workers N] [--rows N]

Needs an engine and the extra [swe]. Prints the wall time of each, their ratio, and where verdicts or reports differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import docker
from attrs import frozen

from agentix_runner.bundle.default import default_bundle

from ..support import swe_images as images
from ..support.engine import engine_problem
from ..support.images import CannotMake
from ..support.swe_example import EXAMPLE, installed
from . import show

PATCHES = {"gold": images.GOLD, "wrong": images.WRONG, "breaks": images.BREAKS, "fuzzy": images.FUZZY}
_LIMIT_S = 1800
UNAVAILABLE = 3


@frozen
class Graded:
    """What one of the two made of the predictions, by instance id; `reports` has None where there is none."""

    seconds: float
    resolved: set[str]
    reports: dict[str, dict[str, Any] | None]


def write(folder: Path, row: dict[str, Any], patches: dict[str, str]) -> None:
    """rows.jsonl and preds.json: the row once for each patch."""
    rows = [{**row, "instance_id": f"test__calc-{name}"} for name in patches]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    predictions = {
        f"test__calc-{name}": {
            "instance_id": f"test__calc-{name}",
            "model_name_or_path": "test",
            "model_patch": patch,
        }
        for name, patch in patches.items()
    }
    (folder / "preds.json").write_text(json.dumps(predictions))


def by_harness(folder: Path, *, workers: int, timeout: int = 1800) -> Graded:
    """swebench's own run_evaluation."""
    command = [sys.executable, "-m", "swebench.harness.run_evaluation", "-d", "rows.jsonl", "-p", "preds.json"]
    command += ["--max_workers", str(workers), "-t", str(timeout), "-id", "side-by-side"]
    # At its end it lists all containers of the engine, and fails where one of somebody else's is just going.
    seconds = _timed(command, folder, enough="All instances run.")
    reports: dict[str, dict[str, Any] | None] = {}
    for name in json.loads((folder / "preds.json").read_text()):
        path = folder / "logs/run_evaluation/side-by-side/test" / name / "report.json"
        reports[name] = json.loads(path.read_text())[name] if path.exists() else None
    return Graded(seconds, {name for name, report in reports.items() if report and report["resolved"]}, reports)


def by_us(folder: Path, *, workers: int, timeout: int = 1800) -> Graded:
    """main.py. "failure_stage" and "log" are its own; a stage that the harness has no report of makes it None."""
    command = [sys.executable, str(EXAMPLE / "main.py"), "--rows", "rows.jsonl", "--predictions", "preds.json"]
    command += ["--n-concurrent", str(workers), "--eval-timeout", str(timeout), "--out", "out"]
    seconds = _timed(command, folder)
    resolved, reports = set(), {}
    for line in (folder / "out/rollouts.jsonl").read_text().splitlines():
        rollout = json.loads(line)
        score = rollout["score"]
        if score is not None:
            stage = score.pop("failure_stage")
            del score["log"]
            score = None if stage in ("apply", "timeout") else score
            if score is not None and score["resolved"]:
                resolved.add(rollout["instance_id"])
        reports[rollout["instance_id"]] = score
    return Graded(seconds, resolved, reports)


def _timed(command: list[str], folder: Path, enough: str = "\0") -> float:
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S,
    )
    seconds = time.monotonic() - began
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0 and enough not in said:
        raise RuntimeError(f"{command[1:3]} ended with {done.returncode}: {said[-3000:]}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    problem = engine_problem()
    if problem is None and not installed("swebench"):
        problem = "swebench is not installed: pip install -e '.[swe]'"
    if problem:
        print(problem, file=sys.stderr)
        return UNAVAILABLE
    names = list(PATCHES)
    patches = {f"{names[n % len(names)]}-{n}": PATCHES[names[n % len(names)]] for n in range(options.rows)}
    with contextlib.closing(docker.from_env(timeout=600)) as client, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            write(folder, images.ensure_row(client), patches)
        except CannotMake as error:
            print(error, file=sys.stderr)
            return UNAVAILABLE
        default_bundle(client)  # made once for all runs, as images are
        ours = by_us(folder, workers=options.workers)
        theirs = by_harness(folder, workers=options.workers)
    show.machine("swebench", "docker")
    show.table(
        f"Grading {options.rows} predictions, {options.workers} workers",
        ["", "s", "/ harness", "resolved"],
        [
            ["swebench's harness", theirs.seconds, 1.0, len(theirs.resolved)],
            ["main.py", ours.seconds, ours.seconds / theirs.seconds, len(ours.resolved)],
        ],
    )
    differing = [name for name in theirs.reports if ours.reports.get(name) != theirs.reports[name]]
    print(f"reports that differ: {', '.join(differing) or 'none'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
