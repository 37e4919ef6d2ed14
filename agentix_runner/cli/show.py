"""`agentix show`: a run's summary, or one rollout in full, in the terminal.

What comes from a run is untrusted: every line is made printable.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from ..errors import BadArgument
from ..records import STATUSES, Rollout, status_of
from ..report.data import read_log_end
from ..report.terminal import COLORS, styled, table, words
from ..rundir.directory import read_rollouts
from ..rundir.names import LOG_FILE, PATCH_FILE, safe_name
from ..rundir.runfile import in_use, planned, read_run_file
from ..rundir.summary import Summary
from ..text import clean, plural, printable, seconds
from . import exit_codes
from .options import Option, command
from .streams import write

EPILOG = """\
\b
Examples:
  agentix show runs/humaneval
  agentix show runs/humaneval --status error
  agentix show runs/humaneval HumanEval/12
"""
LOG_LINES = 40
MAX_TEXT = 1_000_000  # characters of one text that are shown
DIFF_STYLES = {
    "diff ": "bold",
    "+++ ": "bold",
    "--- ": "bold",
    "index ": "bold",
    "@@": "cyan",
    "+": "green",
    "-": "red",
}
"""How a line of a patch is styled, by its beginning; the first one counts."""


@command(
    "show",
    click.Argument(["run_dir"], metavar="RUN_DIR", type=click.Path(path_type=Path)),
    click.Argument(["instance_id"], metavar="[ID]", required=False),
    Option("--attempt N", "Only this attempt, counted from 0.", type=click.IntRange(min=0)),
    Option(
        "--status STATUS",
        f"List the rollouts of this status; repeatable: {', '.join(STATUSES)}.",
        name="statuses",
        multiple=True,
        type=click.Choice(STATUSES),
    ),
    Option("--json", "Print it as JSON.", name="as_json"),
    epilog=EPILOG,
    on_interrupt="nothing more is shown",
)
def show(run_dir: Path, instance_id: str | None, attempt: int | None, statuses: tuple[str, ...], as_json: bool) -> int:
    """Show the summary of a run, or with ID one of its rollouts in full.

    ID is an instance's id, or the beginning of it where only one begins so. All of its attempts are shown.
    """
    if instance_id is not None and statuses:
        raise BadArgument("ID and --status exclude each other: leave one of them out")
    if instance_id is None and attempt is not None and not statuses:
        raise BadArgument("--attempt needs an ID: agentix show RUN_DIR ID --attempt N")
    if instance_id is not None:
        found = _find(run_dir, instance_id, attempt)
        texts = [json.dumps(attrs.asdict(r)) if as_json else describe_rollout(run_dir, r) for r in found]
        text = ("\n" if as_json else "\n\n\n").join(texts)
    elif statuses:
        text = _list(run_dir, statuses, attempt, as_json)
    else:
        text = _summary(run_dir, as_json)
    write(text, sys.stdout)
    return exit_codes.OK


def _summary(run_dir: Path, as_json: bool) -> str:
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


def _list(run_dir: Path, statuses: Sequence[str], attempt: int | None, as_json: bool) -> str:
    chosen = [r for r in read_rollouts(run_dir) if status_of(r) in statuses and attempt in (None, r.attempt)]
    chosen.sort(key=lambda r: (r.instance_id, r.attempt))
    if as_json:
        return "\n".join(json.dumps({"instance_id": r.instance_id, "attempt": r.attempt}) for r in chosen)
    lines = []
    for rollout in chosen:
        status = status_of(rollout)
        attempt_text = f" (attempt {rollout.attempt})" if rollout.attempt else ""
        error = f"  {clean(rollout.error, 200)}" if rollout.error else ""
        head = styled(f"{words(status):<12}", COLORS[status])
        lines.append(f"{head}  {clean(rollout.instance_id, 200)}{attempt_text}{error}")
    return "\n".join(lines) or f"no rollout is {' or '.join(map(words, statuses))}"


def _find(run_dir: Path, wanted: str, attempt: int | None) -> list[Rollout]:
    """All attempts at the instance that `wanted` means, or one of them."""
    ids = list(dict.fromkeys(rollout.instance_id for rollout in read_rollouts(run_dir)))
    meant = [wanted] if wanted in ids else [i for i in ids if wanted and i.startswith(wanted)]
    if len(meant) > 1:
        raise BadArgument(f"{clean(run_dir)}: {len(meant)} ids begin with {clean(wanted, 80)!r}: {_first_items(meant)}")
    if not meant:
        close = difflib.get_close_matches(wanted, ids, n=3, cutoff=0.5)
        hint = f"close ones: {_first_items(close)}" if close else f"there are {_first_items(ids)}"
        if not ids:
            hint = "nothing has finished yet"
        raise BadArgument(f"{clean(run_dir)} has no rollout of {clean(wanted, 80)!r}: {hint}")
    found = sorted((r for r in read_rollouts(run_dir) if r.instance_id == meant[0]), key=lambda r: r.attempt)
    chosen = [rollout for rollout in found if attempt in (None, rollout.attempt)]
    if not chosen:
        there = ", ".join(str(rollout.attempt) for rollout in found)
        raise BadArgument(f"{clean(meant[0], 80)} has no attempt {attempt}: there are {there}")
    return chosen


def _first_items(ids: Sequence[str]) -> str:
    shown = ", ".join(clean(i, 80) for i in ids[:3])
    return shown if len(ids) <= 3 else f"{shown} and {len(ids) - 3} more"


def describe_rollout(run_dir: Path, rollout: Rollout) -> str:
    """All that there is to know about a rollout, for people, in colour."""
    return "\n".join(_lines_about(run_dir, rollout))


def _lines_about(run_dir: Path, rollout: Rollout) -> Iterator[str]:
    status = status_of(rollout)
    attempt = f"  attempt {rollout.attempt}" if rollout.attempt else ""
    yield f"{styled(clean(rollout.instance_id, 1000), 'bold')}{attempt}  {styled(words(status), COLORS[status])}"
    about = [seconds(rollout.duration_s)]
    if rollout.model:
        about.append(f"model {clean(rollout.model, 100)}")
    if rollout.agent_exit is not None:
        about.append(f"agent's exit code {rollout.agent_exit}")
    yield f"  {', '.join(about)}"
    if rollout.phases:
        yield "  " + ", ".join(f"{clean(name, 40)} {seconds(end - start)}" for name, start, end in rollout.phases)
    failure = rollout.failure
    if rollout.error is not None:
        yield from _header("error", f"in {clean(failure.phase, 40)}" if failure else "")
        yield "  " + styled(clean(rollout.error, 4000), "red")
        yield from _indented(failure.traceback if failure else "")
    yield from _key_values("score", rollout.score)
    yield from _key_values("info", rollout.info)
    folder = safe_name(rollout.instance_id, rollout.attempt)
    patch = list(_indented(rollout.patch))
    if patch:
        yield from _header("patch", f"{plural(len(patch), 'line')}, {clean(run_dir / folder / PATCH_FILE, 1000)}")
        yield from map(_diff_line, patch)
    log, size = read_log_end(run_dir, folder)
    lines = list(_indented(click.unstyle(log)))
    if lines:
        cut = len(lines) > LOG_LINES or size > len(log.encode())
        where = clean(run_dir / folder / LOG_FILE, 1000)
        yield from _header("log", f"the end; all {size:,} bytes are in {where}" if cut else "")
        yield from lines[-LOG_LINES:]


def _key_values(name: str, data: dict[str, Any] | None) -> Iterator[str]:
    if data:
        yield from _header(name, "")
        yield from _indented(json.dumps(data, indent=2, ensure_ascii=False))


def _header(name: str, note: str) -> Iterator[str]:
    yield ""
    yield styled(name, "bold") + (f"  {note}" if note else "")


def _indented(text: str) -> Iterator[str]:
    """The lines of `text`, printable and indented; none where it is blank."""
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n[cut here]"
    if cut.strip():
        # Split at line ends alone: other separators are shown as what they are.
        for line in printable(cut.replace("\r\n", "\n")).rstrip("\n").split("\n"):
            yield f"  {line}"


def _diff_line(line: str) -> str:
    style = next((style for start, style in DIFF_STYLES.items() if line.startswith(f"  {start}")), None)
    return f"  {styled(line[2:], style)}"
