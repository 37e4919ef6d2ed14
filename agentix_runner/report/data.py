"""What the page needs to know of a run directory: a small index of all rollouts, and each rollout's details, packed.

Everything in a run directory is untrusted text; here it is cut to size and encoded, never interpreted.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from ..records import LIMITED_PHASES, Rollout, status_of
from ..rundir.directory import read_rollouts
from ..rundir.files import folder, open_plain_file
from ..rundir.names import ID_FILE, LOG_FILE, PATCH_FILE, safe_name
from ..rundir.runfile import planned, read_run_file
from ..rundir.summary import Summary, error_kind, finite_reward, usage_of
from .stats import pass_at_k_intervals, rate_interval

MAX_PATCH = 512 * 1024
MAX_LOG = 32 * 1024
MAX_TEXT = 64 * 1024
"""How much of a rollout's patch, log (its end), and of every other text is on the page; characters (log: bytes)."""
MAX_DETAILS = 256 * 1024 * 1024
"""How much packed detail a page holds, in bytes; rollouts after that have none."""
MAX_LINE = 240  # characters of an error in the table
MAX_FILES = 50  # files of an agent that are named

Packed = dict[tuple[Any, ...], str]
"""Packed details that are made already: a page that is written again and again packs each rollout once."""


@define
class RunView:
    """A run as the page shows it: `index` is JSON-able, `details` are the packed details of its rollouts, in order."""

    index: dict[str, Any]
    details: list[str]
    tallies: dict[str, list[int]] = field(factory=dict)


def read_run(path: Path, *, name: str, packed: Packed | None = None, room: int = MAX_DETAILS) -> RunView:
    """Read a run directory, also while the run goes on. `room` is how many bytes its packed details may take.

    Raises:
        RunDirError: it is no run directory, or its journal is damaged.
    """
    packed = {} if packed is None else packed
    rollouts = read_rollouts(path)
    summary = Summary()
    rows: list[dict[str, Any]] = []
    details: list[str] = []
    for rollout in rollouts:
        summary.add(rollout)
        rows.append(_row(rollout))
        key = (path, rollout.instance_id, rollout.attempt, rollout.started_at, rollout.duration_s)
        if key not in packed:
            packed[key] = pack(_details(path, rollout))
        made = packed[key] if len(packed[key]) <= room else ""
        room -= len(made)
        details.append(made)
    result = summary.result()
    scored = result["resolved"] + result["unresolved"] > 0
    run = read_run_file(path)
    index = {
        "name": name,
        "about": _about(run),
        "created_at": run.get("created_at"),
        "planned": planned(run),
        "summary": result,
        "rate": rate_interval(summary.tallies) if scored else None,
        "pass_at_k": pass_at_k_intervals(summary.tallies, result["attempts"]) if scored else [],
        "rollouts": rows,
    }
    return RunView(index=index, details=details, tallies=summary.tallies)


def pack(data: Any) -> str:
    """JSON, deflated, in base64: the page unpacks it when somebody looks at it."""
    return base64.b64encode(zlib.compress(json.dumps(data).encode("ascii"), 6)).decode("ascii")


def _row(rollout: Rollout) -> dict[str, Any]:
    """What the table and the charts need; what is empty is left out."""
    phases = [
        [LIMITED_PHASES.index(name), round(start, 3), round(end, 3)]
        for name, start, end in rollout.phases
        if name in LIMITED_PHASES
    ]
    patch = "\n" + rollout.patch
    kind, phase = error_kind(rollout)
    row = {
        "id": rollout.instance_id,
        "attempt": rollout.attempt,
        "status": status_of(rollout),
        "duration": round(rollout.duration_s, 3),
        "started": rollout.started_at,
        "phases": phases,
        "reward": finite_reward(rollout),
        "added": patch.count("\n+") - patch.count("\n+++ "),
        "removed": patch.count("\n-") - patch.count("\n--- "),
        "error": None if rollout.error is None else _cut(rollout.error, MAX_LINE),
        "type": None if rollout.error is None else _cut(kind, 80),
        "phase": None if rollout.error is None else _cut(phase, 40),
        "usage": dict(usage_of(rollout.info)),
    }
    return {key: value for key, value in row.items() if value not in (None, {}, [])}


def _details(path: Path, rollout: Rollout) -> dict[str, Any]:
    name = safe_name(rollout.instance_id, rollout.attempt)
    failure = rollout.failure
    log, log_size, files = _read_folder(path, name)
    found = {
        "folder": name,
        "patch": rollout.patch[:MAX_PATCH],
        "patch_size": len(rollout.patch),
        "error": None if rollout.error is None else _cut(rollout.error, MAX_TEXT),
        "traceback": _end(failure.traceback, MAX_TEXT) if failure else "",
        "transient": failure.transient if failure else False,
        "score": _pairs(rollout.score),
        "info": _pairs(rollout.info),
        "agent_exit": rollout.agent_exit,
        "model": rollout.model,
        "log": log,
        "log_size": log_size,
        "files": files,
    }
    return {key: value for key, value in found.items() if value or type(value) is int}


def read_log_end(path: Path, name: str) -> tuple[str, int]:
    """The end of a rollout's log, as text, and the whole log's size in bytes; `name` is the rollout's folder."""
    log, size, _ = _read_folder(path, name)
    return log, size


def _read_folder(path: Path, name: str) -> tuple[str, int, list[str]]:
    """The end of a rollout's log, the log's size in bytes, and the names of what its agent saved."""
    data, size, files = b"", 0, list[str]()
    with contextlib.suppress(OSError), folder(path) as top, folder(name, dir_fd=top) as inside:
        with os.scandir(inside) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        files = [n for n in names if n not in (PATCH_FILE, LOG_FILE, ID_FILE)][:MAX_FILES]
        with open(open_plain_file(LOG_FILE, os.O_RDONLY, dir_fd=inside), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - MAX_LOG, 0))
            data = file.read(MAX_LOG)
    if size > MAX_LOG:
        data = data[data.find(b"\n") + 1 :]
    return data.decode("utf-8", "replace"), size, files


def _pairs(data: Mapping[str, Any] | None) -> list[list[str]]:
    """What a bag holds as text: the numbers in it may be larger than a browser's."""
    if not data:
        return []
    pairs, room = [], MAX_TEXT
    for key, value in data.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        pairs.append([_cut(key, 200), _cut(text, max(room, 200))])
        room -= len(pairs[-1][1])
        if len(pairs) >= 200:
            pairs.append(["…", f"and {len(data) - 200} more"])
            break
    return pairs


def _about(run: Mapping[str, Any]) -> dict[str, str]:
    """Which adapters and model it was."""
    identity = run.get("identity")
    identity = identity if isinstance(identity, Mapping) else {}
    about = {}
    for key in ("dataset", "agent", "provider", "model", "bundle", "platform"):
        value = identity.get(key)
        if isinstance(value, Mapping):
            value = value.get("adapter")
        if isinstance(value, str) and value:
            about[key] = _cut(value, 200)
    return about


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


def _end(text: str, limit: int) -> str:
    return text if len(text) <= limit else "…" + text[-limit:]


def journal_state(path: Path) -> tuple[int, int]:
    """Changes whenever a rollout was added to the run directory."""
    try:
        found = os.stat(path / "rollouts.jsonl", follow_symlinks=False)
    except OSError:
        return 0, 0
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (0, 0)
