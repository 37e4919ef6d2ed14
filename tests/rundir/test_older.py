"""A run directory that version 0.1 wrote: read, shown and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import DockerProvider, LocalProvider
from agentix_runner.records import Failure, Rollout
from agentix_runner.report import write_report
from agentix_runner.rundir.directory import RunDir, identity_of, read_rollouts
from agentix_runner.rundir.names import safe_name

PHASES = [["session", 0.25, 0.5], ["setup", 0.5, 0.75], ["agent", 0.75, 1.0], ["teardown", 1.0, 1.5]]
LINES: list[dict[str, Any]] = [
    {
        "instance_id": "Odd/ID é~%2e",
        "patch": "diff --git a/x b/x\n+é\udcff\r\n",
        "score": {"resolved": True, "reward": 0.5, "tests": [1, {"a": None}]},
        "agent_exit": 0,
        "error": None,
        "skipped": None,
        "duration_s": 1.5,
        "attempt": 0,
        "model": "m",
        "started_at": 1796647143.5,
        "phases": PHASES,
        "info": {"cost": 0.25, "total_tokens": 12, "obj": "<class 'object'>"},
        "failure": None,
    },
    {
        "instance_id": "failed",
        "patch": "kept",
        "score": None,
        "agent_exit": None,
        "error": "ValueError: boom second line",
        "skipped": None,
        "duration_s": 0.5,
        "attempt": 0,
        "model": "m",
        "started_at": 1796647144.25,
        "phases": PHASES[:2],
        "info": {},
        "failure": {
            "phase": "agent",
            "type": "ValueError",
            "message": "boom\nsecond line",
            "traceback": "Traceback (most recent call last):\n  ...\nValueError: boom\n",
            "transient": False,
        },
    },
    {
        "instance_id": "x/" * 120,
        "patch": "",
        "score": None,
        "agent_exit": 3,
        "error": None,
        "skipped": "empty_patch",
        "duration_s": 0.25,
        "attempt": 1,
        "model": None,
        "started_at": None,
        "phases": [],
        "info": {},
        "failure": None,
    },
    {
        "instance_id": "\ud83d\ue000\ude00",  # two surrogates, held apart by the mark that the last field names
        "patch": "",
        "score": None,
        "agent_exit": None,
        "error": None,
        "skipped": "setup_failed",
        "duration_s": 0.25,
        "attempt": 0,
        "model": "m",
        "started_at": 1796647145.0,
        "phases": [],
        "info": {},
        "failure": None,
        "split_pairs": "\ue000",
    },
]
IDENTITY: dict[str, Any] = {
    "dataset": {"adapter": "tests.rundir.test_older:Tasks"},
    "agent": {"adapter": "bench:make_agent", "steps": "5"},
    "provider": {
        "adapter": "agentix_runner.providers.docker:DockerProvider",
        "network": "none",
        "memory": None,
        "cpus": None,
        "mounts": [],
        "read_only": False,
        "user": None,
        "workdir": None,
        "runtime": None,
        "options": {},
    },
    "bundle": None,
    "model": "m",
    "score": True,
    "platform": None,
}
RUN = {
    "format": 1,
    "run_id": "8fbce5cda790",
    "identity": IDENTITY,
    "details": {"platform": "Linux", "program": "make.py", "rollouts": 5},
    "created_at": "2026-12-07T12:39:03+00:00",
    "versions": {"agentix-runner": "0.1.0", "python": "3.11.7"},
}


class Tasks:
    """Stands for a dataset in an identity."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory as a killed run leaves it: the last line is torn, one patch is missing, nothing is derived."""
    path = tmp_path / "run"
    (path / safe_name("failed")).mkdir(parents=True)
    (path / safe_name("failed") / "patch.diff").write_text("kept")
    (path / "run.json").write_text(json.dumps(RUN, indent=2) + "\n")
    (path / "run.lock").write_text("process 1 on somewhere\n")
    (path / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"instance_id": "torn')
    return path


def _identity(provider: Any) -> dict[str, Any]:
    arguments = {"agent": "bench:make_agent", "agent_args": {"steps": "5", "api_key": "abc", "max_wait_timeout": "3"}}
    return identity_of(
        dataset=Tasks(), agent=object(), provider=provider, bundle=None, model="m", score=True, platform=None,
        arguments=arguments,
    )  # fmt: skip


def _expected() -> list[Rollout]:
    fields = [{**line, "phases": [tuple(phase) for phase in line["phases"]]} for line in LINES]
    fields[1]["failure"] = Failure(**fields[1]["failure"])
    fields[3]["instance_id"] = "\ud83d\ude00"
    del fields[3]["split_pairs"]
    return [Rollout(**found) for found in fields]


def test_is_read(path: Path, tmp_path: Path) -> None:
    """Every field of every whole line is read as it was, and the report shows them."""
    assert list(read_rollouts(path)) == _expected()
    assert write_report([path], tmp_path / "report.html").rollouts == 4


def test_is_resumed(path: Path) -> None:
    """It opens for the same adapters, knows what has finished, goes on after the torn line, and derives the rest."""
    first = _expected()[0]
    with RunDir(path, identity=_identity(DockerProvider()), details=RUN["details"], retry_errors=True) as run_dir:
        assert run_dir.run_id == "8fbce5cda790"
        assert list(run_dir.finished.values()) == [rollout for rollout in _expected() if rollout.error is None]
        run_dir.record([Rollout("torn", skipped="empty_patch")])

    assert json.loads((path / "run.json").read_text()) == RUN
    lines = (path / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    assert b"".join(lines[:4]) == "".join(json.dumps(line) + "\n" for line in LINES).encode()
    assert list(read_rollouts(path)) == [*_expected(), Rollout("torn", skipped="empty_patch")]
    patch = path / "Odd%2fID%20%c3%a9%7e%252e~c1" / "patch.diff"
    assert patch.read_bytes() == "diff --git a/x b/x\n+é".encode() + b"\xff\r\n"
    assert list(json.loads((path / "preds.json").read_text())) == sorted([first.instance_id, "failed", "torn"])
    assert json.loads((path / "summary.json").read_text())["error"] == 1


def test_names_of_providers_stay() -> None:
    """What tells a provider in run.json is the same as in 0.1, wherever its class lies now."""
    assert _identity(DockerProvider()) == IDENTITY
    assert _identity(LocalProvider())["provider"] == {
        "adapter": "agentix_runner.providers.local:LocalProvider",
        "root": None,
        "env": None,
        "python": None,
    }
