"""The words of `agentix show`. What comes from a run is untrusted: every line is made printable."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from ..errors import BadArgument
from ..records import Rollout
from ..report.data import read_log_end
from ..report.terminal import ROWS, table
from ..rundir.directory import read_rollouts
from ..rundir.names import LOG_FILE, PATCH_FILE, safe_name
from ..rundir.runfile import in_use, planned, read_run_file
from ..rundir.summary import Summary
from ..text import clean, plural, printable, seconds

LOG_LINES = 40
MAX_TEXT = 1_000_000  # characters of one text that are shown
WORDS = {key: (words, color) for key, words, color in ROWS}


def look(run_dir: Path, instance_id: str | None, *, attempt: int | None, statuses: Sequence[str], as_json: bool) -> str:
    """What `agentix show` prints.

    Raises:
        BadArgument: there is no such rollout, or ID and --status are both given.
        RunDirError: it is no run directory, or damaged.
    """
    if instance_id is not None and statuses:
        raise BadArgument("ID and --status exclude each other: leave one of them out")
    if instance_id is None and attempt is not None and not statuses:
        raise BadArgument("--attempt needs an ID: agentix show RUN_DIR ID --attempt N")
    if instance_id is not None:
        found = _find(run_dir, instance_id, attempt)
        if as_json:
            return "\n".join(json.dumps(attrs.asdict(rollout)) for rollout in found)
        return "\n\n\n".join("\n".join(_rollout(run_dir, rollout)) for rollout in found)
    if statuses:
        chosen = [r for r in read_rollouts(run_dir) if status_of(r) in statuses and attempt in (None, r.attempt)]
        chosen.sort(key=lambda r: (r.instance_id, r.attempt))
        if as_json:
            return "\n".join(json.dumps({"instance_id": r.instance_id, "attempt": r.attempt}) for r in chosen)
        return "\n".join(map(_line, chosen)) or f"no rollout is {' or '.join(WORDS[s][0] for s in statuses)}"
    summary = Summary()
    for rollout in read_rollouts(run_dir):
        summary.add(rollout)
    result = summary.result()
    if as_json:
        return json.dumps(result, indent=2)
    shown = table(result, run_dir=str(run_dir))
    total = planned(read_run_file(run_dir)) or 0
    left = total - result["rollouts"]
    if left <= 0:
        return shown
    how = "still to come: the run goes on" if in_use(run_dir) else "missing: run it again to have them"
    return f"{shown}\n{left} of {total} rollouts are {how}"


def status_of(rollout: Rollout) -> str:
    return rollout.status if rollout.ran else "not_run"


def _find(run_dir: Path, wanted: str, attempt: int | None) -> list[Rollout]:
    """All attempts at the instance that `wanted` means, or one of them."""
    exact: list[Rollout] = []
    begins: dict[str, list[Rollout]] = {}
    ids: dict[str, None] = {}
    for rollout in read_rollouts(run_dir):
        ids[rollout.instance_id] = None
        if rollout.instance_id == wanted:
            exact.append(rollout)
        elif wanted and rollout.instance_id.startswith(wanted) and (len(begins) < 2 or rollout.instance_id in begins):
            begins.setdefault(rollout.instance_id, []).append(rollout)
    if not exact and len(begins) > 1:
        some = [i for i in ids if i.startswith(wanted)]
        raise BadArgument(f"{clean(run_dir)}: {len(some)} ids begin with {clean(wanted, 80)!r}: {_some(some)}")
    found = exact or next(iter(begins.values()), [])
    if not found:
        close = difflib.get_close_matches(wanted, ids, n=3, cutoff=0.5)
        hint = (
            f"close ones: {_some(close)}"
            if close
            else f"there are {_some(list(ids))}"
            if ids
            else "nothing has finished yet"
        )
        raise BadArgument(f"{clean(run_dir)} has no rollout of {clean(wanted, 80)!r}: {hint}")
    found.sort(key=lambda r: r.attempt)
    if attempt is None:
        return found
    chosen = [rollout for rollout in found if rollout.attempt == attempt]
    if not chosen:
        there = ", ".join(str(rollout.attempt) for rollout in found)
        raise BadArgument(f"{clean(found[0].instance_id, 80)} has no attempt {attempt}: there are {there}")
    return chosen


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(clean(i, 80) for i in ids[:3])
    return shown if len(ids) <= 3 else f"{shown} and {len(ids) - 3} more"


def _line(rollout: Rollout) -> str:
    words, color = WORDS[status_of(rollout)]
    attempt = f" (attempt {rollout.attempt})" if rollout.attempt else ""
    error = f"  {clean(rollout.error, 200)}" if rollout.error else ""
    return f"{click.style(f'{words:<12}', fg=color)}  {clean(rollout.instance_id, 200)}{attempt}{error}"


def _rollout(run_dir: Path, rollout: Rollout) -> Iterator[str]:
    words, color = WORDS[status_of(rollout)]
    attempt = f"  attempt {rollout.attempt}" if rollout.attempt else ""
    yield f"{click.style(clean(rollout.instance_id, 1000), bold=True)}{attempt}  {click.style(words, fg=color)}"
    about = [seconds(rollout.duration_s)]
    about += [f"model {clean(rollout.model, 100)}"] if rollout.model else []
    about += [f"agent's exit code {rollout.agent_exit}"] if rollout.agent_exit is not None else []
    yield f"  {', '.join(about)}"
    if rollout.phases:
        yield "  " + ", ".join(f"{clean(name, 40)} {seconds(end - start)}" for name, start, end in rollout.phases)
    yield from _error(rollout)
    yield from _bag("score", rollout.score)
    yield from _bag("info", rollout.info)
    folder = safe_name(rollout.instance_id, rollout.attempt)
    if rollout.patch:
        lines = _lines(rollout.patch)
        yield from _head("patch", f"{plural(len(lines), 'line')}, {clean(run_dir / folder / PATCH_FILE, 1000)}")
        yield from map(_diff_line, lines)
    log, size = read_log_end(run_dir, folder)
    lines = _lines(click.unstyle(log))
    if lines:
        cut = len(lines) > LOG_LINES or size > len(log.encode())
        where = clean(run_dir / folder / LOG_FILE, 1000)
        yield from _head("log", f"the end; all {size:,} bytes are in {where}" if cut else "")
        yield from (f"  {line}" for line in lines[-LOG_LINES:])


def _error(rollout: Rollout) -> Iterator[str]:
    if rollout.error is None:
        return
    failure = rollout.failure
    yield from _head("error", f"in {clean(failure.phase, 40)}" if failure else "")
    yield "  " + click.style(clean(rollout.error, 4000), fg="red")
    if failure and failure.traceback:
        yield from (f"  {line}" for line in _lines(failure.traceback))


def _bag(name: str, data: dict[str, Any] | None) -> Iterator[str]:
    if data:
        yield from _head(name, "")
        text = json.dumps(data, indent=2, ensure_ascii=False)
        yield from (f"  {line}" for line in _lines(text))


def _head(name: str, note: str) -> Iterator[str]:
    yield ""
    yield click.style(name, bold=True) + (f"  {note}" if note else "")


def _lines(text: str) -> list[str]:
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n[cut here]"
    # Split at line ends alone: other separators are shown as what they are.
    return printable(cut.replace("\r\n", "\n")).rstrip("\n").split("\n") if cut.strip() else []


def _diff_line(line: str) -> str:
    styles: list[tuple[tuple[str, ...], Callable[[str], str]]] = [
        (("diff ", "+++ ", "--- ", "index "), lambda s: click.style(s, bold=True)),
        (("@@",), lambda s: click.style(s, fg="cyan")),
        (("+",), lambda s: click.style(s, fg="green")),
        (("-",), lambda s: click.style(s, fg="red")),
    ]
    for begins, style in styles:
        if line.startswith(begins):
            return "  " + style(line)
    return f"  {line}"
