"""The table at the end of a run, from its summary, and how text is styled and set in columns for a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..records import LIMITED_PHASES
from ..text import clean, plural, seconds

COLORS = {
    "resolved": "green",
    "unresolved": "yellow",
    "empty_patch": "yellow",
    "setup_failed": "red",
    "error": "red",
    "not_scored": None,
    "not_run": "yellow",
}
"""Of each status, in the order of the table."""

STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
MAX_ERRORS = 10


def table(summary: Mapping[str, Any], *, run_dir: str | None = None) -> str:
    """`summary` (of `rundir.summary.summarize`) for people, in colour; `run_dir` is where the results are."""
    blocks = [_counts(summary), _rates(summary), _phases(summary["timing"]), _errors(summary["errors"])]
    if run_dir is not None:
        blocks.append(_where(summary, run_dir))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _counts(summary: Mapping[str, Any]) -> list[str]:
    total = summary["rollouts"]
    head = plural(total, "rollout")
    if summary["attempts"] > 1:
        head += f" ({plural(summary['instances'], 'instance')}, up to {summary['attempts']} attempts)"
    rows = []
    for status, color in COLORS.items():
        count = summary[status]
        if count:
            rows.append((styled(words(status), color), str(count), f"{count / total:.1%}"))
        elif status == "resolved" and not summary["not_scored"]:
            rows.append((words(status), "0", "0.0%" if total else ""))
    return [styled(head, "bold"), *columns(rows)]


def _rates(summary: Mapping[str, Any]) -> list[str]:
    rows = []
    if summary["resolved_rate"] is not None:
        rows.append(("resolved rate", f"{summary['resolved_rate']:.1%}"))
    rows += [(f"pass@{k}", f"{value:.1%}") for k, value in summary["pass_at_k"].items()]
    reward, scored = summary["mean_reward"], summary["resolved"] + summary["unresolved"]
    # Where rewards are only 0 and 1, their mean says nothing that the counts do not.
    if reward is not None and scored and abs(reward - summary["resolved"] / scored) > 1e-9:
        rows.append(("mean reward", f"{reward:.3f}"))
    rows += [(clean(name, 40), f"{value:,.6g}") for name, value in summary["usage"].items() if value is not None]
    return columns(rows)


def _phases(timing: Mapping[str, Any]) -> list[str]:
    known = [name for name in LIMITED_PHASES if name in timing["phases"]]
    found = [(name, timing["phases"][name]) for name in known + sorted(set(timing["phases"]) - set(known))]
    if not found:
        return []
    rows: list[Sequence[str]] = [("time by phase", "mean", "longest", "sum")]
    rows += [(clean(name, 40), *(seconds(t[key] or 0.0) for key in ("mean_s", "max_s", "sum_s"))) for name, t in found]
    lines = columns(rows)
    if timing["span_s"] is not None:
        lines.append(f"  {seconds(timing['span_s'])} from start to end")
    return lines


def _errors(errors: Mapping[str, Any]) -> list[str]:
    if not errors:
        return []
    lines = [styled("errors", "bold")]
    for name, error in list(errors.items())[:MAX_ERRORS]:
        phases = ", ".join(clean(phase, 40) for phase in error["phases"])
        example = error["example"]
        lines.append(f"  {error['count']} x {styled(clean(name, 80), 'red')} in {phases}, for example")
        lines.append(f"    {clean(example['instance_id'], 80)}: {clean(example['message'], 300)}")
    if len(errors) > MAX_ERRORS:
        lines.append(f"  and {plural(len(errors) - MAX_ERRORS, 'other type')}")
    return lines


def _where(summary: Mapping[str, Any], run_dir: str) -> list[str]:
    shown = clean(run_dir, 1000)
    lines = [f"results: {shown}"]
    if summary["not_run"]:
        lines.append(f"run the {summary['not_run']} that did not run: the same command with --out {shown}")
    if summary["error"]:
        again = "the one with an error" if summary["error"] == 1 else f"the {summary['error']} with an error"
        lines.append(f"run {again} again: the same command with --out {shown} --retry-errors")
    return lines


def words(status: str) -> str:
    """A status as people read it: "empty patch"."""
    return status.replace("_", " ")


def styled(text: str, style: str | None) -> str:
    """`text` in bold or in a colour, as terminals understand it; None leaves it as it is."""
    return text if style is None else f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def unstyled(text: str) -> str:
    """`text` without what `styled` has put in."""
    return re.sub(r"\x1b\[\d+m", "", text)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows indented, the first column to the left, the others to the right, styles not counted."""
    widths = [max(len(unstyled(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        # What styles a cell takes no room on the screen.
        room = [width + len(cell) - len(unstyled(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [row[0].ljust(room[0]), *map(str.rjust, row[1:], room[1:])]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
