"""The table at the end of a run, from its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from ..text import clean, plural, seconds

ROWS = (
    ("resolved", "resolved", "green"),
    ("unresolved", "unresolved", "yellow"),
    ("empty_patch", "empty patch", "yellow"),
    ("setup_failed", "setup failed", "red"),
    ("error", "error", "red"),
    ("not_scored", "not scored", None),
    ("not_run", "not run", "yellow"),
)
"""The statuses of rollouts: key of the summary, words, colour. All but the first are left out where they are zero."""

PHASES = ("session", "setup", "agent", "score", "teardown")
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
    rows = [
        (click.style(words, fg=color if summary[key] else None), str(summary[key]), _percent(summary[key], total))
        for key, words, color in ROWS
        if summary[key] or (key == "resolved" and not summary["not_scored"])
    ]
    return [click.style(head, bold=True), *_columns(rows)]


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
    return _columns(rows)


def _phases(timing: Mapping[str, Any]) -> list[str]:
    known = [name for name in PHASES if name in timing["phases"]]
    found = [(name, timing["phases"][name]) for name in known + sorted(set(timing["phases"]) - set(known))]
    if not found:
        return []
    rows: list[Sequence[str]] = [("time by phase", "mean", "longest", "sum")]
    rows += [(clean(name, 40), *(seconds(t[key] or 0.0) for key in ("mean_s", "max_s", "sum_s"))) for name, t in found]
    lines = _columns(rows)
    if timing["span_s"] is not None:
        lines.append(f"  {seconds(timing['span_s'])} from start to end")
    return lines


def _errors(errors: Mapping[str, Any]) -> list[str]:
    if not errors:
        return []
    lines = [click.style("errors", bold=True)]
    for name, error in list(errors.items())[:MAX_ERRORS]:
        phases = ", ".join(clean(phase, 40) for phase in error["phases"])
        example = error["example"]
        lines.append(f"  {error['count']} x {click.style(clean(name, 80), fg='red')} in {phases}, for example")
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


def _percent(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else ""


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """The rows indented, the first column to the left, the others to the right, colours not counted."""
    cells = [list(row) for row in rows]
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(_pad(c, w, right=i > 0) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]


def _pad(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - len(click.unstyle(cell)))
    return space + cell if right else cell + space
